"""What a watch sees in the logs beside progress: the agents' lines about what ranks do."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import LogChunk
from airflow_ft.core.chain import JobRef
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.vitals import gpus

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock:
    """A clock that is set."""

    second = 0.0

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.second)


def look(clock: Clock) -> Sight:
    ref = JobRef(backend="x", name="j", uid="u", chain_id="c", attempt=0, submitted_at=BEGIN)
    info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
    return Sight(WatchOrder(info=info, ref=ref), FaultTolerancePolicy.full(), clock.now)


def read(sight: Sight, source: str, *lines: str) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    sight.take([LogChunk(source=source, data=data)], {})


def vitals(rank: int, io: int = 500, **changes: Any) -> str:
    said = {"rank": rank, "state": "S", "cpu": 3.5, "io": io, "world": 2, "gpu": [100.0, 120.0], **changes}
    return f"ft-agent n0 {json.dumps({'generation': 0, 'ranks': [said], 'event': 'vitals'}, separators=(',', ':'))}"


@pytest.mark.row("M14")
def test_the_agents_lines_are_the_second_signals_of_any_backend() -> None:
    clock = Clock()
    sight = look(clock)
    read(sight, "n1/output", "step=1 loss=2")
    for period in range(7):
        clock.second = 15.0 * period
        read(sight, "n1/output", vitals(0))
        clock.second += 1.0
        read(sight, "n2/output", vitals(1))
    assert [(rank.node, rank.rank) for rank in sight.samples[-1].ranks] == [("n1", 0), ("n2", 1)]
    assert gpus(list(sight.samples)) == "still"
    read(sight, "n1/output", "step=2 loss=2")
    assert not sight.samples, "they are about one silence"


def test_the_agents_lines_are_no_growth_of_the_log() -> None:
    """Else a job that never starts would look alive for as long as its agent is."""
    clock = Clock()
    sight = look(clock)
    verdicts = []
    for clock.second in range(0, 3_700, 10):  # type: ignore[assignment]
        read(sight, "n1/output", vitals(0))
        verdicts.append(sight.verdict())
    assert verdicts[100] is None
    assert verdicts[-1] is not None and verdicts[-1].kind == "never_started"


@pytest.mark.parametrize("line", ['ft-agent n0 {"event":"vitals"', 'ft-agent n0 {"ranks":3,"event":"vitals"}'])
def test_broken_lines_break_nothing(line: str) -> None:
    sight = look(Clock())
    read(sight, "n1/output", line)
    assert all(not sample.ranks for sample in sight.samples)


def test_lines_read_together_came_at_one_moment() -> None:
    """A look each half second at steps of 0.1 s: the rhythm is that of the steps, not of the looks."""
    clock = Clock()
    sight = look(clock)
    for turn in range(14):
        clock.second = 5 + turn / 2
        read(sight, "n1/output", *(f"step={5 * turn + n} loss=2" for n in range(5)))
        sight.verdict()
    for clock.second in (clock.second + at / 2 for at in range(1, 40)):
        if sight.verdict() is not None:
            break
    assert clock.second - (5 + 13 / 2) <= 10 * 0.1 + 5
