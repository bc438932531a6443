"""200 watches on one event loop, as in a triggerer: one broken watch breaks one watch (story LIF-12). Real time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from statistics import quantiles
from typing import Any, ClassVar

import pytest

from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.base import Capability, Cursors, JobState, LogChunk, NodeReport, Observation
from airflow_ft.core.chain import JobRef
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.diagnosis.signature_files import load_rules

SECONDS = 12.0
MEGABYTES = 50
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Places:
    """A backend of many jobs: all healthy but ``hangs`` (never answers), ``broken`` (nonsense) and ``chatty``."""

    name: ClassVar[str] = "places"
    can: ClassVar[frozenset[Capability]] = frozenset()
    poll_seconds: ClassVar[float] = 0.5

    def __init__(self) -> None:
        self.looked: dict[str, list[float]] = {}
        self._steps = 0

    async def observe(self, ref: JobRef) -> Observation:
        self.looked.setdefault(ref.name, []).append(asyncio.get_running_loop().time())
        if ref.name == "hangs":
            await asyncio.sleep(1e9)
        if ref.name == "broken":
            raise ValueError("no JSON")
        node = NodeReport(node="n1", state=JobState.RUNNING)
        return Observation(state=JobState.RUNNING, at=datetime.now(timezone.utc), nodes=(node,))

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        at = cursors.get("n1/output", 0)
        self._steps += 1
        size = min(limit, MEGABYTES * 1_000_000 - at) if ref.name == "chatty" else 0
        line = f"step {self._steps}/100000 loss 1.0\n".encode()
        data = b"a line of a chatty training that says nothing\n" * (size // 46) or line
        return [LogChunk(source="n1/output", node="n1", data=data)], {"n1/output": at + len(data)}


class QuietDesk:
    """A desk that takes everything and keeps nothing."""

    def say(self, text: str, *, warning: bool = False) -> None:
        return

    async def publish(self, key: str, value: Any) -> None:
        await asyncio.sleep(0.03)

    async def recall(self, key: str) -> Any:
        return None

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _watch(name: str, places: Places) -> Watch:
    ref = JobRef(backend="places", name=name, uid=name, chain_id=name, attempt=0, submitted_at=NOW)
    info = TryInfo(dag_id="d", run_id="r", task_id=name, try_number=1, max_tries=1, ti_id=name)
    order = WatchOrder(info=info, ref=ref)
    return Watch(order, FaultTolerancePolicy.full(), places, QuietDesk(), load_rules())  # type: ignore[arg-type]


async def _ticks(busy: list[float]) -> None:
    """Note how much processor time this thread takes between two turns of a task that wants one every 20 ms.

    Processor time, not the clock on the wall: what other processes take from this machine is not our doing.
    """
    while True:
        before = time.thread_time()
        await asyncio.sleep(0.02)
        busy.append(time.thread_time() - before)


@pytest.fixture
def _own_garbage_only() -> Iterator[None]:
    """Keep what other tests left in memory out of the measurement: one collection of it all takes 0.3 s and more."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.story("LIF-12")
@pytest.mark.usefixtures("_own_garbage_only")
def test_one_broken_watch_among_two_hundred_breaks_only_itself() -> None:
    """A backend that hangs, one that answers nonsense and 50 MB of log delay nobody else."""
    places = Places()
    busy: list[float] = []
    names = [*(f"job-{number}" for number in range(197)), "hangs", "broken", "chatty"]

    async def run() -> None:
        tasks = [asyncio.create_task(_watch(name, places).watch()) for name in names]
        ticker = asyncio.create_task(_ticks(busy))
        await asyncio.sleep(SECONDS)
        assert not [task for task in tasks if task.done()], "a watch has ended, although no job has"
        for task in [*tasks, ticker]:
            task.cancel()
        await asyncio.gather(*tasks, ticker, return_exceptions=True)

    asyncio.run(run())
    healthy = [places.looked[name] for name in names[:197]]
    between = [later - earlier for looks in healthy for earlier, later in pairwise(looks)]
    assert min(len(looks) for looks in healthy) >= 2
    assert quantiles(between, n=100)[98] < 5.0 + Places.poll_seconds  # measured: 0.8 s with the machine to itself
    # Measured: 0.03 s. A megabyte of a log at a time is what a watch may read before others get their turn.
    assert max(busy) < 0.2
