"""The pulse notices that this very process stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from airflow_ft.attempts.pulse import JUMP_SECONDS, Pulse
from tests.attempts import virtual_time


def run(story: Coroutine[Any, Any, None]) -> None:
    virtual_time.run_on(virtual_time.VirtualLoop(), story)


def freeze(seconds: float) -> None:
    """The loop stands still: SIGSTOP, a suspended machine."""
    asyncio.get_running_loop().seconds += seconds  # type: ignore[attr-defined]


def test_waiting_long_is_no_jump() -> None:
    async def story() -> None:
        async with Pulse() as pulse:
            await asyncio.sleep(3600)
            assert not pulse.jumped()

    run(story())


def test_a_jump_is_told_once() -> None:
    async def story() -> None:
        async with Pulse() as pulse:
            freeze(JUMP_SECONDS + 1)
            assert pulse.jumped()
            assert not pulse.jumped()

    run(story())


def test_a_jump_is_remembered_until_it_is_asked_for() -> None:
    async def story() -> None:
        async with Pulse() as pulse:
            freeze(JUMP_SECONDS + 1)
            await asyncio.sleep(60)
            assert pulse.jumped()

    run(story())


def test_a_loop_that_is_only_late_has_not_jumped() -> None:
    async def story() -> None:
        async with Pulse() as pulse:
            for _ in range(10):
                freeze(2.0)
                await asyncio.sleep(1.0)
            assert not pulse.jumped()

    run(story())
