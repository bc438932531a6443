"""What is counted of a chain: the signs of a recovery (mission S15), and what faults have cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_ft.views.models import Check
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import Run


def faulty_runs(found: Sequence[Run]) -> list[Run]:
    """Return the runs that had a fault."""
    return [run for run in found if run.incident is not None]


def recovery_checks(stored: StoredChain, found: Sequence[Run], faulty: Run) -> tuple[Check, ...]:
    """Return the four signs of a recovery from a run's fault: loaded, step, loss, saved (mission S15)."""
    seen = faulty.recovery
    if seen is None:
        return ()
    following = found[found.index(faulty) + 1] if found.index(faulty) + 1 < len(found) else None
    over = stored.state not in ("running", "recovering", "recovered")
    expected, loaded = seen.expected_checkpoint, seen.loaded_checkpoint
    right: bool | None = None if loaded is None and expected else not expected or (loaded or 0) >= expected
    loss = (
        None if seen.loss_before is None or seen.loss_after is None else loss_in_band(seen.loss_before, seen.loss_after)
    )
    saved = following.progress.checkpoint if following and following.progress else None
    new = saved is not None and saved > (loaded or expected or 0)
    return (
        Check(name="loaded", ok=False if seen.state in ("from_scratch", "gap") else right),
        Check(name="step", ok=seen.passed_step is not None or (False if over or seen.state == "failed" else None)),
        Check(name="loss", ok=loss),
        Check(name="saved", ok=True if new else (False if over else None)),
    )


def loss_in_band(before: float, after: float) -> bool:
    """Whether a loss after a restart is no worse than before it: half as much again is noise, a gut feeling."""
    return after <= before + max(0.5 * abs(before), 0.05)


def lost_time(stored: StoredChain, found: Sequence[Run], now: datetime) -> tuple[float, int]:
    """Return the seconds without new steps because of faults, and the steps that were done twice."""
    lost, twice, until = 0.0, 0, None
    end = now if stored.live_now else (found[-1].ended if found else None) or now
    for run in faulty_runs(found):
        began = run.died_at or run.started
        passed = run.recovery.passed_at if run.recovery else None
        stop = passed or end
        start = max(began, until) if until else began  # a fault within the loss of an earlier one costs once
        lost += max(0.0, (stop - start).total_seconds())
        until = max(stop, until) if until else stop
        seen = run.recovery
        if seen and seen.first_step is not None and seen.died_at_step is not None:
            twice += max(0, seen.died_at_step - seen.first_step + 1)
    return lost, twice
