"""Healthy things that look like hangs, and hangs that look healthy: the detector alone, watched each second."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from airflow_ft.core.hang import HangConfig, HangDetector
from airflow_ft.core.replay import Observed, alarms

CHANCE = random.Random(1)
Event = tuple[float, int | None, str | None]


def steps(start: float, first: int, count: int, seconds: float | Callable[[int], float]) -> list[Observed]:
    at, found = start, []
    for n in range(first, first + count):
        at += seconds(n) if callable(seconds) else seconds
        found.append((at, n, "train"))
    return found


def silent_pause(every: int, pause: float, seconds: float = 0.5) -> list[Observed]:
    return steps(30, 1, 4_000, lambda n: pause if n % every == 1 and n > 1 else seconds)


def announced(phase: str, pause: float, after: int = 200, seconds: float = 0.5) -> list[Observed]:
    before = steps(30, 1, after, seconds)
    end = before[-1][0]
    return [*before, (end + 0.1, after, phase), *steps(end + pause, after + 1, 300, seconds)]


def bursts() -> list[Observed]:
    chance, at, n, found = random.Random(3), 30.0, 0, []
    for _ in range(200):
        for _ in range(chance.randint(1, 18)):
            at, n = at + 0.1 * chance.lognormvariate(0, 0.1), n + 1
            found.append((at, n, "train"))
        at += chance.uniform(4, 25)
    return found


HEALTHY = {
    "a checkpoint of 60 s that is announced": announced("checkpoint", 60),
    "a checkpoint of 60 s that nobody announces, each 100 steps": silent_pause(100, 60),
    "the same, each 500 steps": silent_pause(500, 60),
    "the first evaluation after an hour": announced("eval", 900, after=7_200),
    "the first evaluation after an hour, without a word": silent_pause(3_000, 400, seconds=1.1),
    "the same, at another round step": steps(30, 1, 3_700, lambda n: 400 if n == 3_601 else 1.0),
    "a recompilation that is announced": announced("compile", 180),
    "a recompilation at slow steps, without a word": steps(60, 1, 900, lambda n: 80 if n == 437 else 3),
    "a slow first epoch": steps(60, 1, 2_000, lambda n: 8.0 if n < 400 else 0.3),
    "compilation in the first steps": steps(60, 1, 500, lambda n: 300 if n in (2, 3) else 0.2),
    "a loader that starts again each 391 steps, said by the epoch": [
        event
        for epoch in range(6)
        for start in [60 + epoch * 150.0]
        for event in [*steps(start, 391 * epoch + 1, 391, 0.3), (start + 118, 391 * (epoch + 1), "epoch")]
    ],
    "a log flushed each 30 s": [(60 + n * 30 + k * 0.01, n * 40 + k, "train") for n in range(60) for k in range(40)],
    "a log flushed each 30 s, seen at once": [(60 + n * 30, n * 40, "train") for n in range(90)],
    "a burst of validation lines": [
        event
        for n in range(12)
        for start in [60 + n * 400.0]
        for event in [*steps(start, n * 1_000 + 7, 25, 14.6), *steps(start + 366, n * 1_000 + 500, 64, 0.14)]
    ],
    "a step that takes eight times as long": steps(30, 1, 3_000, lambda n: 1.9 if n % 211 == 13 else 0.23),
    "a run that becomes slower": steps(30, 1, 3_000, lambda n: 0.3 * 1.002**n),
    "sequences that become twice as long, four times": steps(30, 1, 4_000, lambda n: 0.2 * 2 ** (n // 1_000)),
    "sequences eight times as long at once": steps(30, 1, 2_000, lambda n: 1.5 if n < 1_000 else 12.0),
    "evaluations of many lengths, each 100 steps": steps(
        30, 1, 3_000, lambda n: 20 + 70 * CHANCE.random() if n % 100 == 1 and n > 1 else 0.5
    ),
    "evaluations that grow": steps(30, 1, 5_000, lambda n: 10 + n / 50 if n % 250 == 1 and n > 1 else 0.4),
    "a garbage collection each 333 steps": steps(30, 1, 3_000, lambda n: 5 if n % 333 == 0 else 0.3),
    "steps of two speeds": steps(30, 1, 3_000, lambda n: 0.2 if n % 2 else 1.8),
    "steps with a heavy tail": steps(30, 1, 5_000, lambda n: 0.3 * min(CHANCE.paretovariate(1.8), 15)),
    "each 100th step is printed, each 1,000th is evaluated": [
        (30 + n * 20.0 + (n // 10) * 180, n * 100, "train") for n in range(1, 200)
    ],
    "bursts of any length, with pauses of any length between them": bursts(),
    "a profiler for six steps": steps(30, 1, 1_000, lambda n: 6 if 100 <= n <= 105 else 0.3),
    "a log that is flushed each 4 kB": [(60 + (n // 73 + 1) * 36.5, n, "train") for n in range(6_000)],
    "a transport that lags by ten seconds to a minute": [
        (60 + turn * 10.0 + 50 * (turn % 3 == 1), 25 * turn + n, "train") for turn in range(1, 160) for n in range(25)
    ],
    "one line an epoch of ten minutes": [(600.0 * n, n, "train") for n in range(1, 50)],
}


@pytest.mark.row("M14")
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_healthy_is_no_hang(name: str) -> None:
    assert [alarm.text for alarm in alarms(HangDetector(), HEALTHY[name])] == []


HANGS = {
    "steps of 0.1 s": (steps(30, 1, 133, 0.1), 10 * 0.1 + 5),
    "steps of 1 s": (steps(30, 1, 133, 1.0), 10 * 1 + 5),
    "after eighteen steps only": (steps(30, 1, 18, 0.5), 10 * 0.5 + 5),
    "after a compilation": (steps(60, 1, 133, lambda n: 300 if n == 2 else 0.2), 10 * 0.2 + 5),
    "steps of 10 s": (steps(30, 1, 133, 10.0), 121.0),
    "behind a round step": (steps(30, 1, 200, 0.5), 605.0),
    "in a second checkpoint": (
        [*announced("checkpoint", 60), (30 + 250 + 60 + 0.1, 500, "checkpoint")],
        120 + 2 * 60 + 5.0,
    ),
}


@pytest.mark.row("P8")
@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_seen_in_time(name: str) -> None:
    observed, limit = HANGS[name]
    assert alarms(HangDetector(), observed) == []
    assert first_alarm(HangDetector(), observed) <= limit


def first_alarm(detector: HangDetector, observed: Iterable[Observed]) -> float:
    last = 0.0
    for at, step, phase in observed:
        detector.observe(at, step, phase)
        last = at
    return next(after for after in (0.5 * n for n in range(20_000)) if detector.check(last + after) is not None)


def test_a_phase_that_was_never_seen_is_given_time_but_not_for_ever() -> None:
    observed = [*steps(30, 1, 133, 0.5), (100.0, 133, "eval")]
    assert 3_590 < first_alarm(HangDetector(), observed) < 3_620


def test_a_saved_state_is_the_same_detector() -> None:
    config = HangConfig()
    observed = silent_pause(100, 20)[:1_500]
    one, other = HangDetector(config), HangDetector(config)
    for at, step, phase in observed:
        one.observe(at, step, phase)
        other.observe(at, step, phase)
        other = HangDetector.from_state(config, {**other.to_state()})
        other._last_call = at
    assert one.threshold() == other.threshold()
    assert len(str(other.to_state())) < 6_000


def test_what_is_remembered_does_not_grow() -> None:
    detector = HangDetector()
    sizes = []
    for n in range(20_000):
        detector.observe(n * 0.5 + (n // 97) * 7, n, "train" if n % 50 else f"phase{n % 1_000}")
        if n % 5_000 == 4_999:
            sizes.append(len(str(detector.to_state())))
    assert max(sizes) < 8_000


def test_a_run_that_becomes_slower_is_told_and_no_hang() -> None:
    detector = HangDetector()
    assert alarms(detector, steps(30, 1, 300, 0.5)) == []
    assert detector.slowdown is None
    assert alarms(detector, steps(180, 301, 300, 1.1)) == []
    assert detector.slowdown == pytest.approx(2.2, abs=0.05)
    assert HangDetector.from_state(None, detector.to_state()).slowdown == detector.slowdown


@pytest.mark.parametrize("every", [1, 30, 60, 300])
def test_a_watch_that_looks_rarely_learns_the_same_rhythm(every: int) -> None:
    detector, found = HangDetector(), []
    for now in range(0, 90_000, every):
        detector.observe(now, now // 200, "train")
        found.append(detector.check(now))
    assert set(found) == {None}
    assert detector.threshold() >= 500


def test_minutes_in_which_our_machine_slept_are_not_learned() -> None:
    detector = HangDetector()
    assert alarms(detector, steps(30, 1, 287, 0.5)) == []
    before = detector.threshold()
    detector.observe(173.5 + 7_200, 288, "train")
    assert detector.threshold() == before


def test_a_short_pause_that_was_called_a_hang_is_called_so_once() -> None:
    """Nobody acted on it, so it was none: it is expected to come again. A long one stays an incident each time."""
    short = steps(30, 1, 1_500, lambda n: 30 if n % 137 == 0 else 0.5)
    assert len(alarms(HangDetector(), short)) == 1
    long = steps(30, 1, 1_500, lambda n: 900 if n % 437 == 0 else 0.5)
    assert len(alarms(HangDetector(), long)) == 3
