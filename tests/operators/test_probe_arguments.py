"""What is wrong with the arguments of ``PreflightOperator`` and ``BisectOperator`` is told when the DAG is parsed."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.attempts.probe_work import PROBE_KEY, Work, jobs_of, without
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.preflight import PreflightOperator
from airflow_ft.operators.settings import TrainingSettingsError
from tests.attempts.dict_store import DictStore

JOB = LocalJob(command="true")
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


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


def test_a_try_after_a_lost_worker_adopts_what_has_run_and_one_that_was_started_anew_does_not() -> None:
    store = DictStore()
    lost = Work(store, "try-1")
    assert lost.nodes(("n1", "n2")) == ("n1", "n2")
    after = Work(store, "try-2")
    assert after.name == "try-1", "nobody has closed it"
    assert after.nodes(()) == ("n1", "n2"), "they aren't free: its own job has them"
    after.close()
    anew = Work(store, "try-3")
    assert anew.name == "try-3"
    assert anew.nodes(("n2",)) == ("n2",)


def ref(name: str) -> JobRef:
    return JobRef(backend="local", name=name, uid=f"uid of {name}", chain_id="c", attempt=0, submitted_at=NOW)


def test_what_runs_is_written_down_until_it_is_removed() -> None:
    """So that somebody can stop it when this task's worker dies and no try follows."""
    store = DictStore()
    work = Work(store, "try-1")
    work.began(ref("a"))
    work.began(ref("b"))
    work.removed(ref("a"))
    assert jobs_of(store.get(PROBE_KEY)) == [ref("b")]
    Work(store, "try-2").removed(ref("b"))
    assert jobs_of(store.get(PROBE_KEY)) == []


def test_a_record_that_cant_be_read_names_no_job() -> None:
    work = {"jobs": {"a": ref("a").to_record(), "b": {"version": 99}}}
    assert jobs_of(work) == [ref("a")]
    assert jobs_of(None) == jobs_of({"jobs": []}) == []
    assert jobs_of(without(work, ref("a"))) == []
