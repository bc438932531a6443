"""What is wrong with the arguments of ``PreflightOperator`` and ``BisectOperator`` is told when the DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.preflight import PreflightOperator
from airflow_ft.operators.probing import Work
from airflow_ft.operators.settings import TrainingSettingsError
from tests.attempts.dict_store import DictStore

JOB = LocalJob(command="true")


@pytest.mark.parametrize("given", ["deep", {"set": "deep"}, PreflightSettings(set="deep")])
def test_a_preflight_is_a_set_a_dictionary_or_settings(given: Any) -> None:
    assert PreflightOperator(task_id="look", job=JOB, preflight=given).preflight == {"set": "deep"}


def test_everything_that_is_wrong_with_a_preflight_is_told_at_once() -> None:
    with pytest.raises(TrainingSettingsError) as caught:
        PreflightOperator(task_id="look", job=JOB, preflight={"set": "off"}, nodes=3, on_failure="ignore")
    told = str(caught.value)
    assert "preflight.set: 'off' is not allowed here. Give quick, standard or deep." in told
    assert "nodes: 3 is not allowed. Give 'free', 'quarantined', or a list of names." in told
    assert "on_failure: 'ignore' is not allowed. Give fail or continue." in told


def test_everything_that_is_wrong_with_a_bisect_is_told_at_once() -> None:
    with pytest.raises(TrainingSettingsError, match=r"bisect\.seconds: 0 is not allowed.*(?s:.)*bisect\.retries"):
        BisectOperator(task_id="search", job=JOB, bisect={"seconds": 0, "retries": 2})


@pytest.mark.parametrize("nodes", ["n1, n2", ["n1", "n2"], "{{ ti.xcom_pull('look')['good_nodes'] }}"])
def test_nodes_are_names_or_a_template(nodes: Any) -> None:
    assert BisectOperator(task_id="search", job=JOB, nodes=nodes).nodes == nodes


class Try:
    """One try: each has an id of its own."""

    dag_id, run_id, task_id, map_index = "dag", "run", "search", -1

    def __init__(self, number: int) -> None:
        self.id = f"try-{number}"


def test_a_try_after_a_lost_worker_adopts_what_has_run_and_one_that_was_started_anew_does_not() -> None:
    store = DictStore()
    lost = Work(store, Try(1))
    assert lost.nodes(("n1", "n2")) == ("n1", "n2")
    after = Work(store, Try(2))
    assert after.name == lost.name, "nobody has closed it"
    assert after.nodes(()) == ("n1", "n2"), "they aren't free: its own job has them"
    after.close()
    anew = Work(store, Try(3))
    assert anew.name != lost.name
    assert anew.nodes(("n2",)) == ("n2",)
