"""Second signals in the watch: who is asked, when, and what is told about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.attempts.second_signals import SecondSignals
from airflow_ft.backends.base import StackGroup, UnreachableError
from airflow_ft.core.hang import HangConfig, HangDetector, HangVerdict
from airflow_ft.core.vitals import RankVitals

FLOOR = 120.0


class Machine:
    """Two ranks; ``cores`` says how many cores rank 0 uses in each second, once it is silent."""

    def __init__(self, cores: float = 0.0, state: str = "S", broken: bool = False) -> None:
        self.cores, self.state, self.broken = cores, state, broken
        self.second = 0.0
        self.asked = self.read = 0
        self.unseen: list[int] = []  # steps that only a fresh look at the log finds

    async def log_tails(self, ref: Any, limit: int) -> Any:
        self.read += 1
        return self.unseen.pop() if self.unseen else None

    async def vitals(self, ref: Any) -> Sequence[RankVitals]:
        self.asked += 1
        if self.broken:
            raise UnreachableError("no answer")
        busy = RankVitals(rank=0, node="n1", state=self.state, cpu_seconds=self.second * self.cores)
        return [busy, RankVitals(rank=1, node="n1", cpu_seconds=3.0)]


def hang(
    machine: Any, until: float = 400.0, detector: HangDetector | None = None
) -> tuple[float | None, HangVerdict | None, list[str]]:
    """Steps of 0.5 s for a minute, then silence. Returns when it was acted upon, counted from the last step."""
    said: list[str] = []
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    clock = {"at": 0.0}
    desk = SimpleNamespace(
        now=lambda: begin + timedelta(seconds=clock["at"]), say=lambda text, warning=False: said.append(text)
    )
    signals = SecondSignals(machine, None, desk)  # type: ignore[arg-type]
    detector = detector or HangDetector(HangConfig())
    sight: Any = SimpleNamespace(
        verdict=lambda: detector.check(desk.now().timestamp()),
        is_silent=False,
        silence=0.0,
        seconds_left=0.0,
        may_act=True,
        samples=(),
        take_afresh=lambda tails: tails,
    )
    seen: Any = SimpleNamespace(nodes=())

    async def story() -> tuple[float | None, HangVerdict | None]:
        last = 60.5
        for tick in range(int(2 * (last + until))):
            clock["at"] = tick / 2
            if isinstance(machine, Machine):
                machine.second = tick / 2
            if clock["at"] <= last:
                detector.observe(desk.now().timestamp(), tick, "train")
            detector.check(desk.now().timestamp())
            sight.is_silent = detector.silence > detector.threshold() / 2
            sight.silence, sight.seconds_left = detector.silence, detector.threshold() - detector.silence
            verdict = await signals.ask(sight, seen, FLOOR)
            if verdict is not None:
                return clock["at"] - last, verdict
        return None, None

    at, verdict = asyncio.run(story())
    return at, verdict, said


@pytest.mark.story("PRG-10")
def test_idle_ranks_confirm_a_busy_one_is_given_time() -> None:
    at, verdict, said = hang(Machine())
    assert at is not None and at <= 10 * 0.5 + 5
    assert verdict is not None and "all 2 ranks are idle" in verdict.text
    assert said == []
    later, verdict, said = hang(Machine(cores=1.0))
    assert later is not None and 2 * FLOOR <= later <= 2 * FLOOR + 2
    assert len(said) == 1
    assert "rank 0 is busy: 100% of a core" in said[0]
    assert "more time" in said[0]


class SpinningMachine(Machine):
    """Rank 0 burns a core; ``lines`` are where it is at each look."""

    def __init__(self, *functions: str) -> None:
        super().__init__(cores=1.0)
        self.functions = functions
        self.peeks = 0

    async def peek_stacks(self, ref: Any, by_signal: bool) -> Sequence[StackGroup]:
        assert by_signal
        function = self.functions[self.peeks % len(self.functions)]
        self.peeks += 1
        stack = f'Current thread 1:\n  File "train.py", line 44 in {function}\n  File "train.py", line 9 in train'
        return [StackGroup(node="n1", ranks=(0,), pids=(7,), stack=stack)]


@pytest.mark.story("PRG-10")
@pytest.mark.row("P9")
def test_a_rank_that_spins_at_one_place_is_acted_upon_at_once_and_named() -> None:
    at, verdict, _ = hang(SpinningMachine("misbehave"))
    assert at is not None and at <= 10 * 0.5 + 5
    assert verdict is not None and verdict.ranks == (0,)
    assert "rank 0 is spinning in misbehave (train.py:44), the others wait" in verdict.text


@pytest.mark.story("PRG-10")
@pytest.mark.parametrize("functions", [("compile_graph",), ("tokens", "pack", "tokens")])
def test_a_rank_that_compiles_or_moves_on_is_given_time(functions: tuple[str, ...]) -> None:
    machine = SpinningMachine(*functions)
    at, _, _ = hang(machine)
    assert at is not None and at >= 2 * FLOOR
    assert machine.peeks > 3


def test_a_stopped_rank_has_its_own_word() -> None:
    at, verdict, _ = hang(Machine(state="T"))
    assert at is not None and at <= 10 * 0.5 + 5
    assert verdict is not None and (verdict.kind, "stopped by a signal" in verdict.text) == ("stopped", True)


class Blind:
    """A backend that sees logs and nothing else."""

    async def log_tails(self, ref: Any, limit: int) -> None:
        return None


@pytest.mark.parametrize("machine", [Blind(), Machine(broken=True)])
def test_without_signals_silence_has_to_last(machine: object) -> None:
    at, _, said = hang(machine)
    assert at is not None and FLOOR <= at <= FLOOR + 2
    assert len(said) == 1
    assert "Perhaps a hang" in said[0]


def test_in_a_long_silence_processes_are_looked_at_rarely() -> None:
    """A backend may have to ask each of many pods: once a second in half an hour is too often."""
    machine = Machine(cores=1.0)
    detector = HangDetector(HangConfig(quick_seconds=1_790.0))
    hang(machine, until=1_795.0, detector=detector)
    assert machine.asked <= 70


def test_nobody_is_asked_while_training_advances() -> None:
    machine = Machine()
    hang(machine, until=2)
    assert machine.asked == 0


@pytest.mark.story("WAT-05")
def test_before_a_verdict_is_acted_upon_the_log_is_read_afresh() -> None:
    """A stream that went silent (a rotated log) is no training that stands still."""
    machine = Machine()
    machine.unseen = [140]
    _, verdict, said = hang(machine)
    assert (machine.read, verdict is not None) == (2, True), "found once, then nothing newer"
    assert "The log is at step 140" in said[0]
