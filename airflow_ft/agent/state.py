"""The agent's folder: the lock, `state.json`, `report.json`. The only memory that outlives the agent.

Written by the supervisor; read by `orders` and `stacks` in other processes, and by the local backend. Every file is
replaced whole, so a reader sees the old one or the new one. Reading never raises: what is missing, half or foreign is
None. Writing never stops training: a full disk is remembered (`StateFile.retry`) and tried again.

state.json has ``version, phase, generation, order, attempt, incarnation, agent, agent_start, boot_id, child,
child_start, code, term, hold_until, unkillable, child_exits, decision, digest, at, spawned_at, exited_at``. `code` is
the command's (negative: ended by that signal), `order` the number of the last order acted upon.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from typing import Any

from . import processes

VERSION = 1
# A failed write (disk full) is tried again this often; each try costs a system call or two.
RETRY_SECONDS = 1.0
REPORTED = ("code", "term", "generation", "attempt", "incarnation", "unkillable", "spawned_at", "exited_at")
EXIT_IN_USE = 75  # EX_TEMPFAIL
EXIT_CANCELLED = 76


class RefusedError(Exception):
    """The command must not run here; carries the agent's exit code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def read_state(directory: str) -> dict[str, Any] | None:
    """The agent's state.json; None if there is none that can be understood."""
    found = _read(os.path.join(directory, "state.json"))
    return found if found is not None and isinstance(found.get("generation"), int) else None


def read_report(directory: str) -> dict[str, Any] | None:
    """The report of an agent that ended in order; None without its end marker."""
    found = _read(os.path.join(directory, "report.json"))
    return found if found is not None and found.get("end") is True else None


def read_json(path: str) -> dict[str, Any] | None:
    """Any JSON object of the folder; None if there is none that can be understood."""
    return _read(path)


def agent_lives(found: dict[str, Any]) -> bool:
    """Whether the agent that wrote this state is still there."""
    return found.get("boot_id") == processes.boot_id() and processes.is_alive(
        found.get("agent"), found.get("agent_start")
    )


def lock(directory: str) -> int:
    """Make the folder ours for as long as we live; returns the lock's fd.

    Refused if another agent holds it, or if the command of an agent that was killed still runs. On filesystems that
    can't lock we go on without: the submitter's own checks remain.
    """
    low = os.open(os.path.join(directory, "agent.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10)  # not 2: if stderr is closed, what is written there would go here
    os.close(low)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            os.close(fd)
            raise RefusedError(EXIT_IN_USE, "another agent runs in %s; nothing was started" % directory) from None
    old = read_state(directory) or {}
    if old.get("boot_id") == processes.boot_id() and processes.is_alive(old.get("child"), old.get("child_start")):
        os.close(fd)
        why = "process %s of an agent that died still runs in %s; nothing was started" % (old["child"], directory)
        raise RefusedError(EXIT_IN_USE, why)
    return fd


def write_atomic(path: str, value: Any) -> None:
    """Replace a JSON file whole. May raise OSError; then the old file is still there."""
    temporary = "%s.%d" % (path, os.getpid())
    try:
        with open(temporary, "w", opener=_private) as file:
            json.dump(value, file, separators=(",", ":"))
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


class StateFile:
    """The supervisor's state in memory and, whenever the disk allows, in state.json."""

    def __init__(self, directory: str, fields: dict[str, Any]) -> None:
        self._path = os.path.join(directory, "state.json")
        self._retry_at: float | None = None
        self.fields = fields

    def change(self, **fields: Any) -> None:
        """Change some fields and write; a disk that refuses is tried again later."""
        self.fields.update(fields, at=time.time())
        self._write()

    def retry(self) -> None:
        """Write again what could not be written, once a second."""
        if self._retry_at is not None and time.monotonic() >= self._retry_at:
            self._write()

    def _write(self) -> None:
        try:
            write_atomic(self._path, self.fields)
            self._retry_at = None
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS


def fresh(attempt: str, incarnation: str | None, generation: int, old: dict[str, Any]) -> dict[str, Any]:
    """The state of an agent that just began; it keeps the decision of an earlier agent of the same attempt."""
    same = old.get("attempt") == attempt
    return {
        "version": VERSION,
        "phase": "starting",
        "generation": generation,
        "order": generation,
        "attempt": attempt,
        "incarnation": incarnation,
        "agent": os.getpid(),
        "agent_start": processes.start_ticks(os.getpid()),
        "boot_id": processes.boot_id(),
        "child": None,
        "child_start": None,
        "code": None,
        "term": False,
        "hold_until": None,
        "unkillable": [],
        "child_exits": [],
        "decision": old.get("decision") if same else None,
        "digest": old.get("digest") if same else None,
        "at": time.time(),
        "spawned_at": None,
        "exited_at": None,
    }


def write_report(directory: str, fields: dict[str, Any], exit_code: int, last_words: str | None = None) -> None:
    """Leave the end marker, also in a file that outlives the folder. A disk that refuses it changes nothing else."""
    kept = {key: fields[key] for key in REPORTED}
    report = dict(kept, version=VERSION, end=True, exit=exit_code, at=time.time())
    if fields.get("preflight"):
        report["preflight"] = fields["preflight"]
    try:
        write_atomic(os.path.join(directory, "report.json"), report)
    except OSError:
        pass
    if not last_words:
        return
    try:  # not replaced: a container's termination message is a file mounted by itself
        with open(last_words, "w") as file:
            json.dump(report, file, separators=(",", ":"))
    except OSError:
        return


def forget_report(directory: str) -> None:
    """Remove the end marker of an earlier agent: it must not speak for this one."""
    try:
        os.unlink(os.path.join(directory, "report.json"))
    except OSError:
        return


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
