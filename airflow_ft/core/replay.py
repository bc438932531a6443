"""Replays: what the hang detector would have said about a log that is already there.

Fed by ``airflow-ft progress`` and ``benchmarks/hang.py`` with what was observed when; the clock ticks in between as a
watch's would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_ft.core.hang import HangDetector, HangVerdict
from airflow_ft.core.records import Record

Observed = tuple[float, int | None, str | None]


class Alarm(Record):
    """A moment in which the detector would have alarmed. Times are seconds of the log's own clock."""

    at: float
    silence: float
    threshold: float
    phase: str | None = None
    text: str = ""


def ticks(start: float, end: float) -> Iterator[float]:
    """Yield the moments between two lines in which a watch looks: twice a second at first, later more rarely."""
    now = start
    while True:
        now += 0.5 if now - start < 60 else 5.0 if now - start < 300 else 15.0
        if now >= end:
            return
        yield now


def alarms(detector: HangDetector, observed: Iterable[Observed]) -> list[Alarm]:
    """Let the detector watch all of it. Returns one alarm per incident."""
    found: list[Alarm] = []
    before: float | None = None
    incident = detector.to_state().get("incident", 0)
    for at, step, phase in observed:
        if before is not None and at - before > 0.5:
            for now in ticks(before, at):
                verdict = detector.check(now)
                if verdict is not None and verdict.incident != incident and not verdict.is_chatter:
                    incident = verdict.incident
                    found.append(alarm(now, verdict))
        detector.observe(at, step, phase)
        if step is None:
            detector.grows(at)
        before = at if before is None else max(at, before)
    return found


def detected_after(detector: HangDetector, last: float, cut: float, limit: float) -> float | None:
    """Return how long after ``cut`` the detector alarms if nothing comes after ``last``; ``None``: not in time."""
    for now in ticks(last, cut + limit):
        verdict = detector.check(now)
        if verdict is not None and not verdict.is_chatter and now >= cut:
            return now - cut
    return None


def alarm(now: float, verdict: HangVerdict) -> Alarm:
    """Make an alarm of a verdict."""
    return Alarm(at=now, silence=verdict.silence, threshold=verdict.threshold, phase=verdict.phase, text=verdict.text)
