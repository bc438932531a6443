"""Notice that this very process was frozen: SIGSTOP, a suspended machine, a starved event loop.

A watcher that was frozen acts in the instant it wakes, on what it saw before; meanwhile another one may have taken
over. Airflow has no check for that, so the watcher asks its pulse right before it acts, and looks again if it jumped.
"""

from __future__ import annotations

import asyncio

BEAT_SECONDS = 0.5
JUMP_SECONDS = 5.0  # measured: a triggerer's loop under load is late by up to 2 s; a twin takes over after 15 s or more


class Pulse:
    """Beats on the event loop. ``jumped`` tells (and forgets) whether a beat was missed for too long."""

    def __init__(self) -> None:
        self._last = 0.0
        self._jumped = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Pulse:
        self._last = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._look()

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        self._jumped = self._jumped or now - self._last > JUMP_SECONDS
        self._last = now

    def jumped(self) -> bool:
        """Return whether the loop stood still since the last call."""
        self._look()
        jumped, self._jumped = self._jumped, False
        return jumped
