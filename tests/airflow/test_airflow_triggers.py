"""The trigger without Airflow: stored by another version, it starts or ends with one event, and it never raises."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.core.chain import End, JobRef, Outcome
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.triggers import training
from airflow_ft.triggers.training import TrainingTrigger

pytestmark = [pytest.mark.story("LIF-07"), pytest.mark.timeout(30)]

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
REF = JobRef(backend="local", name="train-a0", uid="1", chain_id="train", attempt=0, submitted_at=NOW)
INFO = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1000, ti_id="x")
ORDER = WatchOrder(info=INFO, ref=REF, policy=write_policy(FaultTolerancePolicy.full()), quiet_seconds=0).to_record()


def fire(trigger: TrainingTrigger) -> list[Any]:
    """Run a trigger to its end."""

    async def run() -> list[Any]:
        return [event async for event in trigger.run()]

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No 15 s before each event."""
    monkeypatch.setattr(training, "QUIET_SECONDS", 0.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"order": None},
        {"order": {"info": "?"}, "a_key_of_a_newer_version": 1},
        {"order": {**ORDER, "ref": {"name": "only"}}},
        {"order": {**ORDER, "ref": {**ORDER["ref"], "backend": "of a newer version"}}},
    ],
)
def test_a_trigger_that_cannot_be_read_fires_one_event_that_says_so(arguments: dict[str, Any]) -> None:
    """Building it never raises, which would stop the triggerer; running it ends, so that the worker reconciles."""
    (event,) = fire(TrainingTrigger(**arguments))
    assert event.payload["unreadable"]
    assert len(repr(event)) < 100


def test_a_trigger_of_a_newer_version_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown keys at every depth are left out."""
    done = Conclusion(
        chain_id="train", attempt=0, try_number=1, outcome=Outcome(end=End.SUCCEEDED, text="Done."), ended_at=NOW
    )
    watched: list[WatchOrder] = []

    async def watch(self: TrainingTrigger, order: WatchOrder) -> Conclusion:
        watched.append(order)
        return done

    monkeypatch.setattr(TrainingTrigger, "_watch", watch)
    newer = json.loads(json.dumps(ORDER))
    newer |= {"version": 99, "new": {"deep": [1]}}
    newer["ref"]["new"] = newer["info"]["new"] = newer["policy"]["new"] = 1
    (event,) = fire(TrainingTrigger(order=newer, more=2))
    assert watched[0].ref == REF
    assert Conclusion.from_record({**event.payload, "new": 1}) == done


def test_what_is_serialised_is_what_is_built_from_it() -> None:
    """The round trip through the database."""
    path, arguments = TrainingTrigger(order=ORDER).serialize()
    assert path == f"{TrainingTrigger.__module__}.{TrainingTrigger.__qualname__}"
    assert TrainingTrigger(**json.loads(json.dumps(arguments))).order == ORDER


def test_a_watch_that_cannot_begin_is_tried_again_at_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours doesn't end a job, and doesn't fill the log of weeks with tracebacks either."""
    pauses: list[float] = []
    done = Conclusion(
        chain_id="train", attempt=0, try_number=1, outcome=Outcome(end=End.SUCCEEDED, text="Done."), ended_at=NOW
    )

    async def watch(self: TrainingTrigger, order: WatchOrder) -> Conclusion:
        if len(pauses) < 6:
            raise RuntimeError("a bug")
        return done

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(TrainingTrigger, "_watch", watch)
    monkeypatch.setattr(training.asyncio, "sleep", sleep)
    (event,) = fire(TrainingTrigger(order=ORDER))
    assert event.payload["outcome"]["end"] == "succeeded"
    assert pauses[:6] == [5, 10, 20, 40, 60, 60]
