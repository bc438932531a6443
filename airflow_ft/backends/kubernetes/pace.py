"""The pace of our calls: an API server is shared, and a fault of a big job must not be felt by everybody else on it.

At most so many calls begin in any second. What comes sooner waits its turn, first come, first served; a burst within
the allowance waits for nothing. (client-go's clients do the same; story UIO-06 names the figure.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

CALLS_PER_SECOND = 20


class Pace:
    """The calls of one event loop to one API server."""

    def __init__(
        self,
        calls_per_second: int = CALLS_PER_SECOND,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._most = calls_per_second
        self._clock, self._sleep = clock, sleep
        self._begun: deque[float] = deque(maxlen=calls_per_second)
        self._turn = asyncio.Lock()  # fair: it is given in the order in which it was asked for

    async def turn(self) -> None:
        """Return when a call may begin."""
        clock = self._clock or asyncio.get_running_loop().time
        async with self._turn:
            while len(self._begun) == self._most and (wait := self._begun[0] + 1.0 - clock()) > 0:
                await self._sleep(wait)
            self._begun.append(clock())
