"""``LocalJob``: what a user writes to train on this machine, and what can be known to be wrong with it beforehand.

Strings may hold templates when the DAG is parsed, so the constructor looks at types, ranges and variable names only;
values are checked by ``problems``, after rendering. All problems are told at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sys
from typing import ClassVar

from pydantic import Field, field_validator

from airflow_ft.backends import environment
from airflow_ft.backends.base import TrainingJob
from airflow_ft.core.settings import setting

# Less than this and the agent's own files may not fit; a gut feeling.
MIN_FREE_BYTES = 64 * 1024 * 1024
MAX_POOL_NODES = 250  # far more than one machine can run; pool.address has room for them
_NODES = f"Give a whole number from 1 to {MAX_POOL_NODES}."
_FOLDER = "Give the path of a folder."

# The supervisor's own settings, and what describes *its* place in somebody's job: not the command's business.
_DROPPED_PREFIXES = ("AIRFLOW_", "_AIRFLOW_", "FT_", "PET_", "SLURM_", "TORCHELASTIC_")
_DROPPED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NOTIFY_SOCKET"}
_DROPPED |= {
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "PYTEST_CURRENT_TEST",
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
}


class LocalJob(TrainingJob):
    """Training on this machine.

    :param command: what every node runs: a list of arguments, or one string that is split like a shell would (but never
        given to one).
    :param nodes: how many virtual nodes an attempt takes.
    :param env: environment variables of the command. They win over everything that is set for it.
    :param workdir: where the command runs; default: where the submitting process runs.
    :param pool: name of the pool of nodes.
    :param pool_nodes: how many nodes that pool has.
    :param root: folder for jobs and pools; default: ``AIRFLOW_FT_LOCAL_ROOT``, else ``~/.airflow_ft/local``.
    :param checkpoints: folder with the checkpoints, for people and for the recovery check.
    """

    backend: ClassVar[str] = "local"

    command: tuple[str, ...] | str
    nodes: int = setting(1, allowed=_NODES, ge=1, le=MAX_POOL_NODES)
    env: dict[str, str] = Field(
        default_factory=dict, json_schema_extra={"allowed": "Give a dictionary of names and texts."}
    )
    workdir: str | None = setting(None, allowed=_FOLDER)
    pool: str = setting(
        "default", allowed="Give 1 to 64 letters, digits, dots, _ and -.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
    )
    pool_nodes: int = setting(4, allowed=_NODES, ge=1, le=MAX_POOL_NODES)
    root: str | None = setting(None, allowed=_FOLDER)
    checkpoints: str | None = setting(None, allowed=_FOLDER)

    @field_validator("command", mode="before")
    @classmethod
    def _command_is_words(cls, command: object) -> object:
        words = command if isinstance(command, (list, tuple)) else [command]
        if not all(isinstance(word, str) for word in words) or not "".join(map(str, words)).strip():
            asked = "Give a list of a program and its arguments, or a string."
            raise ValueError(f"{command!r:.200} is not allowed. {asked}")
        return command

    @field_validator("env")
    @classmethod
    def _names_are_allowed(cls, env: dict[str, str]) -> dict[str, str]:
        problems = environment.name_problems(env)
        if problems:
            raise ValueError(" ".join(problems))
        return env

    def nodes_needed(self) -> int:
        """How many nodes one attempt takes."""
        return self.nodes

    @property
    def argv(self) -> tuple[str, ...]:
        """The command's arguments. Raises ``ValueError`` for a string with an open quotation."""
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command

    def digest(self) -> str:
        """Fingerprint of the job: the same name with another one is another job."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def environment(self) -> dict[str, str]:
        """Ours without what concerns only us, with this interpreter's folder first in PATH; the user's wins."""
        env = {k: v for k, v in os.environ.items() if k not in _DROPPED and not k.startswith(_DROPPED_PREFIXES)}
        path = [os.path.dirname(sys.executable), env.get("PATH") or os.defpath]
        return {**env, "PATH": os.pathsep.join(path), **self.env}

    def folder(self) -> str:
        """Where the command runs."""
        return os.path.abspath(os.path.expanduser(self.workdir or "."))


def resolve_root(root: str | None = None) -> str:
    """The folder for jobs and pools: the given one, the environment's, the default."""
    chosen = root or os.environ.get("AIRFLOW_FT_LOCAL_ROOT") or os.path.join("~", ".airflow_ft", "local")
    return os.path.abspath(os.path.expanduser(chosen))


def problems(job: LocalJob) -> list[str]:
    """What is wrong with a rendered job, each as: field, given, allowed, what to do."""
    found = _nul_problems(job)
    if job.nodes > job.pool_nodes:
        found.append(
            f"nodes: {job.nodes} is not allowed. The pool {job.pool!r} has {job.pool_nodes}. Ask for fewer, or raise "
            "pool_nodes."
        )
    workdir = job.folder()
    if "\0" not in workdir and not os.path.isdir(workdir):
        found.append(f"workdir: {workdir!r} is not allowed. An existing folder is. Create it, or name another one.")
    found += _command_problems(job, workdir)
    if job.checkpoints:
        found += _unwritable("checkpoints", os.path.abspath(os.path.expanduser(job.checkpoints)))
    return found + _root_problems(resolve_root(job.root))


def _nul_problems(job: LocalJob) -> list[str]:
    texts = {"command": " ".join(job.command) if not isinstance(job.command, str) else job.command}
    texts.update({f"env: the value of {name}": value for name, value in job.env.items()})
    texts.update({"workdir": job.workdir or "", "root": job.root or "", "checkpoints": job.checkpoints or ""})
    return [
        f"{field}: a NUL character is not allowed. Any other one is. Remove it."
        for field, text in texts.items()
        if "\0" in text
    ]


def _command_problems(job: LocalJob, workdir: str) -> list[str]:
    try:
        argv = job.argv
    except ValueError as error:
        return [f"command: {job.command!r:.200} is not allowed ({error}). Close the quotation, or give a list."]
    if not argv or not argv[0]:
        return ["command: an empty one is not allowed. A program and its arguments are. Write the command."]
    if any("\0" in word for word in argv):
        return []  # told already
    program = _find_program(argv[0], job.environment().get("PATH", os.defpath), workdir)
    if program is None:
        return [
            f"command: {argv[0]!r:.200} is not allowed: no such program in the PATH that the job will see. Give one "
            "that is installed, or its whole path."
        ]
    script = _script(argv)
    if script and os.path.isdir(workdir) and not os.path.isfile(os.path.join(workdir, script)):
        return [
            f"command: the script {script!r:.200} is not allowed: it does not exist in {workdir!r}. Give a path that "
            "exists, or set workdir."
        ]
    return []


def _find_program(name: str, path: str, workdir: str) -> str | None:
    if os.sep in name:
        return shutil.which(os.path.join(workdir, name))
    return shutil.which(name, path=path)


def _script(argv: tuple[str, ...]) -> str | None:
    """The Python script of a plain ``python x.py`` or ``torchrun … x.py``; ``None`` if there is none to be sure of."""
    program = os.path.basename(argv[0])
    if not program.startswith(("python", "torchrun")):
        return None
    for word in argv[1:]:
        if word in ("-c", "-m", "--module", "--no-python", "--no_python", "--"):
            return None
        if not word.startswith("-"):
            if word.endswith(".py"):
                return word
            if program.startswith("python"):
                return None
    return None


def _root_problems(root: str) -> list[str]:
    unwritable = _unwritable("root", root)
    if unwritable or "\0" in root:
        return unwritable
    disk = os.statvfs(_existing(root))
    free = disk.f_bavail * disk.f_frsize
    if free < MIN_FREE_BYTES:
        return [
            f"root: {root!r} is not allowed: {free // 2**20} MB are free there. {MIN_FREE_BYTES // 2**20} MB are "
            "needed. Make room, or give another folder."
        ]
    return []


def _unwritable(field: str, folder: str) -> list[str]:
    if "\0" in folder:
        return []  # told already
    base = _existing(folder)
    if os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK) and not _takes_no_folders(base, folder):
        return []
    return [
        f"{field}: {folder!r} is not allowed: {base!r} can't be written. Give a folder that can, or change its owner."
    ]


def _existing(folder: str) -> str:
    """The part of a path that exists."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def _takes_no_folders(base: str, folder: str) -> bool:
    """Where only trying tells (root may write anywhere but into /proc): what is missing is created."""
    if base == folder:
        return False
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return True
    return False
