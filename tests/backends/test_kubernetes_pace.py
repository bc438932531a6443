"""The pace of calls to an API server, on a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from airflow_ft.backends.kubernetes.pace import Pace


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        await asyncio.sleep(0)


def begun(calls: int, per_second: int) -> list[float]:
    """When each of so many calls, all wanted at once, may begin."""

    async def story() -> list[float]:
        clock = Clock()
        pace = Pace(per_second, clock=clock, sleep=clock.sleep)

        async def call() -> float:
            await pace.turn()
            return clock.now

        return await asyncio.gather(*(call() for _ in range(calls)))

    return asyncio.run(story())


@pytest.mark.story("UIO-06")
def test_no_second_sees_more_calls_than_allowed_and_none_is_wasted() -> None:
    times = begun(1056, 20)
    assert times == sorted(times), "first come, first served"
    assert all(later - first >= 1.0 for first, later in zip(times, times[20:], strict=False))
    assert times[-1] < 60, "what 512 pods need fits into a minute"


def test_a_burst_within_the_allowance_waits_for_nothing() -> None:
    assert begun(20, 20) == [0.0] * 20


def test_who_gives_up_waiting_takes_nobodys_turn() -> None:
    async def story() -> None:
        pace = Pace(1)
        await pace.turn()
        waiting = asyncio.create_task(pace.turn())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(pace.turn(), 60)

    asyncio.run(story())
