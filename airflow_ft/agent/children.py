"""The early sign: a direct child of the command (a rank) is gone while the command itself still lives.

torchrun needs a second or more from a rank's death to its own end. The supervisor shows what is seen here to people and
to measurements; no action follows from it, since a command may well end children of its own.
"""

from __future__ import annotations

import os
import time

from . import processes

# What lived shorter is start-up noise: shells that look for a version, compilers, lscpu.
MIN_LIFE_SECONDS = 1.0
# The look is made ten times a second; a command with more children than this isn't a launcher of ranks.
MAX_CHILDREN = 256
MAX_THREADS = 64


class ChildWatch:
    """Remembers the command's children from look to look."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def look(self, parent: int) -> list[int]:
        """The children that lived for a second and are gone since the last look."""
        now = time.monotonic()
        present = _children(parent)
        gone = []
        for pid, (started, since) in list(self._seen.items()):
            # Out of the list isn't dead yet: a child of a thread that ended moves to another one between two reads.
            if not processes.is_alive(pid, started):
                del self._seen[pid]
                if now - since >= MIN_LIFE_SECONDS:
                    gone.append(pid)
        for pid in present:
            if pid not in self._seen:
                found = processes.stat(pid)
                if found and not found.dead:
                    self._seen[pid] = (found.start_ticks, now)
        return gone

    def forget(self) -> None:
        """Begin anew: the command was started again."""
        self._seen.clear()


def _children(parent: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % parent)[:MAX_THREADS]:
            with open("/proc/%d/task/%s/children" % (parent, thread)) as file:
                found.extend(int(pid) for pid in file.read().split())
    except (OSError, ValueError):  # ended meanwhile, or a kernel without that file
        return found[:MAX_CHILDREN]
    return found[:MAX_CHILDREN]
