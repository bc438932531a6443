"""A time limit around an await, that never swallows a cancellation.

``asyncio.wait_for`` does until Python 3.12: if the inner call ends in the same turn of the loop, the cancellation is
lost, and a trigger that Airflow has taken away goes on watching.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Awaitable[T]) -> T:
    """Await ``call`` for at most ``seconds``. Raises ``TimeoutError``; what goes on in ``call`` then is cancelled."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(_look_at_it)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return task.result()


def _look_at_it(task: asyncio.Future[Any]) -> None:
    """Take the exception of a call that nobody waits for any more: asyncio would log it as forgotten."""
    if not task.cancelled():
        task.exception()
