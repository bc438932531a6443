"""Parts of Airflow die, freeze and come back: no training is killed for it, restarted twice, or charged."""

from __future__ import annotations

import signal
import time

import pytest

from demo.stack import COMPONENTS
from tests.airflow.harness import Harness, Run, kill
from tests.airflow.stories import check, kinds

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600), pytest.mark.row("P12")]

IN_PLACE = "--crash-at 3"
GOES_ON = "--endless"  # until it is enough
FROZEN_SECONDS = 12.0  # longer than the tests' health thresholds of triggerer and scheduler
# Where a worker stands when the scheduler, or the api-server, dies.
STANDS = ("start.before_submit", "start.after_submit", "execute.before_defer", "record.before_attempt")


def waiting(airflow: Harness, name: str) -> dict[str, Run]:
    """Start a run for each place, and wait until it stands there."""
    runs = {point: airflow.start("one_node", name=f"{name}-{point}", arm={point: "wait"}) for point in STANDS}
    for point, run in runs.items():
        airflow.wait_reached(point, run)
    return runs


@pytest.mark.story("LIF-01")
@pytest.mark.parametrize("orphans", [False, True], ids=["with-its-workers", "its-workers-live-on"])
def test_a_killed_scheduler_leaves_one_job_for_each_attempt(airflow: Harness, orphans: bool) -> None:
    """kill -9 of the scheduler while workers submit, defer and record. Its workers die with it, or go on as orphans."""
    watched = airflow.start("one_node", GOES_ON, name="watched")
    runs = waiting(airflow, f"scheduler-{orphans}")
    airflow.wait_deferred_and_running(watched)
    with airflow.unguarded("scheduler"):
        airflow.stack.kill("scheduler", main_only=orphans)
        airflow.stack.start("scheduler")
        airflow.stack.wait_healthy()
        time.sleep(5)  # the orphans' tries are given to others meanwhile
        for point, run in runs.items():
            airflow.release(point, run)
        airflow.enough(watched)
        airflow.wait_ended([watched, *runs.values()])
    for run in runs.values():
        check(airflow, run)
    check(airflow, watched)


@pytest.mark.story("LIF-01")
def test_a_killed_api_server_leaves_one_job_for_each_attempt(airflow: Harness) -> None:
    """kill -9 of the api-server: workers and triggers that need it meanwhile wait, or are tried again."""
    watched = airflow.start("one_node", GOES_ON, name="watched")
    inside = airflow.start("in_the_worker", GOES_ON, name="inside")
    airflow.wait_deferred_and_running(watched)
    airflow.wait(lambda: airflow.told(inside), "the training in the worker")
    runs = waiting(airflow, "api")
    restarted = airflow.start("two_nodes", IN_PLACE, name="api-decided", arm={"conclude.decided": "wait"})
    airflow.wait_reached("conclude.decided", restarted)
    airflow.stack.kill("api-server")
    for point, run in runs.items():
        airflow.release(point, run)
    airflow.release("conclude.decided", restarted)
    time.sleep(12)  # beyond three heartbeats of a worker
    airflow.stack.restart("api-server")
    airflow.stack.wait_healthy()
    for run in (watched, inside):
        airflow.enough(run)
    airflow.wait_ended([watched, inside, restarted, *runs.values()])
    for run in (*runs.values(), watched, inside):
        check(airflow, run)
    check(airflow, restarted, in_place=1, nodes=2)


@pytest.mark.story("LIF-01")
def test_a_rolling_restart_of_all_parts_touches_no_training(airflow: Harness) -> None:
    """SIGTERM to one component after the other; the dag-processor dies by -9 before that."""
    deferred = airflow.start("one_node", GOES_ON, name="rolling")
    restarted = airflow.start("two_nodes", f"{IN_PLACE} {GOES_ON}", name="rolling-place")
    airflow.wait_watched(deferred)
    airflow.stack.kill("dag-processor")
    with airflow.unguarded("scheduler", "triggerer"):
        for component in COMPONENTS:
            airflow.stack.restart(component)
        airflow.stack.wait_healthy()
    for run in (deferred, restarted):
        airflow.enough(run)
    airflow.wait_ended([deferred, restarted])
    check(airflow, deferred)
    check(airflow, restarted, in_place=1, nodes=2)


def outage(airflow: Harness, how: str) -> None:
    """Let all four parts of Airflow die by -9, end by TERM, or freeze, one a moment after the other."""
    for component in COMPONENTS:
        if how != "restart":
            airflow.stack.kill(component, signal.SIGSTOP if how == "freeze" else signal.SIGKILL)
        if how != "freeze":
            airflow.stack.restart(component)
    if how == "freeze":
        time.sleep(FROZEN_SECONDS)
        for component in COMPONENTS:
            airflow.stack.kill(component, signal.SIGCONT)
    airflow.stack.wait_healthy()


@pytest.mark.story("LIF-01")
@pytest.mark.thorough
@pytest.mark.timeout(1200)  # twenty starts of Airflow's parts
def test_twenty_outages_leave_the_job_and_its_attempt_alone(airflow: Harness) -> None:
    """One training, from the first outage to the last: the same processes, one attempt, and it is still watched."""
    run = airflow.start("one_node", GOES_ON, name="twenty")
    airflow.wait_watched(run)
    training = {process.pid for process in airflow.processes(run)}
    with airflow.unguarded(*COMPONENTS):
        for number, how in enumerate(("kill", "freeze", "restart", "freeze", "kill"), start=1):
            outage(airflow, how)
            assert {process.pid for process in airflow.processes(run)} == training, f"{how}, round {number}"
    seen = airflow.client.xcom(*run.key, "ft_progress")
    airflow.wait(lambda: airflow.client.xcom(*run.key, "ft_progress") != seen, "progress after the last outage")
    airflow.enough(run)
    airflow.wait_ended([run])
    check(airflow, run)


@pytest.mark.story("LIF-01")
@pytest.mark.parametrize("point", ["conclude.decided", "conclude.written"])
def test_a_frozen_triggerer_that_wakes_beside_its_twin_restarts_nothing_again(airflow: Harness, point: str) -> None:
    """SIGSTOP between decision and order, a second triggerer takes over and acts, SIGCONT: one restart, no kill."""
    watched = airflow.start("one_node", GOES_ON, name="watched")
    airflow.wait_deferred_and_running(watched)
    with airflow.unguarded("triggerer"):
        run = airflow.start("two_nodes", f"{IN_PLACE} --steps 60", name=f"frozen-{point}", arm={point: "stop"})
        airflow.wait_reached(point, run)
        frozen = airflow.stack.processes("triggerer")
        for process in frozen:
            process.suspend()
        with airflow.second_triggerer():
            airflow.wait(lambda: len(starts(airflow, run)) == 4, "the twin to restart training")
            for process in frozen:
                process.resume()
            airflow.wait_ended([run])
            time.sleep(3)  # the one that woke up finds out what is not its own any more
        chain = check(airflow, run, in_place=1, nodes=2)
        assert kinds(chain).count("fault") == 1
    airflow.enough(watched)
    airflow.wait_ended([watched])
    check(airflow, watched)


@pytest.mark.story("LIF-02")
def test_a_frozen_worker_that_wakes_after_its_try_was_given_away_changes_nothing(airflow: Harness) -> None:
    """SIGSTOP of supervisor and task for longer than the heartbeat limit; try 2 starts; SIGCONT."""
    points = ("start.before_chain", "start.before_intent", "start.before_submit", "start.after_submit")
    runs = {point: airflow.start("one_node", GOES_ON, name=f"lost-{point}", arm={point: "stop"}) for point in points}
    inside = airflow.start("in_the_worker", GOES_ON, name="inside", arm={"watch.looked": "stop"})
    pids = {run: airflow.wait_reached(point, run) for point, run in runs.items()}
    pids[inside] = airflow.wait_reached("watch.looked", inside)
    supervisors = {run: airflow.parent(pid) for run, pid in pids.items()}
    for supervisor in supervisors.values():
        kill(supervisor, signal.SIGSTOP)
    for run in pids:
        airflow.wait(lambda run=run: trained_in_a_later_try(airflow, run), f"try 2 of {run.run_id}")
    for run, pid in pids.items():
        kill(supervisors[run], signal.SIGCONT)
        kill(pid, signal.SIGCONT)
    time.sleep(3)  # they find out that their try was given away
    for run in pids:
        airflow.enough(run)
    airflow.wait_ended(list(pids))
    for run in pids:
        check(airflow, run)


@pytest.mark.story("SUB-02")
def test_a_killed_supervisor_leaves_an_orphan_that_changes_nothing(airflow: Harness) -> None:
    """kill -9 of the task's supervisor, alone or with its task: the try is found lost, and the next one adopts."""
    points = ("start.before_intent", "start.before_submit", "start.after_submit", "record.before_attempt")
    runs = {point: airflow.start("one_node", name=f"super-{point}", arm={point: "wait"}) for point in points}
    both = airflow.start("one_node", name="super-both", arm={"start.after_submit": "wait"})
    pids = {run: airflow.wait_reached(point, run) for point, run in runs.items()}
    pids[both] = airflow.wait_reached("start.after_submit", both)
    for run, pid in pids.items():
        kill(airflow.parent(pid))
        if run is both:
            kill(pid)
    for point, run in runs.items():
        airflow.wait(lambda run=run: airflow.try_number(run) > 1, f"try 2 of {run.run_id}")
        airflow.release(point, run)
    airflow.wait_ended(list(pids))
    for run in pids:
        check(airflow, run)


def starts(airflow: Harness, run: Run) -> list[dict[str, object]]:
    """The starts of the run's training, on all nodes."""
    return [told for told in airflow.told(run) if told["what"] == "start"]


def trained_in_a_later_try(airflow: Harness, run: Run) -> bool:
    """Whether try 2 or a later one has begun, and there is training."""
    return airflow.try_number(run) > 1 and bool(starts(airflow, run))
