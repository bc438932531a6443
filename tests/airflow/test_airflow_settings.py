"""What an author writes into the operator, checked when the DAG is parsed: field, what was given, what is allowed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.backends.base import SubmissionRefusedError
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

JOB = LocalJob(command="true")

# Arguments, and the words that have to be in the error.
WRONG: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"retries": 3}, ("retries: 3", "max_restarts=3")),
    ({"retries": "3"}, ("retries: '3'", "max_restarts=3")),
    ({"retries": 0}, ("retries: 0", "max_restarts=0")),
    ({"retries": 200}, ("retries: 200", "max_restarts=128")),
    ({"retry_policy": object()}, ("retry_policy:",)),
    ({"job": "torchrun train.py"}, ("job: 'torchrun train.py'", "LocalJob")),
    ({"policy": 3}, ("policy: 3", "full()")),
    ({"policy": {"max_restarts": 129}}, ("max_restarts: 129", "1 to 128")),
    ({"policy": {"max_restart": 3}}, ("max_restart:", "max_restarts")),
    ({"deferrable": "no"}, ("deferrable: 'no'", "True or False")),
    ({"attempt_timeout": 90}, ("attempt_timeout: 90", "timedelta")),
    ({"attempt_timeout": timedelta(0)}, ("attempt_timeout:", "positive")),
    ({"progress_pattern": "step ("}, ("progress_pattern: 'step ('",)),
    ({"progress_pattern": "step ([0-9]+)"}, ("progress_pattern:", "?P<step>")),
    ({"log_tail_lines": -1}, ("log_tail_lines: -1", "0 is none")),
    ({"on_attempt": "slack"}, ("on_attempt:", "'slack'", "callable")),
    ({"attempt_timeout": 90, "on_attempt": [3]}, ("attempt_timeout:", "on_attempt:")),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=[str(next(iter(one))) for one, _ in WRONG])
def test_a_wrong_argument_is_an_error_that_names_field_value_and_what_is_allowed(
    arguments: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=":") as error:
        FaultTolerantTrainingOperator(task_id="train", **{"job": JOB, **arguments})
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.row("M2")
@pytest.mark.parametrize("given", [129, -1, "3", 3.5, None, True])
def test_a_budget_that_is_out_of_range_is_an_error(given: Any) -> None:
    with pytest.raises(ValueError, match="1 to 128, or 0") as error:
        FaultTolerancePolicy.full(max_restarts=given)
    assert f"max_restarts: {given!r}" in str(error.value)


@pytest.mark.row("M2")
def test_the_budget_nought_switches_everything_off() -> None:
    assert not FaultTolerancePolicy.full(max_restarts=0).detects_hangs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": ""}, ("command: ''", "program")),
        ({"command": []}, ("command: []", "program")),
        ({"command": 5}, ("command: 5", "program")),
        ({"command": ["python", 3]}, ("command: ['python', 3]",)),
        ({"nodes": 0}, ("nodes: 0", "1 to 250")),
        ({"node": 2}, ("node:", "nodes")),
        ({"env": {"A": 1}}, ("env.A: 1",)),
        ({"env": {"A B": "1"}, "nodes": 0}, ("env:", "nodes: 0")),
    ],
)
def test_a_job_that_can_be_known_to_be_wrong_is_refused_when_it_is_written(
    arguments: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=":") as error:
        LocalJob(**{"command": "true", **arguments})
    assert all(word in str(error.value) for word in words), error.value
    assert "pydantic" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"command": "torchrn train.py"}, ("command: 'torchrn'", "no such program")),
        ({"command": "python missing.py"}, ("command: the script 'missing.py'", "set workdir")),
        ({"command": "python 'train.py"}, ("command:", "Close the quotation")),
        ({"workdir": "/no/such/folder"}, ("workdir: '/no/such/folder'", "An existing folder")),
        ({"root": "/proc/jobs"}, ("root: '/proc/jobs'", "can't be written")),
        ({"checkpoints": "/proc/checkpoints"}, ("checkpoints: '/proc/checkpoints'", "can't be written")),
        ({"nodes": 9}, ("nodes: 9", "The pool 'default' has 4")),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_anything_is_created(
    tmp_path: Path, arguments: dict[str, Any], words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").touch()
    given = {"command": "python train.py", "workdir": str(tmp_path), "root": str(tmp_path / "root"), **arguments}
    with pytest.raises(SubmissionRefusedError) as error:
        create_backend().check(LocalJob(**given))
    assert all(word in str(error.value) for word in words), error.value
    assert len(str(error.value).splitlines()) == 1, "told once"
