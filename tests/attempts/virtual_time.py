"""An event loop whose waiting takes no time: timers fire as soon as nothing else is left to do.

While a thread works for the loop (``asyncio.to_thread``) the clock stands still, so that nobody's time limit expires
because the machine that runs the tests is slow.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at ``seconds`` of its own clock."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.in_threads = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.seconds

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self.in_threads -= 1


class _JumpingSelector(selectors.BaseSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self._real = loop, selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[Any]:
        if self._loop.in_threads:
            return self._real.select(None if timeout is None or timeout > 0 else 0)
        events = self._real.select(0)
        if not events and timeout is None:
            raise RuntimeError("nothing will ever happen again: something waits for ever")
        if not events and timeout is not None and timeout > 0:
            self._loop.seconds += timeout
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def run_on(loop: VirtualLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, then end what it left behind, as a process does."""
    try:
        return loop.run_until_complete(coroutine)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.in_threads += 1  # from here on it waits for real
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
