"""A system that is played by coroutines: in a thread with an event loop of its own, beside the test that asks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import Self


class Beside:
    """What ``_begin`` has begun plays until ``_end``."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Be there."""
        self._thread.start()
        self._run(self._begin())
        try:
            yield self
        finally:
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _begin(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError
