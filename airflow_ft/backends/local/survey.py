"""What of a job is alive: the agents' word, the recorded pids, and the marker in every process's environment.

Three ways, because each has a hole: an agent may be dead, a recorded pid may be used again (so its start time has to
fit), a process may have thrown its environment away (then it descends from one that has not). A job is *over* when
nothing of it is alive and nothing will be started any more.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Any, NamedTuple

from airflow_ft.agent import processes
from airflow_ft.agent import state as agent_state
from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.local.folder import OVER, Identity, JobFolder, Tombstone, now

MARKER = "FT_JOB"


class NodeLife(NamedTuple):
    """One node: the agent's last word, and whether agent and command are there."""

    state: dict[str, Any] | None
    agent: bool = False
    command: bool = False  # something of the command lives, whoever started it
    rebooted: bool = False

    @property
    def ended(self) -> bool:
        """Whether the agent said its last word."""
        return self.state is not None and self.state.get("phase") == "ended"


def look(folder: JobFolder, identity: Identity, node: str) -> NodeLife:
    """See how a node is. Raises ``UnreachableError`` for a state that can't be read."""
    state = _read_state(folder.node(node))
    if state is None:
        return NodeLife(None, command=bool(marked(identity, node)))
    if state.get("boot_id") != processes.boot_id():
        return NodeLife(_final(folder.node(node), state), rebooted=True)
    if agent_state.agent_lives(state):
        return NodeLife(state, agent=True, command=True)
    # An agent that ended between the two looks wrote its last word first: read it again.
    state = _final(folder.node(node), _read_state(folder.node(node)) or state)
    if state.get("phase") == "ended":
        return NodeLife(state)
    if agent_is_hidden(folder.node(node)):
        raise UnreachableError(f"the agent of {node} lives where we can't see it: in another container?")
    alive = processes.is_alive(state.get("child"), state.get("child_start")) or bool(marked(identity, node))
    return NodeLife(state, command=alive)


def marked(identity: Identity, node: str | None = None) -> list[int]:
    """Living processes with the job's marker (of one node), except us and our ancestors."""
    found = set(processes.with_marker(MARKER, identity.marker)) - _ourselves()
    return sorted(pid for pid in found if node is None or processes.variable(pid, "FT_NODE") == node)


def everything(folder: JobFolder, identity: Identity, node: str | None = None) -> dict[int, int]:
    """All living processes of the job (or of one node), with their start times."""
    roots = set(marked(identity, node))
    for name in nodes_started(folder) if node is None else [node]:
        roots.update(_recorded(folder.node(name)))
    tree = roots.union(*(processes.descendants(pid) for pid in roots)) - _ourselves()
    found = {pid: processes.stat(pid) for pid in tree}
    return {pid: stat.start_ticks for pid, stat in found.items() if stat is not None and not stat.dead}


def agent_is_hidden(directory: str) -> bool:
    """Whether a living agent holds the folder's lock. Asked where no agent is to be seen: then it has another /proc."""
    try:
        lock = os.open(os.path.join(directory, "agent.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: nothing is known
        return False
    finally:
        os.close(lock)
    return False


def nodes_started(folder: JobFolder) -> list[str]:
    """The nodes that have a folder, whatever the placement says."""
    with suppress(OSError):
        return sorted(os.listdir(os.path.join(folder.path, "nodes")))
    return []


def is_over(folder: JobFolder, identity: Identity) -> bool:
    """Whether nothing of the job runs and nothing can start any more. Notes it for good if so."""
    tombstone = folder.tombstone()
    if tombstone and tombstone.kind == OVER:
        return True
    placement = folder.placement()
    if tombstone is None and placement is None:
        return False
    lives = {node: look(folder, identity, node) for node in (placement.nodes if placement else ())}
    if tombstone is None and not all(_settled(folder, node, life) for node, life in lives.items()):
        return False
    if any(life.agent or life.command for life in lives.values() if not life.ended):
        return False
    settle(folder, identity)
    return True


def settle(folder: JobFolder, identity: Identity) -> None:
    """Note that the job is over, so that no late launcher starts it again, and forget its secrets."""
    with suppress(OSError):  # a full disk: the next look does it
        folder.close(Tombstone(kind=OVER, name=identity.name, chain_id=identity.chain_id, why="over", at=now()))
    folder.forget_secrets()


def _settled(folder: JobFolder, node: str, life: NodeLife) -> bool:
    """Whether the node had its turn: it ended, or it was started and everything of it is dead."""
    return life.state is not None or folder.lost(node) is not None


def _read_state(directory: str) -> dict[str, Any] | None:
    state = agent_state.read_state(directory)
    if state is None and os.path.lexists(os.path.join(directory, "state.json")):
        state = agent_state.read_state(directory)  # it may have been written between the two looks
        if state is None:
            raise UnreachableError(f"{os.path.join(directory, 'state.json')!r} can't be understood")
    return state


def _final(directory: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state of an agent that is gone; its report is the end marker if the last state could not be written."""
    report = agent_state.read_report(directory)
    if state.get("phase") == "ended" or report is None or report.get("incarnation") != state.get("incarnation"):
        return state
    return {**state, "phase": "ended", **{key: report.get(key) for key in ("code", "term", "generation", "unkillable")}}


def _recorded(directory: str) -> list[int]:
    """Agent and command of a node as far as they still are those processes."""
    state = agent_state.read_state(directory) or {}
    if state.get("boot_id") != processes.boot_id():
        return []
    pairs = [(state.get(key), state.get(key + "_start")) for key in ("agent", "child")]
    return [pid for pid, started in pairs if isinstance(pid, int) and processes.is_alive(pid, started)]


def _ourselves() -> set[int]:
    """We and our ancestors: a training that runs Airflow must not end itself."""
    found, pid = {0, 1}, os.getpid()
    while pid not in found:
        found.add(pid)
        stat = processes.stat(pid)
        pid = stat.parent if stat else 0
    return found
