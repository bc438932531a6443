"""Whatever dies between two lines of a try: one job for each attempt, none lost, none killed, nothing charged."""

from __future__ import annotations

import pytest

from tests.airflow import crash_points
from tests.airflow.harness import Harness, Run
from tests.airflow.stories import check, kinds

pytestmark = [pytest.mark.story("SUB-02"), pytest.mark.row("P12")]

RESUBMITTED = "--crash-at 3 --say 'socket.gaierror: [Errno -3] Temporary failure in name resolution'"
IN_PLACE = "--crash-at 3"
# A try that is lost there has nothing in the chain yet, or has done all its work.
UNNOTICED = ("execute.begin", "start.before_chain", *crash_points.WORKER[crash_points.WORKER.index("record.after") :])


def test_every_point_in_the_source_is_armed_by_a_test() -> None:
    """A new point needs a test."""
    armed = {*crash_points.WORKER, *crash_points.FENCE, *crash_points.TRIGGER, *crash_points.STOP, *crash_points.KILL}
    armed |= {*crash_points.NEWS, *crash_points.ASK}  # in test_airflow_news and test_airflow_asking
    assert crash_points.named_in_source() == armed
    assert len(armed) >= 20


@pytest.mark.airflow
@pytest.mark.both_databases
@pytest.mark.timeout(600)
def test_a_task_that_is_killed_anywhere_leaves_one_job_and_is_not_charged(airflow: Harness) -> None:
    """kill -9 of the task's process at every point of a try that ends well."""
    runs = {point: airflow.start("one_node", name=point, arm={point: "kill"}) for point in crash_points.WORKER}
    airflow.wait_ended(list(runs.values()), 400)
    for point, run in runs.items():
        assert airflow.reached(point, run), point
        chain = check(airflow, run)
        assert ("try_lost" in kinds(chain)) == (point not in UNNOTICED), f"{point}: {kinds(chain)}"


@pytest.mark.airflow
@pytest.mark.timeout(600)
def test_a_task_that_is_killed_while_it_records_a_fault_is_charged_once(airflow: Harness) -> None:
    """kill -9 of the task's process at every point after a fault: the decision is replayed, never taken anew."""
    points = crash_points.WORKER[crash_points.WORKER.index("complete.begin") :]
    runs = {point: airflow.start("one_node", RESUBMITTED, name=point, arm={point: "kill"}) for point in points}
    airflow.wait_ended(list(runs.values()), 400)
    for point, run in runs.items():
        assert airflow.reached(point, run), point
        chain = check(airflow, run, attempts=2, restarts=1)
        assert kinds(chain).count("fault") == 1
        assert kinds(chain)[-1] == "succeeded"


@pytest.mark.airflow
@pytest.mark.timeout(1200)  # all of them are a dozen triggerers, one after the other: 3 minutes on a quiet machine
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(crash_points.DECIDED, id="where-it-decides"),
        pytest.param((*crash_points.TRIGGER, *crash_points.STOP), id="anywhere", marks=pytest.mark.thorough),
    ],
)
def test_a_triggerer_that_is_killed_acts_once(airflow: Harness, points: tuple[str, ...]) -> None:
    """kill -9 of the triggerer at every point of a watch: its successor finds the decision, and takes none anew.

    The triggerers die one after the other, under all these runs: most of them lose their watch several times. Two take
    turns, so that nobody waits for the next one to start.
    """
    with airflow.second_triggerer():
        in_place = {
            (point, False): run_with(airflow, point, False) for point in crash_points.TRIGGER if point in points
        }
        stopped = {(point, True): run_with(airflow, point, True) for point in crash_points.STOP if point in points}
        airflow.wait_ended([*in_place.values(), *stopped.values()], 900)
        # A triggerer that dies for one run may do so in the middle of another one's step: that one again, alone.
        for runs in (in_place, stopped):
            for (point, stops), run in list(runs.items()):
                if not airflow.reached(point, run):
                    runs[point, stops, "again"] = alone = run_with(airflow, point, stops)
                    airflow.wait_ended([alone])
                    assert airflow.reached(point, alone), point
    for run in in_place.values():
        check(airflow, run, in_place=1, nodes=2)
    for run in stopped.values():
        check(airflow, run, attempts=2, restarts=1)
    for run in (*in_place.values(), *stopped.values()):
        assert "try_lost" not in kinds(airflow.chain(run))


def run_with(airflow: Harness, point: str, stops: bool) -> Run:
    """Start a run that kills the triggerer at a point, and whose job is stopped, or restarted in place."""
    if stops:
        return airflow.start("one_node", RESUBMITTED, name=f"stop-{point}", arm={point: "kill"})
    return airflow.start("two_nodes", IN_PLACE, name=point, arm={point: "kill"})
