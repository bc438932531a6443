"""Many at once: mapped tasks have chains of their own, and triggers that fire at once lose no result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.airflow.harness import Harness
from tests.airflow.stories import check, kinds

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600), pytest.mark.row("P12")]

SIXTY = 60


def test_each_mapped_task_has_a_chain_of_its_own(airflow: Harness) -> None:
    """One succeeds, one is restarted in place, one is resubmitted, one is stopped; twice, in two runs at once."""
    runs = [airflow.start("mapped", name=name) for name in ("mapped-a", "mapped-b")]
    for run in runs:
        first, in_place, resubmitted, stopped = (replace(run, map_index=index) for index in range(4))
        airflow.wait(lambda one=first: airflow.client.task_instance(*one.key, map_index=0), "the mapped tasks")
        airflow.wait_ended([first, in_place, resubmitted, stopped])
        check(airflow, first)
        check(airflow, in_place, in_place=1)
        check(airflow, resubmitted, attempts=2, restarts=1)
        assert kinds(check(airflow, stopped, state="failed")) == ["stopped"]
        tries = airflow.client.tries(*stopped.key, map_index=3)
        assert tries[-1]["max_tries"] == 1000
    chains = {airflow.chain(replace(run, map_index=index)).chain_id for run in runs for index in range(4)}
    assert len(chains) == 8


@pytest.mark.story("LIF-03")
def test_sixty_trainings_that_end_at_once_lose_no_result(airflow: Harness) -> None:
    """They end within their first second. A try that Airflow loses costs nothing: its job is not run again."""
    run = airflow.start("sixty", name="sixty")
    ends = lambda: (found := airflow.client.run_state(run.dag_id, run.run_id)) in ("success", "failed") and found  # noqa: E731
    assert airflow.wait(ends, "sixty trainings", 500) == "success"
    for index in range(SIXTY):
        one = replace(run, map_index=index)
        check(airflow, one)
