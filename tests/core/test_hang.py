from __future__ import annotations

import csv
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.core.hang import HangConfig, HangDetector, HangVerdict
from airflow_ft.core.progress import ProgressReader
from tests.shared_inputs import shared, story

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
QUICK = HangConfig(quick_seconds=20, floor_seconds=20, ceiling_seconds=300, multiple=5, startup_seconds=100)


def behind_at_the_end(name: str) -> list[str]:
    """The ranks that are behind when all of a CSV of lines was read."""
    reader = ProgressReader()
    for row in csv.DictReader(shared("stories", f"{name}.csv").read_text().splitlines()):
        reader.feed(row["line"], AT, row["source"])
    return [f"rank{rank}" for rank in reader.behind]


def watch(name: str, every: float = 5.0) -> tuple[dict[int, tuple[float, HangVerdict]], set[str | None]]:
    """Watch a CSV of lines as the trigger would. Returns the first verdict of each incident, and the phases."""
    rows = list(csv.DictReader(shared("stories", f"{name}.csv").read_text().splitlines()))
    reader, detector, found, phases = ProgressReader(), HangDetector(), {}, set()
    now = 0.0
    while rows or now < 3_000:
        while rows and float(rows[0]["t_seconds"]) <= now:
            row = rows.pop(0)
            reader.feed(row["line"], AT, row["source"])
        detector.observe(now, reader.progress.step, reader.progress.phase)
        phases.add(reader.progress.phase)
        verdict = detector.check(now)
        if verdict is not None and rows:
            found.setdefault(verdict.incident, (now, verdict))
        now += every
    return found, phases


def steady(detector: HangDetector, seconds: int, every: int = 5, start: int = 0, first: int = 0) -> int:
    for now in range(start, start + seconds, every):
        detector.observe(now, first + (now - start) // every, "train")
        assert detector.check(now) is None
    return start + seconds


@pytest.mark.row("M14")
@pytest.mark.story("PRG-04")
def test_a_log_that_grows_is_no_progress() -> None:
    expected = story("PRG-chatty-hang")
    found, _ = watch("PRG-chatty-hang")
    (at, verdict) = found[1]
    assert verdict.last_step == expected["last_step"]
    assert expected["not_before"] <= at <= expected["not_after"]
    assert behind_at_the_end("PRG-chatty-hang") == expected["ranks_behind"]


@pytest.mark.story("PRG-01")
def test_a_long_checkpoint_is_no_hang() -> None:
    found, phases = watch("PRG-ckpt-9min")
    assert not found
    assert "checkpoint" in phases


@pytest.mark.story("PRG-08")
def test_a_second_stall_is_an_incident_of_its_own() -> None:
    found, _ = watch("PRG-second-stall")
    windows = story("PRG-second-stall")["windows"]
    assert [low <= at <= high for (at, _), (low, high) in zip(found.values(), windows, strict=True)] == [True, True]


@pytest.mark.row("P10")
def test_a_job_that_never_starts() -> None:
    detector = HangDetector(QUICK)
    verdicts = [detector.check(now) for now in range(0, 121, 5)]
    assert verdicts[20] is None
    assert verdicts[-1] is not None
    assert (verdicts[-1].kind, verdicts[-1].ever_stepped) == ("never_started", False)


@pytest.mark.row("P8")
def test_the_threshold_follows_the_rhythm_between_floor_and_ceiling() -> None:
    detector = HangDetector(QUICK)
    steady(detector, 200, every=2, first=7)
    assert detector.threshold() == 20
    slow = HangDetector(QUICK)
    steady(slow, 600, every=10, first=7)
    assert slow.threshold() == 50
    few = HangDetector(QUICK)
    steady(few, 20, every=5, first=7)
    assert few.threshold() == 75


@pytest.mark.row("S8")
def test_a_fixed_judgement_time_replaces_what_is_learned_but_not_the_start_up() -> None:
    detector = HangDetector(HangConfig(judgement_seconds=42, startup_seconds=100))
    assert detector.threshold() == 100
    steady(detector, 100)
    assert detector.threshold() == 42


def test_a_jump_of_our_clock_is_not_their_silence() -> None:
    detector = HangDetector(QUICK)
    now = steady(detector, 100)
    assert detector.check(now + 7_200) is None
    assert detector.check(now + 7_205) is None
    assert any(detector.check(now + 7_205 + more) for more in range(0, 60, 5))


def test_a_successor_goes_on_where_the_state_stood() -> None:
    detector = HangDetector(QUICK)
    now = steady(detector, 200)
    assert detector.check(now + 10) is None
    again = HangDetector.from_state(QUICK, detector.to_state())
    assert again.check(now + 5_000) is None
    verdicts = [again.check(now + 5_000 + more) for more in range(0, 60, 5)]
    assert sum(verdict is not None for verdict in verdicts) > 4
    assert HangDetector.from_state(QUICK, {"gaps": "x"}).check(0) is None


def test_a_new_generation_has_its_start_up_time_again() -> None:
    detector = HangDetector(QUICK)
    now = steady(detector, 200)
    detector.restarted()
    assert all(detector.check(now + more) is None for more in range(0, 95, 5))
    verdict = next(filter(None, (detector.check(now + more) for more in range(95, 130, 5))))
    assert (verdict.kind, verdict.ever_stepped) == ("never_started", True)


def test_steps_that_go_back_are_steps() -> None:
    detector = HangDetector(QUICK)
    now = steady(detector, 100, first=500)
    steady(detector, 100, start=now, first=200)


@given(gaps=st.lists(st.floats(0.5, 8.0), min_size=20, max_size=80))
@settings(max_examples=60, deadline=None)
def test_no_rhythm_below_the_floor_is_ever_a_hang(gaps: list[float]) -> None:
    detector, now = HangDetector(QUICK), 0.0
    for step, gap in enumerate(gaps):
        now += gap
        detector.observe(now, step, "train")
        assert detector.check(now) is None
