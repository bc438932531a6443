"""Processes as /proc shows them: who lives, who descends from whom, and how to end all of them.

Used by the supervisor (its own tree), by `orders` (does the agent live?), by `stacks`, and by the local backend, which
has to find and end the tree of an agent that died. A process is named by pid *and* start time, since pids are used
again. Trees are walked by parent, not by process group: torchrun gives each rank a session of its own, and ranks
survive its SIGKILL. Where /proc can't be read the answers are "not there" and empty lists, never an exception.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Iterable, NamedTuple

# Still there this long after SIGKILL: uninterruptible sleep (a dead GPU, a dead NFS server). Kills take < 0.1 s.
KILL_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36


class Stat(NamedTuple):
    """What we read of /proc/PID/stat."""

    parent: int
    start_ticks: int
    dead: bool


def stat(pid: int) -> Stat | None:
    """State of one process; None if there is none.

    A zombie leader whose threads still run (its main thread ended first) isn't dead: it holds its memory and its GPU.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        gone = fields[0] in (b"X", b"x") or (fields[0] == b"Z" and int(fields[17]) <= 1)
        return Stat(int(fields[1]), int(fields[19]), gone)
    except (OSError, IndexError, ValueError, TypeError):  # TypeError: the pid comes from a broken file
        return None


def start_ticks(pid: int) -> int | None:
    """Start time of the process in clock ticks since boot; None if it doesn't exist."""
    found = stat(pid)
    return found.start_ticks if found else None


def is_alive(pid: int | None, started: int | None) -> bool:
    """Whether the process that began at `started` still lives (a zombie doesn't; a reused pid is another process)."""
    found = stat(pid) if pid else None
    return found is not None and not found.dead and found.start_ticks == started


def boot_id() -> str | None:
    """The kernel's id of this boot: start times of another boot say nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """All living descendants of a process, parents before children; zombies are walked through, not listed."""
    return _below([pid])


def kill_tree(pids: Iterable[int], seconds: float = KILL_SECONDS) -> list[int]:
    """End these processes and all their descendants; returns the ones that are still there after `seconds`.

    For callers that are *not* the parent of the tree: killing a parent hands its children to someone else, and what is
    forked in that moment would be lost. So everything is stopped first, until a look finds nobody new, then killed.
    """
    end = time.monotonic() + seconds
    known: dict[int, int] = {}
    roots = [pid for pid in pids if pid > 1 and pid != os.getpid()]
    while _note_new(roots, known) and time.monotonic() < end:
        for pid, started in known.items():
            send(pid, started, signal.SIGSTOP)
    while True:
        left = [pid for pid, started in known.items() if is_alive(pid, started)]
        if not left or time.monotonic() > end:
            return left
        for pid in left:
            send(pid, known[pid], signal.SIGKILL)
        time.sleep(0.02)


def send(pid: int, started: int | None, number: int) -> bool:
    """Send a signal to exactly this process; False if it is gone or not ours."""
    if not is_alive(pid, started):
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def with_marker(name: str, value: str) -> list[int]:
    """Living processes, without the caller, that were started with NAME=VALUE in their environment."""
    wanted = os.fsencode("%s=%s" % (name, value))
    found = []
    for pid in _all_pids():
        if pid != os.getpid() and wanted in _environ(pid):
            known = stat(pid)
            if known and not known.dead:
                found.append(pid)
    return found


def variable(pid: int, name: str) -> str | None:
    """One variable of the environment that a process was started with; None if unset or not readable."""
    prefix = os.fsencode(name) + b"="
    for entry in _environ(pid):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def _note_new(roots: list[int], known: dict[int, int]) -> bool:
    """Add roots and descendants that aren't known yet; True if there was one."""
    before = len(known)
    alive = [pid for pid, started in known.items() if is_alive(pid, started)]
    for pid in roots + _below(roots + alive):
        found = stat(pid)
        if found and not found.dead and pid not in known and pid != os.getpid():
            known[pid] = found.start_ticks
    return len(known) > before


def _below(roots: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    alive = set()
    for other in _all_pids():
        found = stat(other)
        if found:
            children.setdefault(found.parent, []).append(other)
            if not found.dead:
                alive.add(other)
    result, todo, seen = [], list(roots), set(roots)
    while todo:
        for child in children.get(todo.pop(0), ()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
                if child in alive:
                    result.append(child)
    return result


def _environ(pid: int) -> list[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def oom_kills() -> int | None:
    """How often the kernel has killed something in this container for lack of memory; None if it can't be read."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                fields = dict(line.split(None, 1) for line in file if " " in line)
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return None


def become_subreaper() -> None:
    """Orphans of the tree come to us, also when we aren't PID 1 (srun, local)."""
    with suppress(ImportError, OSError, AttributeError):  # a Python without libffi: we reap what is ours by birth
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
