"""The chain as a table, from plain records."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.attempts.conclude import INCIDENTS_KEY, ORDER_KEY
from airflow_ft.core.chain import Chain
from airflow_ft.core.progress import Progress
from airflow_ft.core.story import state_word
from airflow_ft.views.chain_table import as_text, headline, rows, to_json
from airflow_ft.views.records import StoredChain, live_incidents
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def stored(task: Task, **live: Any) -> StoredChain:
    return StoredChain(chain=task.chain, attempts=tuple(task.attempts), **live)


@pytest.fixture(scope="module")
def two_faults() -> Task:
    first = [Run(last=30, code=-9), Run(first=31, last=40, code=1, words=GPU)]
    task = Task(first, [Run(first=41, last=60)], nodes=2)
    assert task.run_to_the_end() == "success"
    return task


def test_each_run_of_the_training_is_a_row(two_faults: Task) -> None:
    found = rows(stored(two_faults))
    assert [row.number for row in found] == ["0", "0 / 1", "1"]
    assert [row.steps for row in found] == ["1 → 30", "31 → 40", "41 → 60"]
    assert [row.fault for row in found] == ["UNKNOWN", "HW_NODE", ""]
    assert [row.done for row in found] == ["restart in place", "resubmit", ""]
    assert {row.nodes for row in found} == {"n1, n2"}
    assert all("recovered" in row.outcome for row in found[:2])
    assert found[2].outcome == "succeeded"
    assert all(row.ran is not None and row.ran.total_seconds() > 0 for row in found)
    assert [row.started for row in found] == sorted(row.started for row in found)


def test_the_live_row_shows_step_and_nodes_of_now() -> None:
    task = Task([Run(code=None)], nodes=2)
    task.begin_try()
    task.execute()
    live = Progress(step=18_430, first_step=1)
    (row,) = rows(stored(task, live=live, live_nodes=("n3", "n4")))
    assert (row.number, row.steps, row.nodes, row.ran, row.outcome) == ("0", "1 → 18430", "n3, n4", None, "running")
    (row,) = rows(stored(task))
    assert (row.steps, row.nodes) == ("–", "–"), "before anything was published"
    state, sentence = headline(stored(task, live=live))
    assert state == "running"
    assert sentence == "dag · train · attempt 0 of chain · restarts 0/3 (left 3) · at step 18,430"


def test_all_restarts_in_place_of_the_open_attempt_are_rows_while_it_runs() -> None:
    runs = [Run(first=1 + 30 * n, last=30 + 30 * n, code=-9) for n in range(3)]
    task = Task([*runs, Run(first=91, last=120)])
    task.begin_try()
    task.execute()
    task.watch()
    published = [json.loads(task.xcoms[key]) for key in (INCIDENTS_KEY, ORDER_KEY)]
    found = live_incidents(published[0]["incidents"], published[1], 0)
    table = rows(stored(task, live_incidents=found, live=Progress(step=95, first_step=91)))
    assert [row.number for row in table] == ["0", "0 / 1", "0 / 2", "0 / 3"]
    assert [row.outcome for row in table[:2]] == [row.outcome for row in table[:2] if "recovered" in row.outcome]
    assert table[-1].steps == "91 → 95"
    assert live_incidents(["rubbish", *published[0]["incidents"]], None, 7) == (), "of another attempt, or unreadable"


def test_a_chain_that_was_stopped_says_so_and_why() -> None:
    task = Task([Run(code=1, words="KeyError: 'x'")])
    assert task.run_to_the_end() == "failed"
    state, sentence = headline(stored(task))
    assert state == "stopped by fault tolerance"
    assert "KeyError: 'x'" in sentence
    (row,) = rows(stored(task))
    assert (row.fault, row.done, row.outcome) == ("APP_ERROR", "stop", "fault")


def test_a_task_that_a_person_failed_is_failed_whatever_the_chain_says() -> None:
    task = Task([Run(code=None)])
    task.begin_try()
    task.execute()
    assert headline(stored(task, task_state="failed"))[0] == "failed"
    assert headline(stored(task, task_state="success"))[0] == "succeeded"
    assert headline(stored(task, task_state="deferred"))[0] == "running"


def test_debts_and_events_are_told_below_the_table() -> None:
    task = Task([Run(last=30)])
    task.begin_try()
    task.execute()
    task.cluster.cancel_fails = True
    task.settle(lambda: task.complete(task.watch()))
    text = as_text(stored(task))
    assert f"cancel owed: {task.attempts[0].name}: " in text
    assert "A class is a help for the decision, not a confirmed root cause." in text


def test_the_json_form_has_records_and_rows(two_faults: Task) -> None:
    made = json.loads(json.dumps(to_json(stored(two_faults, unreadable=("attempt 9",)))))
    assert made["state"] == "succeeded"
    assert [row["number"] for row in made["rows"]] == ["0", "0 / 1", "1"]
    assert made["chain"]["attempts"] == len(made["attempts"]) == 2
    assert made["unreadable"] == ["attempt 9"]


def test_excluded_nodes_are_named_and_many_nodes_are_cut() -> None:
    task = Task([Run(last=1000)], [Run(last=20)], nodes=2)
    task.begin_try()
    task.execute()
    task.wait(10)
    task.cluster.lose("n2")
    task.settle(lambda: task.complete(task.watch()))
    assert task.run_to_the_end() == "success"
    found = rows(stored(task))
    assert found[0].done == "resubmit without n2"
    assert found[-1].nodes == "n1, n3 without n2"
    many = task.attempts[-1].but(nodes=tuple(f"n{number}" for number in range(20)), excluded_nodes=())
    (row,) = rows(StoredChain(chain=task.chain, attempts=(many,)))
    assert row.nodes == "n0, n1, n2, n3, n4, n5, n6, n7 …"


@pytest.mark.row("S11")
@pytest.mark.parametrize(
    ("recovery", "state"),
    [(None, "running"), ("pending", "recovering"), ("recovered", "recovered"), ("gap", "recovering")],
)
def test_a_running_chain_says_whether_it_has_recovered(recovery: str | None, state: str) -> None:
    """Resubmitted is not recovered: only the recovery that was followed makes the badge say so."""
    chain = Chain(chain_id="c", dag_id="d", run_id="r", task_id="t", created_at=datetime.now(timezone.utc), open=0)
    assert state_word(chain, recovery) == state
