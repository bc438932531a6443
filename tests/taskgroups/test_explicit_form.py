"""The explicit form as a graph: what leads to what, what a branch skips, what an author may change, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.preflight import PreflightOperator
from airflow_ft.operators.settings import RETRIES, TrainingSettingsError
from airflow_ft.taskgroups.training import fault_tolerant_training

pytestmark = [pytest.mark.row("S1")]
JOB = LocalJob(command="train.py")


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("explicit", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as made:
        yield made


def ids(tasks: Any) -> set[str]:
    return {one if isinstance(one, str) else one.task_id for one in tasks}


def downstream(dag: DAG, task_id: str) -> set[str]:
    return set(dag.get_task(task_id).downstream_task_ids)


def test_each_attempt_is_a_group_and_the_last_task_has_the_trainings_state(dag: DAG) -> None:
    group = fault_tolerant_training(job=JOB, attempts=3)
    assert [one.label for one in group.children.values()] == [
        "submit",
        "attempt_0",
        "attempt_1",
        "attempt_2",
        "result",
        "clean_up",
    ]
    assert ids(group.get_leaves()) == {"training.result"}, "what comes after the group waits for the result alone"
    assert ids(group.get_roots()) == {"training.submit"}
    assert dag.get_task("training.result").trigger_rule == "none_failed_min_one_success"
    assert dag.get_task("training.clean_up").is_teardown
    assert downstream(dag, "training.attempt_0.decide") == {
        f"training.attempt_0.{name}" for name in ("restart_in_place", "resubmit", "give_up")
    }
    for action in ("restart_in_place", "resubmit"):
        assert downstream(dag, f"training.attempt_0.{action}") == {"training.attempt_1.verify_recovery"}
    assert downstream(dag, "training.attempt_2.decide") == {"training.attempt_2.give_up"}, "it is the last"
    assert all(one.retries == RETRIES for one in dag.tasks)


def test_it_can_be_stored_and_stands_beside_default_args() -> None:
    with DAG("explicit", schedule=None, default_args={"retries": 2, "owner": "maria"}) as dag:
        fault_tolerant_training(job=JOB, policy=FaultTolerancePolicy.full(max_restarts=5), attempts=10)
    assert all((one.retries, one.owner) == (RETRIES, "maria") for one in dag.tasks)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert len(stored.task_dict) == len(dag.task_dict) == 3 + 10 * 7 - 3
    assert stored.get_task("training.attempt_3.watch").inherits_from_skipmixin


@pytest.mark.parametrize("attempts", [0, 11, -1, 2.0, True, "3"])
def test_more_attempts_than_a_grid_can_show_name_the_single_operator(dag: DAG, attempts: Any) -> None:
    with pytest.raises(TrainingSettingsError, match=r"attempts: .*1 to 10.*FaultTolerantTrainingOperator"):
        fault_tolerant_training(job=JOB, attempts=attempts)


def test_all_mistakes_are_named_at_once(dag: DAG) -> None:
    with pytest.raises(TrainingSettingsError) as raised:
        fault_tolerant_training(job=JOB, attempts=99, stages={"clasify": print, "classify": 3}, on_fault=["page"])  # type: ignore[dict-item, list-item]
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [
        "attempts",
        "stages",
        "stages['classify']",
        "on_fault",
    ]


def test_a_decision_skips_what_it_does_not_need_and_nothing_else(dag: DAG) -> None:
    fault_tolerant_training(job=JOB, attempts=2)
    watch: Any = dag.get_task("training.attempt_0.watch")
    decide: Any = dag.get_task("training.attempt_0.decide")
    later = {one for one in dag.task_dict if ".attempt_1." in one}
    own = {f"training.attempt_0.{name}" for name in ("classify", "decide", "restart_in_place", "resubmit", "give_up")}
    assert set(watch._later()) == own | later, "training is done: everything after the watch but the end"
    assert set(decide._later()) == own - {"training.attempt_0.classify", "training.attempt_0.decide"} | later
    submit: Any = dag.get_task("training.submit")
    assert set(submit._later()) == own | {"training.attempt_0.watch"} | later


def test_stages_of_a_users_own_stand_in_the_place_of_ours(dag: DAG) -> None:
    @task
    def my_classes(attempt: dict[str, Any]) -> dict[str, Any]:
        return attempt

    @task.branch
    def my_branch(attempt: dict[str, Any]) -> str:
        return str(attempt["choices"]["give_up"])

    @task
    def look(_: Any = None) -> None: ...

    @task
    def ticket(attempt: dict[str, Any]) -> None: ...

    stages = {"classify": my_classes, "decide": my_branch, "preflight": look}
    group = fault_tolerant_training(job=JOB, attempts=2, stages=stages, on_fault=[ticket, ticket])
    assert downstream(dag, "training.attempt_0.watch") == {"training.attempt_0.classify", "training.result"}
    assert dag.get_task("training.attempt_1.decide").inherits_from_skipmixin
    assert ids(group.get_roots()) == {"training.preflight"}
    assert ids(group.get_leaves()) == {"training.result"}, "a ticket is no end of the training"
    assert dag.get_task("training.on_fault_done").trigger_rule == "all_done"
    assert downstream(dag, "training.attempt_0.on_fault_1") == {"training.on_fault_done"}


def test_a_preflight_and_a_bisect_of_ours_stand_where_their_findings_are_needed(dag: DAG) -> None:
    """The first attempt goes by what the preflight found, each resubmission by what the bisect found."""
    group = fault_tolerant_training(
        job=JOB,
        attempts=2,
        stages={
            "preflight": lambda: PreflightOperator(task_id="preflight", job=JOB, on_failure="continue"),
            "bisect": lambda attempt: BisectOperator(task_id="bisect", job=JOB, attempt=attempt),
        },
    )
    assert ids(group.get_roots()) == {"training.preflight"}
    assert ids(group.get_leaves()) == {"training.result"}
    assert downstream(dag, "training.attempt_0.decide") >= {"training.attempt_0.bisect", "training.attempt_0.resubmit"}
    assert downstream(dag, "training.attempt_0.bisect") == {"training.attempt_0.resubmit"}
    assert dag.get_task("training.attempt_0.resubmit").trigger_rule == "all_done_min_one_success", "a search may fail"
    assert "training.attempt_1.bisect" not in dag.task_dict, "nothing is resubmitted after the last attempt"
    decide: Any = dag.get_task("training.attempt_0.decide")
    assert "training.attempt_0.bisect" in decide._later(), "it is skipped where no bisect was decided"
    assert DagSerialization.to_dict(dag)
    with pytest.raises(TrainingSettingsError, match=r"stages\['bisect'\]: not beside a 'decide' of your own"):
        fault_tolerant_training(job=JOB, group_id="both", stages={"bisect": print, "decide": print})


def test_any_callable_may_make_a_stage_but_its_name_is_ours(dag: DAG) -> None:
    class Own(BaseOperator):
        template_fields = ("attempt",)

        def __init__(self, attempt: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.attempt = attempt

    fault_tolerant_training(job=JOB, stages={"classify": lambda attempt: Own(attempt=attempt, task_id="classify")})
    assert isinstance(dag.get_task("training.attempt_0.classify"), Own)
    with pytest.raises(TrainingSettingsError, match=r"'classify' is named 'second\.attempt_0\.other'"):
        fault_tolerant_training(
            job=JOB, group_id="second", stages={"classify": lambda attempt: Own(attempt=attempt, task_id="other")}
        )


def test_a_group_may_be_mapped_over_its_jobs(dag: DAG) -> None:
    @task_group
    def one(job: Any) -> None:
        fault_tolerant_training(job=job, attempts=2)

    one.expand(job=[JOB, JOB])
    assert DagSerialization.to_dict(dag)
    assert "one.training.attempt_1.watch" in dag.task_dict


def test_retries_of_an_authors_own_are_refused(dag: DAG) -> None:
    from airflow_ft.operators.stages import ResubmitOperator

    with pytest.raises(TrainingSettingsError, match="retries: 3"):
        ResubmitOperator(task_id="resubmit", job=JOB, retries=3)
