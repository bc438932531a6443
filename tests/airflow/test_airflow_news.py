"""What people hear while an attempt goes on: by the task's own notifier, although the task is deferred; and once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow import crash_points
from tests.airflow.harness import Harness, Run
from tests.airflow.stories import check, kinds, read_lines

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600), pytest.mark.story("UIO-03")]

CRASHES_AND_GOES_ON = "--crash-at 3 --endless"
# Where the worker dies that tells it.
POINTS = (*crash_points.NEWS, "complete.begin", "notify.before_send", "notify.after_send")


def test_a_restart_in_place_is_told_when_it_happens_and_once_whoever_dies(airflow: Harness) -> None:
    """In the triggerer, in the worker, and with a kill -9 at each step of the telling."""
    runs = {"": airflow.start("two_nodes", CRASHES_AND_GOES_ON, name="news")}
    runs["inside"] = airflow.start("in_the_worker", CRASHES_AND_GOES_ON, name="news-inside")
    for point in POINTS:
        runs[point] = airflow.start("one_node", CRASHES_AND_GOES_ON, name=f"news-{point}", arm={point: "kill"})
    for point, run in runs.items():
        (told,) = airflow.wait(lambda run=run: messages(airflow, run), f"the message about {run.run_id}")
        assert (told["kind"], told["attempt"]) == ("fault", 0), point
        assert "restart in place" in told["text"]
        assert airflow.processes(run), "training goes on"
    airflow.wait_state(runs[""], "deferred")
    assert airflow.try_number(runs[""]) == 1
    shown = airflow.client.retry_chain(*runs[""].key)
    assert [row["number"] for row in shown["rows"]] == ["0", "0 / 1"]
    for point, run in runs.items():
        if point in POINTS:
            airflow.wait_reached(point, run)
            airflow.wait(lambda run=run: airflow.try_number(run) > 1, f"try 2 of {run.run_id}")
        airflow.enough(run)
    airflow.wait_ended(list(runs.values()))
    for point, run in runs.items():
        chain = check(airflow, run, in_place=1, nodes=2 if point == "" else 1)
        assert kinds(chain).count("fault") == 1, point
        assert ("try_lost" in kinds(chain)) == (point in POINTS)


def messages(airflow: Harness, run: Run) -> list[dict[str, Any]]:
    """What people were told of a run."""
    return [line for job in airflow.jobs(run)[:1] for line in read_lines(airflow.story / f"{job.chain_id}.told")]
