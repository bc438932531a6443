"""``@task.ft_training``: what the function may return, and that a decorated task is scheduled like the operator."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.decorators.training import TrainingDecoratedOperator
from airflow_ft.operators.settings import RETRIES, TrainingSettingsError

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def decorated(function: Any, *arguments: Any, **given: Any) -> TrainingDecoratedOperator:
    """Return the operator that a decorated function became."""
    with DAG("decorated", start_date=START, schedule=None, default_args={"retries": 2}):
        operator = task.ft_training(**given)(function)(*arguments).operator
    assert isinstance(operator, TrainingDecoratedOperator)
    return operator


def asked(operator: TrainingDecoratedOperator, **context: Any) -> Any:
    """Return the job that the function gives in this context."""
    return operator._asked(context)  # type: ignore[arg-type]


@pytest.mark.row("S1")
def test_the_function_returns_a_job_and_its_templates_are_rendered() -> None:
    def train(seed: int) -> LocalJob:
        return LocalJob(command=f"train --seed {seed} --out {{{{ run_id }}}}")

    assert asked(decorated(train, 7), run_id="r1").command == "train --seed 7 --out r1"


def test_the_function_may_ask_for_the_context() -> None:
    def train(run_id: Any = None) -> LocalJob:
        return LocalJob(command=["train", run_id])

    assert asked(decorated(train), run_id="r1").command == ("train", "r1")


def test_with_the_class_given_the_fields_of_a_job_are_enough() -> None:
    def train() -> dict[str, Any]:
        return {"command": "train", "nodes": 2}

    assert asked(decorated(train, job=LocalJob)) == LocalJob(command="train", nodes=2)


@pytest.mark.parametrize(
    ("returned", "job", "said"),
    [
        ("torchrun train.py", None, "train() returned 'torchrun train.py'. It has to return a training job"),
        (None, None, "train() returned None"),
        ({"command": "x"}, None, "It has to return a training job"),
        ({"command": "x", "nodez": 2}, LocalJob, "What train() returned is no LocalJob: nodez"),
        ({"command": "x", "nodes": 0}, LocalJob, "nodes: 0 is not allowed. Give a whole number from 1 to 250."),
    ],
)
def test_what_is_no_job_is_refused_with_what_was_returned(returned: Any, job: Any, said: str) -> None:
    def train() -> Any:
        return returned

    with pytest.raises(TrainingSettingsError, match=re.escape(said)):
        asked(decorated(train, job=job))


def test_a_job_instead_of_its_class_is_refused_when_the_dag_is_parsed() -> None:
    def train() -> dict[str, Any]:
        return {"command": "train"}

    with pytest.raises(TrainingSettingsError, match=r"job: .* Give the class of the job"):
        decorated(train, job=LocalJob(command="train"))


def test_retries_are_refused_and_default_args_do_not_bind() -> None:
    def train() -> LocalJob:
        return LocalJob(command="train")

    with pytest.raises(TrainingSettingsError, match="retries: 3 is not allowed here"):
        decorated(train, retries=3)
    assert decorated(train).retries == RETRIES


@pytest.mark.row("S4")
def test_a_mapped_decorated_task_has_the_same_retries() -> None:
    """A mapped task is scheduled without ``__init__``: with Airflow's default it would have no retry."""
    with DAG("mapped", start_date=START, schedule=None, default_args={"retries": 2}) as dag:

        @task.ft_training(policy=FaultTolerancePolicy.basic(max_restarts=1))
        def train(seed: int) -> LocalJob:
            return LocalJob(command=f"train {seed}")

        train.expand(seed=[1, 2])
    mapped = dag.get_task("train")
    assert isinstance(mapped, MappedOperator)
    assert mapped.retries == RETRIES
    assert type(mapped.retry_policy).__name__ == "FaultToleranceRetryPolicy"
