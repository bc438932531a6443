"""A person is asked in Airflow's own page of required actions, and nobody answers."""

from __future__ import annotations

import pytest

from tests.airflow import crash_points
from tests.airflow.harness import Harness
from tests.airflow.stories import check

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

BUG = "--crash-at 3 --say 'ValueError: shape mismatch'"  # a class that is never restarted by itself


@pytest.mark.row("S4")
def test_without_an_answer_the_default_holds(airflow: Harness) -> None:
    """The question has a time limit; the policy's default is resubmit."""
    run = airflow.start("asks_briefly", BUG, name="unanswered")
    airflow.wait_ended([run])
    chain = check(airflow, run, attempts=2, restarts=1)
    (told,) = [event.text for event in chain.events if event.kind == "answered"]
    assert told.startswith("Nobody answered in time; the default")


@pytest.mark.story("SUB-02")
def test_a_task_that_is_killed_while_it_asks_or_takes_an_answer_acts_once(airflow: Harness) -> None:
    """kill -9 at every point: the answer is taken from the chain, or the question is asked once more."""
    runs = {
        point: airflow.start("asks_briefly", BUG, name=f"asks-{point}", arm={point: "kill"})
        for point in crash_points.ASK
    }
    airflow.wait_ended(list(runs.values()))
    for point, run in runs.items():
        assert airflow.reached(point, run), point
        check(airflow, run, attempts=2, restarts=1)
