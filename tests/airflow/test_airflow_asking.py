"""A person is asked in Airflow's own page of required actions, and nobody answers."""

from __future__ import annotations

import pytest

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
