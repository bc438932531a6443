"""The agent in a pod that knows nothing of it: its ConfigMap, its folders, and the command line around the user's.

The image needs a shell and a Python >= 3.8 for it, and nothing else; without Python the command is started as it is. It
works with a read-only root file system, as any user, and in a namespace that enforces Pod Security "restricted": the
archive is a read-only ConfigMap, its state an emptyDir.

What is not known can't be wrapped: a container without ``command`` runs what its image says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from airflow_ft.backends import agent_archive
from airflow_ft.backends.kubernetes.kinds import Json

ARCHIVE_FOLDER, STATE_FOLDER = "/airflow-ft/agent", "/airflow-ft/state"
ARCHIVE = f"{ARCHIVE_FOLDER}/agent.pyz"
# Below the emptyDir, not the emptyDir itself: the agent makes its folder its own (0700).
AGENT_FOLDER = f"{STATE_FOLDER}/agent"
LAST_WORDS = "/dev/termination-log"  # where the kubelet looks for a container's last words
NODE = "FT_NODE"  # the variable with the node's name
ARCHIVE_VOLUME, STATE_VOLUME = "airflow-ft-agent", "airflow-ft-state"

# $1 is a Python that the command itself names, or empty. No "$(": Kubernetes would read it as a variable of its own.
_FIND = (
    'own=$1; shift; for p in $own python3 python; do command -v "$p" >/dev/null 2>&1 && '
    '"$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" >/dev/null 2>&1 && '
    f'exec "$p" -I -S {ARCHIVE} "$@"; done; '
)
_ELSE_WITHOUT = (
    'echo "ft-agent: no python >= 3.8 here; running the command without the agent" >&2; '
    'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
)
_ELSE_FAIL = 'echo "no python >= 3.8" >&2; exit 125'


class AgentOptions:
    """What the agent of one attempt is told."""

    def __init__(
        self, attempt: str, hold: float, grace: float, preflight: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self.attempt, self.hold, self.grace, self.preflight = attempt, hold, grace, preflight
        self.nonce = hashlib.sha256(attempt.encode()).hexdigest()[:12]

    def words(self) -> list[str]:
        """Return its command line up to ``--``."""
        given = {
            "dir": AGENT_FOLDER,
            "attempt": self.attempt,
            "hold": f"{self.hold:g}",
            "grace": f"{self.grace:g}",
            "nonce": self.nonce,
            "last-words": LAST_WORDS,
        }
        if self.preflight:  # Kubernetes puts the node's name in; who the others are they find out when they run
            given["preflight"] = json.dumps({**self.preflight, "node": f"$({NODE})"})
        return ["run", *(f"--{name}={value}" for name, value in given.items()), "--"]


def wrapped(command: Sequence[str], options: AgentOptions) -> list[str]:
    """Return the command with the agent around it. What a manifest has in ``args`` may follow as before."""
    own = command[0] if os.path.basename(command[0]).startswith("python") else ""
    return ["sh", "-c", _FIND + _ELSE_WITHOUT, "ft-agent", shell_word(own), *options.words(), *command]


def wrapped_entrypoint(entrypoint: str, options: AgentOptions) -> str:
    """Return a shell line (a RayJob's entrypoint) with the agent around it."""
    return shlex.join(wrapped(["sh", "-c", entrypoint], options))


def calling(words: Sequence[str]) -> list[str]:
    """Return the command that talks to the agent from inside its container (pods/exec)."""
    return ["sh", "-c", _FIND + _ELSE_FAIL, "ft-agent", "", *words]


def shell_word(text: str) -> str:
    """Only a plain path is taken over: it is split by the shell."""
    return text if text and all(c.isalnum() or c in "/._-" for c in text) else ""


def config_map_name() -> str:
    """Return the name of the ConfigMap that holds this version's agent."""
    return f"airflow-ft-agent-{_digest()[:12]}"


def config_map(namespace: str) -> Json:
    """Return the ConfigMap: immutable, named by its content, shared by all jobs of a namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(),
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "airflow-ft", "airflow-ft/kind": "agent"},
        },
        "immutable": True,
        "binaryData": {"agent.pyz": base64.b64encode(agent_archive.agent_archive_bytes()).decode()},
    }


def volumes() -> list[Json]:
    """Return the volumes of a pod with an agent."""
    return [
        {"name": ARCHIVE_VOLUME, "configMap": {"name": config_map_name(), "defaultMode": 0o444}},
        {"name": STATE_VOLUME, "emptyDir": {}},
    ]


def mounts() -> list[Json]:
    """Return the mounts of a container with an agent."""
    return [
        {"name": ARCHIVE_VOLUME, "mountPath": ARCHIVE_FOLDER, "readOnly": True},
        {"name": STATE_VOLUME, "mountPath": STATE_FOLDER},
    ]


def _digest() -> str:
    return hashlib.sha256(agent_archive.agent_archive_bytes()).hexdigest()
