from __future__ import annotations

import asyncio
import json
import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.progress import InvalidPatternError
from airflow_ft.core.settings import SettingsError
from airflow_ft.sensors.progress import TrainingProgressSensor, TrainingStoppedError
from airflow_ft.triggers import progress as trigger_module
from airflow_ft.triggers.progress import TrainingProgressTrigger


class Instance:
    """What the sensor uses of a task instance."""

    dag_id, run_id, task_id, map_index, try_number, max_tries, id = "d", "r", "wait", -1, 1, 0, "x"

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.stored[key] = value

    def xcom_pull(self, key: str, **_: Any) -> Any:
        return self.stored.get(key)


def sensor(**arguments: Any) -> TrainingProgressSensor:
    return TrainingProgressSensor(**{"task_id": "wait", "poll_interval": 0.05, **arguments})


def finished(tmp_path: Path) -> str:
    (tmp_path / "a.log").write_text("".join(f"step {n}/40 loss 2.5\n" for n in range(1, 41)))
    return str(tmp_path / "*.log")


def test_in_the_worker_it_returns_the_progress(tmp_path: Path) -> None:
    ti = Instance()
    found = sensor(log=finished(tmp_path), deferrable=False).execute({"ti": ti})  # type: ignore[typeddict-item]
    assert (found["step"], found["loss"]) == (40, 2.5)
    assert ti.stored["ft_progress"]["progress"]["step"] == 40


def test_deferred_it_hands_one_record_to_the_trigger(tmp_path: Path) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        sensor(log="x.log", until_step="{{ 1 }}0"[-1:], timeout=60).execute({"ti": Instance()})  # type: ignore[typeddict-item]
    path, arguments = deferral.value.trigger.serialize()
    assert path == "airflow_ft.triggers.progress.TrainingProgressTrigger"
    assert json.loads(json.dumps(arguments)) == arguments
    assert deferral.value.timeout == timedelta(seconds=60)


@pytest.mark.parametrize(
    "selector",
    ["app=llama", "app==llama,tier!=x", "app in (a, b),!legacy", "training.kubeflow.org/job-name", "app={{ 1 }}", "a="],
)
def test_the_labels_of_pods_go_to_the_trigger(selector: str) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        sensor(pod_selector=selector, namespace="ml", conn_id="gpus").execute({"ti": Instance()})  # type: ignore[typeddict-item]
    order = deferral.value.trigger.serialize()[1]["order"]
    assert (order["pods"]["selector"], order["pods"]["namespace"], order["pods"]["conn_id"]) == (selector, "ml", "gpus")


@pytest.mark.row("S8")
def test_a_process_of_somebody_else_is_waited_for_by_what_its_log_says(tmp_path: Path) -> None:
    """It has ended and nobody knows how; its log says that it had made its last step. It is named by templates."""
    log = finished(tmp_path)
    with subprocess.Popen(["true"]) as ended:
        pass
    waiting = sensor(job=ForeignJob(pid="{{ pid }}", log=log), deferrable=False)  # type: ignore[call-arg]
    waiting.render_template_fields({"pid": ended.pid})  # type: ignore[typeddict-unknown-key]
    assert waiting.execute({"ti": Instance()})["step"] == 40  # type: ignore[typeddict-item]


@pytest.mark.row("S8")
def test_a_process_that_runs_goes_to_the_trigger_and_one_that_is_not_there_fails(tmp_path: Path) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        sensor(job=ForeignJob(pid=os.getpid())).execute({"ti": Instance()})  # type: ignore[call-arg,typeddict-item]
    order = deferral.value.trigger.serialize()[1]["order"]
    assert (order["ref"]["foreign"], order["ref"]["own"]) == (f"process {os.getpid()}", False)
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(TrainingStoppedError, match=f"process {ended.pid} does not exist"):
        sensor(job=ForeignJob(pid=ended.pid)).execute({"ti": Instance()})  # type: ignore[call-arg,typeddict-item]


def test_what_the_trigger_fires_is_sanitised_and_not_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text("step 1/2 loss nan\nstep 2/2 loss nan\n")
    order = {
        "info": {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1, "max_tries": 1, "ti_id": "x"},
        "files": str(tmp_path / "a.log"),
        "poll_seconds": 0.05,
        "deferred_at": (datetime.now(timezone.utc) - timedelta(seconds=14)).isoformat(),
    }
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def first() -> Any:
        return await anext(TrainingProgressTrigger(order=order, of_a_newer_version=1).run())

    monkeypatch.setattr(trigger_module.asyncio, "sleep", sleep)
    event = asyncio.run(first())
    assert 0 < slept[-1] < 1.1
    json.dumps(event.payload, allow_nan=False)
    assert (event.payload["end"], repr(event)) == ("ended", "<training ended>")


def test_a_trigger_takes_any_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        pass

    async def first(order: Any) -> Any:
        event = await anext(TrainingProgressTrigger(order=order).run())
        return event.payload["end"]

    monkeypatch.setattr(trigger_module.asyncio, "sleep", sleep)
    assert [asyncio.run(first(order)) for order in (None, {}, {"info": 3})] == ["unreadable"] * 3


def test_a_hang_fails_and_soft_fail_skips() -> None:
    event = {"end": "hung", "text": "No step after step 7 for 140 s, 120 s are allowed."}
    with pytest.raises(TrainingStoppedError, match="No step after step 7"):
        sensor(log="x").execute_complete({}, event)  # type: ignore[typeddict-item]
    with pytest.raises(AirflowSkipException):
        sensor(log="x", soft_fail=True).resume_execution("execute_complete", {"event": event}, {})  # type: ignore[typeddict-item]
    with pytest.raises(TrainingStoppedError):
        sensor(log="x").execute_complete({}, None)  # type: ignore[typeddict-item]


def test_the_timeout_holds_in_the_worker_too(tmp_path: Path) -> None:
    waiting = sensor(log=str(tmp_path / "none"), deferrable=False, timeout=0.3)
    with pytest.raises(AirflowSensorTimeout):
        waiting.execute({"ti": Instance()})  # type: ignore[typeddict-item]
    skipping = sensor(log=str(tmp_path / "none"), deferrable=False, timeout=0.3, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        skipping.execute({"ti": Instance()})  # type: ignore[typeddict-item]


@pytest.mark.row("S8")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"job": {}, "log": "x"}, ValueError),
        ({"touched": "x"}, ValueError),
        ({"log": "x", "pod_selector": "app=llama"}, ValueError),
        ({"pod_selector": ""}, ValueError),
        ({"pod_selector": "app=llama role=worker"}, ValueError),
        ({"pod_selector": "app in worker"}, ValueError),
        ({"log": "x", "hang": {"judgement_seconds": 5, "check_interval_seconds": 15}}, SettingsError),
        ({"log": "x", "hang": {"ceiling_seconds": 60}}, SettingsError),
        ({"log": "x", "poll_interval": 0}, ValueError),
        ({"log": "x", "hang": {"floor_seconds": 1}}, SettingsError),
        ({"log": "x", "progress_pattern": "("}, InvalidPatternError),
        ({"log": "x", "end_pattern": "("}, InvalidPatternError),
    ],
)
def test_what_is_impossible_is_refused_at_construction(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        sensor(**arguments)
