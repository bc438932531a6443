"""Healthy runs of random shape, speed and length: the detector alone, watched twice a second, never alarms.

Each kind is a thing that looks like a hang. What is told by nothing (a pause at a step that is not round, without a
word, far above what such steps take) looks like a hang of ten steps for everybody, and is the matter of second signals.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_ft.core.hang import HangDetector
from airflow_ft.core.replay import Observed, alarms, detected_after

SEEDS = range(3)
SECONDS, MOST_STEPS = 2_500, 2_000


class Run:
    """A training whose steps take 0.05 to 30 s, each a little longer or shorter than the usual one."""

    def __init__(self, seed: int, slowest: float = 30.0) -> None:
        self.chance = random.Random(seed)
        self.usual = 0.05 * (slowest / 0.05) ** self.chance.random()
        self.at = self.chance.uniform(5, 400)
        self.step = 0
        self.seen: list[Observed] = []

    def steps(self, count: int, usual: float | None = None) -> None:
        for _ in range(count):
            self.at += (usual or self.usual) * self.chance.lognormvariate(0, 0.12)
            self.step += 1
            self.seen.append((self.at, self.step, "train"))

    def phase(self, name: str, seconds: float) -> None:
        self.seen.append((self.at + 0.01, self.step, name))
        self.at += seconds

    def many(self) -> int:
        return max(60, min(MOST_STEPS, round(SECONDS / self.usual)))

    def between(self, least: float, most: float) -> float:
        return self.chance.uniform(least, most)


def silent_checkpoints(run: Run) -> None:
    every, length = run.chance.choice([50, 100, 200, 250, 500, 1000]), run.between(20, 60)
    for _ in range(max(1, run.many() // every)):
        run.steps(every)
        run.at += length * run.between(0.8, 1.2)


def announced_checkpoints(run: Run) -> None:
    every, length = run.chance.choice([37, 100, 123, 500]), run.between(20, 600)
    for _ in range(4):
        run.steps(every)
        run.phase("checkpoint", length * run.between(0.7, 1.5))


def first_evaluation_after_an_hour(run: Run) -> None:
    run.steps(300)
    run.at += 3_600 - 300 * run.usual if 300 * run.usual < 3_500 else 0
    run.seen = [(run.at - (300 - n) * run.usual, n + 1, "train") for n in range(300)]
    run.phase("eval", run.between(60, 1_500))
    run.steps(100)


def recompilation(run: Run) -> None:
    run.steps(run.chance.randint(100, 800))
    run.phase("compile", run.between(30, 900))
    run.steps(100)


def slow_first_epoch(run: Run) -> None:
    epoch = run.chance.choice([80, 137, 391])
    run.steps(epoch, min(run.usual * run.between(3, 30), 60))
    run.steps(2 * epoch)


def loader_restarts(run: Run) -> None:
    epoch, length = run.chance.choice([50, 97, 391, 625]), run.between(5, 60)
    for _ in range(4):
        run.steps(epoch)
        run.seen[-1] = (run.at, run.step, "epoch")
        run.at += length * run.between(0.6, 1.4)


def flushed_each_thirty_seconds(run: Run) -> None:
    run.usual = min(run.usual, 8.0)
    run.steps(run.many())
    run.seen = [(30.0 * (at // 30 + 1) + 1e-5 * (step % 1_000), step, phase) for at, step, phase in run.seen]


def flushed_each_4_kilobytes(run: Run) -> None:
    run.usual = min(run.usual, 5.0)
    run.steps(run.many())
    size = run.chance.choice([30, 50, 73])
    ends = {step // size: at for at, step, _ in run.seen}
    run.seen = [(ends[step // size], step, phase) for _, step, phase in run.seen]


def gradually_slower(run: Run) -> None:
    run.usual = min(run.usual, 6.0)
    growth, usual = run.between(1.0005, 1.003), run.usual
    for n in range(1_200):
        run.steps(1, min(usual * growth**n, 60))


def steps_of_two_speeds(run: Run) -> None:
    slow, each = run.between(2, 9), run.chance.choice([2, 4, 8])
    for n in range(run.many() // 2):
        run.steps(1, run.usual * (slow if n % each == 0 else 1))


def garbage_collection(run: Run) -> None:
    each = run.chance.choice([50, 100, 333])
    for _ in range(max(1, run.many() // each)):
        run.steps(each)
        run.at += run.between(1, 4) * max(1.0, run.usual)


def printed_rarely_with_evaluations(run: Run) -> None:
    each, evaluation = run.chance.choice([10, 50, 100]), run.chance.choice([5, 10, 20])
    run.usual = min(run.usual * each, 250)
    for n in range(1, max(40, run.many())):
        run.steps(1)
        run.at += run.between(10, 120) if n % evaluation == 0 else 0
    run.seen = [(at, each * step, phase) for at, step, phase in run.seen]


def restart_from_a_checkpoint(run: Run) -> None:
    run.steps(run.chance.randint(100, 600))
    run.step -= run.chance.randint(10, 90)
    run.phase("startup", run.between(20, 600))
    run.steps(200)


def profiler(run: Run) -> None:
    run.steps(run.chance.randint(60, 300))
    run.steps(run.chance.randint(2, 8), min(run.usual * run.between(5, 9), 30))
    run.steps(200)


KINDS: tuple[Callable[[Run], None], ...] = (
    silent_checkpoints,
    announced_checkpoints,
    first_evaluation_after_an_hour,
    recompilation,
    slow_first_epoch,
    loader_restarts,
    flushed_each_thirty_seconds,
    flushed_each_4_kilobytes,
    gradually_slower,
    steps_of_two_speeds,
    garbage_collection,
    printed_rarely_with_evaluations,
    restart_from_a_checkpoint,
    profiler,
)


@pytest.mark.row("M14")
@pytest.mark.row("P8")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_random_healthy_runs_have_no_alarm(kind: Callable[[Run], None]) -> None:
    for seed in SEEDS:
        run = Run(seed)
        kind(run)
        assert (seed, [alarm.text for alarm in alarms(HangDetector(), run.seen)]) == (seed, [])


@pytest.mark.row("M14")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_suspended_machine_is_no_silence_at_any_speed(seed: int) -> None:
    """Ours and theirs sleep alike: nobody called the detector meanwhile."""
    run, detector = Run(seed), HangDetector()
    for _ in range(3):
        run.steps(run.chance.randint(60, 300))
        run.at += run.between(60, 9_000)
    for at, step, phase in run.seen:
        detector.observe(at, step, phase)
        assert detector.check(at) is None


@pytest.mark.row("P8")
@pytest.mark.parametrize("seed", range(20))
def test_a_cut_in_steady_training_is_seen_within_ten_steps_and_five_seconds(seed: int) -> None:
    run, detector = Run(seed, slowest=1.9), HangDetector()
    run.steps(run.chance.randint(60, 900))
    while run.step % 50 in (0, 49):  # behind a round step an evaluation may begin without a word
        run.steps(1)
    assert alarms(detector, run.seen) == []
    after = detected_after(detector, run.at, run.at, 600.0)
    assert after is not None
    assert after <= 10 * 1.2 * run.usual + 5
