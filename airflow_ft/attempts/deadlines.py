"""The time limit around each call to a backend: a cluster that doesn't answer can't stop the supervisor."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.time_limits import within

T = TypeVar("T")

LOOK_SECONDS = 20.0  # observe, find, read a log
ACT_SECONDS = 60.0  # submit, order
STACKS_SECONDS = 15.0
CANCEL_MARGIN_SECONDS = 30.0  # beyond the grace period
# A task that resumes sooner after its deferral may be taken for a dead one: 2 * [workers] min_heartbeat_interval + 5 s.
QUIET_SECONDS = 15.0  # with Airflow's default of 5 s


def quiet_seconds(min_heartbeat_interval: float) -> float:
    """Return how long a task stays deferred at least: its worker lingers for up to one such interval, and is slow."""
    return 2 * max(0.0, min_heartbeat_interval) + 5.0


async def limited(call: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
    """Await ``call`` for at most ``seconds``. Raises ``UnreachableError`` when it takes longer."""
    try:
        return await within(seconds, call)
    except TimeoutError as error:
        raise UnreachableError(f"{what}: no answer within {seconds:.0f} s") from error
