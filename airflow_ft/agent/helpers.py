"""The supervisor's helpers, forked processes that may crash or hang without hurting anybody: stack dumps and vitals.

Fed by the orders `stacks-N`; the supervisor calls `look` at every turn of its loop and tells of every process that it
reaped. One dump at a time; one that hangs is killed.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any, Callable

from . import orders, stacks, state, vitals

# py-spy has 5 s, the signal 3 s, the rest is reading of /proc; a helper that needs longer than this hangs.
MAX_SECONDS = 60.0


class DumpHelper:
    """Starts what was ordered, once, and remembers the number it has come to."""

    def __init__(self, directory: str, lock: int | None) -> None:
        self._directory = directory
        self._lock = lock
        self._done = orders.highest(directory, stacks=True)  # an old folder's dumps aren't done again
        self._pid: int | None = None
        self._until = 0.0

    def look(self, fits: dict[str, Any]) -> dict[str, Any] | None:
        """Start the dump that was ordered, if any; returns its order. End one that hangs."""
        if self._pid is not None:
            _end_if_late(self._pid, self._until)
            return None
        order = orders.pending(self._directory, self._done, stacks=True)
        if order is None or not orders.fits(order, fits):
            return None
        self._done = order["generation"]
        self._until = time.monotonic() + MAX_SECONDS
        self._pid = _forked(self._lock, lambda: self._dump(order))
        return order

    def reaped(self, pid: int) -> None:
        """A child of the agent has ended; perhaps it was ours."""
        if pid == self._pid:
            self._pid = None

    def _dump(self, order: dict[str, Any]) -> None:
        note = order.get("note")
        by_signal = not (isinstance(note, dict) and note.get("signal") is False)
        stacks.dump(self._directory, by_signal=by_signal, number=order["generation"])


class VitalsHelper:
    """Takes the vitals of the running command each so many seconds; 0 is never."""

    def __init__(self, directory: str, lock: int | None, seconds: float) -> None:
        self._path = os.path.join(directory, "vitals.json")
        self._directory = directory
        self._lock = lock
        self._seconds = seconds
        self._due = time.monotonic() + seconds
        self._pid: int | None = None
        self._until = 0.0
        self._ready = False

    def look(self, running: bool) -> dict[str, Any] | None:
        """Begin to take vitals when they are due; returns those that were taken since the last call."""
        if self._pid is not None:
            _end_if_late(self._pid, self._until)
            return None
        if self._ready:
            self._ready = False
            return state.read_json(self._path)
        now = time.monotonic()
        if running and self._seconds > 0 and now >= self._due:
            self._due, self._until = now + self._seconds, now + MAX_SECONDS
            self._pid = _forked(self._lock, self._take)
        return None

    def reaped(self, pid: int) -> None:
        """A child of the agent has ended; perhaps it was ours."""
        if pid == self._pid:
            self._pid, self._ready = None, True

    def _take(self) -> None:
        with suppress(OSError):
            os.unlink(self._path)  # an old answer must not pass for a new one
        state.write_atomic(self._path, vitals.read(self._directory))


def _forked(lock: int | None, work: Callable[[], None]) -> int:
    """Do ``work`` in a child; returns its pid. `lock` is the descriptor that keeps the folder taken."""
    pid = os.fork()
    if pid:
        return pid
    # The child must never come back into the supervisor's code, and must not keep the folder locked.
    try:
        if lock is not None:
            os.close(lock)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        work()
    finally:
        os._exit(0)


def _end_if_late(pid: int, until: float) -> None:
    if time.monotonic() > until:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
