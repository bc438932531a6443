"""A person is asked in Airflow's own page of required actions: the answer is carried out, or else the default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_ft.operators.asking import OPTIONS
from tests.airflow import crash_points
from tests.airflow.harness import Harness, Run
from tests.airflow.stories import check, kinds

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

BUG = "--crash-at 3 --say 'ValueError: shape mismatch'"  # a class that is never restarted by itself
APPROVE, RESUBMIT, STOP = OPTIONS


def answer(airflow: Harness, run: Run, option: str) -> None:
    """Answer as a person does, in the first moment in which the task waits for it.

    Even earlier, between the question and the parking, Airflow on sqlite (which locks no rows) keeps the answer but
    resumes nobody before the deadline.
    """
    airflow.wait_state(run, "awaiting_input")
    airflow.client.answer(*run.key, option)


def said(printed: str) -> Any:
    """Read the JSON that a command has printed."""
    lines = printed.splitlines()
    begin = next(number for number, line in enumerate(lines) if line[:1] in ("[", "{"))
    return json.loads("\n".join(lines[begin:]))


@pytest.mark.row("S4")
@pytest.mark.row("S11")
@pytest.mark.row("P15")
@pytest.mark.both_databases(thorough=True)
def test_a_persons_answer_is_carried_out_and_the_chain_explained_and_replayed(airflow: Harness) -> None:
    """An answer so early may cost the try that would take it (airflow-notes §11.1): what was said is done all the same.

    The proposal about a bug is to stop. One try is surely lost: it is killed as it begins. Every decision is then made
    again from Airflow's own database.
    """
    lost = {STOP: {"answer.begin": "kill"}}
    runs = {option: airflow.start("asks", BUG, name=OPTIONS[option], arm=lost.get(option)) for option in OPTIONS}
    for option, run in runs.items():
        answer(airflow, run, option)
    airflow.wait_ended(list(runs.values()))
    assert airflow.reached("answer.begin", runs[STOP]) and airflow.try_number(runs[STOP]) > 1
    chains = {
        APPROVE: check(airflow, runs[APPROVE], state="failed"),
        RESUBMIT: check(airflow, runs[RESUBMIT], attempts=2, restarts=1),
        STOP: check(airflow, runs[STOP], state="failed"),
    }
    words = {APPROVE: "admin approved: ", RESUBMIT: "admin chose to resubmit.", STOP: "admin chose to stop."}
    for option, chain in chains.items():
        assert next(event.text for event in chain.events if event.kind == "answered").startswith(words[option])
        assert kinds(chain).count("answered") == kinds(chain).count("fault") == 1

    explain = [f"ft explain asks {run.run_id} train --json" for run in runs.values()]
    more = ("ft replay --policy full --dag asks --since 1h --json", "ft plan asks --json")
    *explained, replayed, plan = airflow.commands(*explain, *more)
    for told in map(said, explained):
        assert [(one["same"], one["decision"]["answer"]) for one in told] == [(True, told[0]["decision"]["answer"])]
    assert [said(one)[0]["decision"]["answer"] for one in explained] == list(OPTIONS.values())
    assert all(said(one)[0]["decision"]["considered"] for one in explained)
    totals = said(replayed)["totals"]
    assert (totals["chains"], totals["decisions"], totals["inexact"]) == (3, 3, 0)
    assert totals["restarts"] == {"recorded": 1, "new": 0}, "nobody is asked, and a bug stops"
    assert totals["lost_recoveries"] == 1, "but running again has helped"
    assert [(one["task"], one["backend"]) for one in said(plan)] == [("train", "local")]


@pytest.mark.row("S4")
def test_an_approved_restart_in_place_of_a_held_job_is_one_unless_its_nodes_were_let_go(airflow: Harness) -> None:
    """One is approved while its agents hold it; the other's were killed while the person was thinking."""
    held, gone = (airflow.start("asks_and_holds", "--crash-at 3", name=name) for name in ("held", "let-go"))
    airflow.wait_state(gone, "awaiting_input")
    for process in airflow.processes(gone):
        process.kill()
    for run in (held, gone):
        answer(airflow, run, APPROVE)
    airflow.wait_ended([held, gone])
    assert "answered" in kinds(check(airflow, held, in_place=1, nodes=2))
    chain = check(airflow, gone, attempts=2, restarts=1, nodes=2)
    assert [fault.action for fault in chain.faults] == ["RESUBMIT"]
    shown = airflow.client.retry_chain(*gone.key)["attempts"][0]["incidents"][0]["decision"]["reason"]
    assert "The nodes are not held any more: resubmitting instead." in shown


@pytest.mark.row("S4")
@pytest.mark.story("SUB-02")
def test_without_an_answer_the_default_holds_and_a_task_that_is_killed_meanwhile_acts_once(airflow: Harness) -> None:
    """The question has a time limit; the policy's default is resubmit.

    kill -9 at every point: the answer is taken from the chain, or from Airflow, or the question is asked once more.
    """
    unanswered = airflow.start("asks_briefly", BUG, name="unanswered")
    runs = {
        point: airflow.start("asks_briefly", BUG, name=f"asks-{point}", arm={point: "kill"})
        for point in crash_points.ASK
    }
    airflow.wait_ended([unanswered, *runs.values()])
    for point, run in runs.items():
        assert airflow.reached(point, run), point
    for run in (unanswered, *runs.values()):
        chain = check(airflow, run, attempts=2, restarts=1)
        (told,) = [event.text for event in chain.events if event.kind == "answered"]
        assert told.startswith("Nobody answered in time; the default")
