"""Limits, hangs, the supervisor's own failures, and watching inside the worker."""

from __future__ import annotations

import pytest

from airflow_ft.core.chain import End
from tests.airflow.harness import Harness
from tests.airflow.stories import check, kinds

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

IN_PLACE = "--crash-at 3"
LONG = "--steps 4000"
# Where the supervisor itself fails once; the job lives on.
RAISED = ("watch.looked", "conclude.diagnosed", "conclude.decided", "conclude.written", "conclude.ordered")


@pytest.mark.story("LIF-06")
def test_a_time_limit_ends_the_job_and_is_no_fault(airflow: Harness) -> None:
    """execution_timeout and attempt_timeout, deferred or not: the job is gone, the task failed, nothing is charged."""
    runs = [
        airflow.start(dag_id, LONG, name=dag_id)
        for dag_id in ("execution_limit", "attempt_limit", "limit_in_the_worker")
    ]
    airflow.wait_ended(runs)
    for run in runs:
        chain = check(airflow, run, state="failed", killed=1)
        assert chain.concluded is End.TIMED_OUT, run
        assert chain.decision is not None
        assert "imed out" in chain.decision.reason
        tries = airflow.client.tries(*run.key)
        assert len(tries) == 1
        (started,) = [told["time"] for told in airflow.told(run) if told["what"] == "start"]
        ended = max(told["time"] for told in airflow.told(run))
        assert 5 < ended - started < 40, "the limit is 20 s"


@pytest.mark.story("LIF-06")
def test_a_run_that_times_out_takes_its_training_along(airflow: Harness) -> None:
    """dagrun_timeout skips the task without a word to it: the job is gone within a minute, and the chain says so."""
    run = airflow.start("run_limit", LONG, name="run-limit")
    airflow.wait_deferred_and_running(run)
    airflow.wait_state(run, "skipped")
    airflow.wait(lambda: not airflow.processes(run), "the end of the training", 60)
    chain = airflow.wait(lambda: (found := airflow.chain(run)).open is None and found, "the end of the chain")
    assert chain.concluded is End.CANCELLED
    assert chain.highest_step, "how far it had come is kept"
    assert chain.ledger.restarts == 0
    assert [job.attempt for job in airflow.jobs(run)] == [0], "nothing was submitted again"
    assert airflow.client.run_state(run.dag_id, run.run_id) == "failed"


@pytest.mark.story("LIF-12")
def test_a_failure_of_the_supervisor_is_its_own(airflow: Harness) -> None:
    """An exception at a point of the watch: the job is not touched, and the chain says that it happened."""
    runs = {
        point: airflow.start("two_nodes", IN_PLACE, name=f"raise-{point}", arm={point: "raise"}) for point in RAISED
    }
    classified = airflow.start("two_nodes", IN_PLACE, name="raise-gathered", arm={"conclude.gathered": "raise"})
    airflow.wait_ended([classified, *runs.values()])
    for point, run in runs.items():
        assert airflow.reached(point, run), point
        chain = check(airflow, run, in_place=1, nodes=2)
        assert "supervisor_error" in kinds(chain), point
        assert kinds(chain).count("fault") == 1
    chain = check(airflow, classified, in_place=1, nodes=2)
    assert "could not be classified" in next(event.text for event in chain.events if event.kind == "fault")


def test_a_hang_is_restarted_in_place_and_not_charged(airflow: Harness) -> None:
    """Also a rank that ignores TERM."""
    hung = airflow.start("two_nodes", "--hang-at 4 --ignore-term", name="hung")
    inside = airflow.start("in_the_worker", "--hang-at 4", name="hung-inside")
    airflow.wait_ended([hung, inside])
    check(airflow, hung, in_place=1, killed=1, nodes=2)
    check(airflow, inside, in_place=1, killed=1)


def test_a_training_that_is_watched_in_the_worker_is_kept_alive_there(airflow: Harness) -> None:
    """In place, resubmitted, and after a kill of the watching worker."""
    in_place = airflow.start("in_the_worker", IN_PLACE, name="inside-place")
    no_dns = "--crash-at 3 --say 'socket.gaierror: [Errno -3] Temporary failure in name resolution'"
    resubmitted = airflow.start("in_the_worker", no_dns, name="inside-again")
    killed = {
        point: airflow.start("in_the_worker", IN_PLACE, name=f"inside-{point}", arm={point: "kill"})
        for point in ("watch.looked", "conclude.decided", "conclude.written", "conclude.ordered")
    }
    airflow.wait_ended([in_place, resubmitted, *killed.values()])
    assert "try_lost" not in kinds(check(airflow, in_place, in_place=1))
    check(airflow, resubmitted, attempts=2, restarts=1)
    for point, run in killed.items():
        assert airflow.reached(point, run), point
        chain = check(airflow, run, in_place=1)
        assert "try_lost" in kinds(chain)
        assert kinds(chain).count("fault") == 1


def test_a_policy_that_is_off_fails_at_the_first_fault(airflow: Harness) -> None:
    """max_restarts=0: one attempt, no restart, and it says why."""
    run = airflow.start("switched_off", IN_PLACE, name="off")
    airflow.wait_ended([run])
    chain = check(airflow, run, state="failed")
    assert chain.decision is not None
    assert "off" in chain.decision.reason
    assert len(airflow.client.tries(*run.key)) == 1
