"""What a watch sees in the logs beside progress: the agents' lines about what ranks do."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import LogChunk, LogTail
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


def test_pods_that_share_a_node_are_told_apart_and_a_rank_that_was_placed_anew_counts_once() -> None:
    """Else one rank of each node would look like the only one, and the others as if they had ended."""
    clock = Clock()
    sight = look(clock)
    read(sight, "n1/pod-0", vitals(0))
    read(sight, "n1/pod-1", vitals(1, state="T"))
    assert [rank.rank for rank in sight.samples[-1].ranks] == [0, 1]
    clock.second = 15.0
    read(sight, "n2/pod-1", vitals(1))
    assert sorted((rank.rank, rank.node, rank.state) for rank in sight.samples[-1].ranks) == [
        (0, "n1", "S"),
        (1, "n2", "S"),
    ]


@pytest.mark.story("PRG-07")
def test_numbered_parts_of_a_set_up_are_no_rhythm_and_steps_without_a_loss_are_one() -> None:
    """The first are given the start-up clock; of the second the rhythm is learned from the first one on."""
    clock = Clock()
    sight = look(clock)
    for clock.second in range(5):  # type: ignore[assignment]
        read(sight, "n1/output", f"Step {clock.second}/5: wrap a part of the model")
    for clock.second in range(5, 30_000, 50):  # type: ignore[assignment]
        read(sight, "n1/output", f"shard {clock.second} is done")
        assert sight.verdict() is None or clock.second > 4 * 3_600
    clock.second, sight = 0.0, look(clock)
    for clock.second in range(18):  # type: ignore[assignment]
        read(sight, "n1/output", f"step {clock.second} done")
        sight.verdict()
    clock.second += 3 + 10 + 1
    verdict = sight.verdict()
    assert verdict is not None and verdict.last_step == 17


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


@pytest.mark.story("WAT-05")
def test_a_step_that_only_a_fresh_look_finds_ends_the_silence_once() -> None:
    clock = Clock()
    sight = look(clock)
    for clock.second in range(40):  # type: ignore[assignment]
        read(sight, "n1/output", f"step={int(clock.second)} loss=2")
    for clock.second in range(40, 60):  # type: ignore[assignment]
        verdict = sight.verdict()
    assert verdict is not None
    tails = [LogTail(source="n1/output", data=b"step=58 loss=2\nstep=59 loss=2\n")]
    assert sight.take_afresh(tails) == 59
    assert sight.verdict() is None
    assert sight.take_afresh(tails) is None
    assert sight.take_afresh([LogTail(source="n1/output", data=b"step=12 loss=2\n")]) is None


@pytest.mark.story("WAT-07")
@pytest.mark.row("P8")
def test_bars_without_a_line_end_are_progress_while_they_run() -> None:
    """Ten states a second for five minutes, and not one newline: a step at each look, and nothing that grows."""
    clock = Clock()
    sight = look(clock)
    last, sizes = None, []
    for turn in range(600):
        clock.second = turn / 2
        bars = "".join(f"\r  1%|#   | {5 * turn + n}/90000 [00:10<14:00,  9.9it/s, loss=2.3]" for n in range(1, 6))
        sight.take([LogChunk(source="n1/output", data=bars.encode())], {"n1/output": 100 * turn})
        assert sight.verdict() is None
        assert turn < 2 or sight.progress.step != last
        last = sight.progress.step
        sizes.append(len(str(sight.to_state())))
    assert last == 2_999
    assert max(sizes[100:]) < 1.2 * sizes[100] + 500


def agent(event: str, generation: int) -> str:
    return f"ft-agent n0 {json.dumps({'generation': generation, 'event': event}, separators=(',', ':'))}"


@pytest.mark.story("PRG-05")
@pytest.mark.parametrize("saved", [False, True], ids=["same-watch", "taken-up"])
def test_the_last_words_of_one_node_are_not_the_first_of_the_next_generation(saved: bool) -> None:
    """Two nodes never begin anew in the same instant, and their logs are read one after the other."""
    clock = Clock()
    sight = look(clock)
    read(sight, "n1/output", agent("start", 0), "step=8 loss=2")
    read(sight, "n2/output", agent("start", 0))
    sight.expected = 1
    read(sight, "n2/output", agent("exit", 0), agent("restart", 0), agent("start", 1))
    if saved:
        state, sight = sight.to_state(), look(clock)
        sight.take_up(state)
    clock.second = 1.0
    read(sight, "n1/output", "step=9 loss=2")
    clock.second = 2.0
    read(sight, "n1/output", agent("exit", 0), agent("restart", 0), agent("start", 1), "step=6 loss=2", "step=7 loss=2")
    assert sight.generation == 1
    assert sight.foreign_restarts == 0, "nobody else has restarted anything"
    assert (sight.progress.first_step, sight.progress.step) == (6, 7)


@pytest.mark.story("PRG-05")
def test_a_log_without_an_agent_and_a_new_one_are_never_behind() -> None:
    clock = Clock()
    sight = look(clock)
    read(sight, "n1/output", agent("start", 0))
    read(sight, "n2/side", "step=3 loss=2")
    sight.expected = 1
    read(sight, "n1/output", agent("start", 1))
    read(sight, "n2/side", "step=5 loss=2")
    assert sight.progress.step == 5
    read(sight, "n3/replaced", agent("start", 0), *(f"step={step} loss=2" for step in range(6, 12)))
    assert sight.progress.step == 11
