"""What people do to a task: clear, mark, delete. Kill means kill, a clear really runs again, nothing stays behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_ft.backends.local import inventory
from airflow_ft.core.chain import End
from tests.airflow import crash_points
from tests.airflow.harness import Harness, Run
from tests.airflow.stories import check, kinds, read_lines
from tests.systems.disks import fill_up

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

GONE_SECONDS = 60.0  # LIF-01
LONG = "--steps 4000"  # nearly a quarter of an hour
STOPS = ("failed", "success", "deleted")
WORKING = ("start.before_submit", "start.after_submit")
UNTIL_CLEARED = "--endless"  # only the first attempt is


def stop(airflow: Harness, run: Run, how: str) -> None:
    """Do what a person does."""
    if how == "deleted":
        airflow.client.mark_run(run.dag_id, run.run_id, "failed")  # Airflow deletes no run that is running
        airflow.client.request("DELETE", f"dags/{run.dag_id}/dagRuns/{run.run_id}")
    elif how == "cleared":
        airflow.client.clear(run.dag_id, run.run_id)
    else:
        airflow.client.mark(*run.key, how)


def wait_gone(airflow: Harness, runs: dict[str, Run]) -> None:
    """Wait until nothing of the runs' trainings lives."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := {name: found for name, run in runs.items() if (found := airflow.processes(run))}:
        assert time.monotonic() < deadline, f"still alive: {left}\n" + airflow.explain(runs[next(iter(left))])
        time.sleep(0.5)


@pytest.mark.story("LIF-01")
@pytest.mark.row("P12")
def test_a_deferred_task_that_a_person_ends_takes_its_training_along(airflow: Harness) -> None:
    """Marked failed, marked success, or deleted with its run: the job is gone within a minute."""
    runs = {how: airflow.start("one_node", LONG, name=how) for how in STOPS}
    for run in runs.values():
        airflow.wait_watched(run)
    for how, run in runs.items():
        stop(airflow, run, how)
    wait_gone(airflow, runs)
    for how, run in runs.items():
        assert airflow.state(run) == (None if how == "deleted" else how)
        assert [job.attempt for job in airflow.jobs(run)] == [0], "nothing was submitted again"


@pytest.mark.story("LIF-01")
def test_a_task_that_is_ended_before_its_trigger_runs_takes_its_training_along(airflow: Harness) -> None:
    """Without a triggerer no trigger hears of it: the api-server that ended the task sees to its job."""
    with airflow.unguarded("triggerer"):
        runs = {how: airflow.start("one_node", LONG, name=f"unheard-{how}") for how in ("failed", "success")}
        for run in runs.values():
            airflow.wait_watched(run)
        airflow.stack.kill("triggerer")
        for how, run in runs.items():
            stop(airflow, run, how)
        wait_gone(airflow, runs)


@pytest.mark.story("LIF-09")
def test_a_task_that_is_ended_while_nobody_is_there_is_found_by_reap(airflow: Harness) -> None:
    """All that would hear of it die with it: ``airflow ft reap`` shows the job, and stops it with --yes."""
    run = airflow.start("one_node", LONG, name="unwatched")
    beside = airflow.start("one_node", "--endless", name="beside")
    airflow.wait_watched(run)
    airflow.wait_watched(beside)
    with airflow.unguarded("triggerer", "api-server", "scheduler"):
        airflow.stack.kill("triggerer")
        airflow.stack.kill("scheduler")
        stop(airflow, run, "failed")
        airflow.wait_state(run, "failed")  # it answers before the database has it
        airflow.stack.kill("api-server")
        (job,) = airflow.jobs(run)
        doctor, shown = airflow.commands("ft doctor", "ft reap")
        assert f"{job.name}; run `airflow ft reap`" in doctor
        assert f"{job.name}: its task is failed" in shown
        assert airflow.processes(run)
        done, again = airflow.commands("ft reap --yes", "ft reap")
        assert "stopped" in done
        assert "Nothing is owed." in again
        wait_gone(airflow, {"reap": run})
    assert airflow.processes(beside), "a job whose task may go on is never touched"
    stop(airflow, beside, "failed")
    wait_gone(airflow, {"beside": beside})


@pytest.mark.story("LIF-09")
@pytest.mark.both_databases(thorough=True)
def test_a_job_that_nobody_can_stop_is_owed_told_once_and_stopped_when_it_can_be(
    airflow: Harness, small_disk: Path
) -> None:
    """The job's disk takes no tombstone: neither trigger nor api-server can cancel it when its task is marked."""
    root = str(small_disk / "root")
    run = airflow.start("elsewhere", LONG, name="owed", root=root)
    airflow.wait(lambda: airflow.client.xcom(*run.key, "ft_progress"), "the watch of the job on the small disk")
    fill = fill_up(small_disk)
    stop(airflow, run, "failed")
    (debt,) = airflow.wait(lambda: airflow.chain(run).debts, "the debt in the chain")
    assert "No space left on device" in debt.why
    alarms = airflow.story / "alarms"
    airflow.wait(lambda: read_lines(alarms), "the message")
    doctor, reap = airflow.commands("ft doctor", "ft reap --yes")
    assert f"{debt.ref.name}; run `airflow ft reap`" in doctor
    assert "could not be stopped" in reap
    assert airflow.living(Path(root)), "it could not be stopped"
    fill.unlink()
    airflow.wait(lambda: not airflow.living(Path(root)), "the end of the job")
    chain = airflow.wait(lambda: not (found := airflow.chain(run)).debts and found, "the debt to be struck off")
    assert (chain.open, chain.concluded) == (None, End.CANCELLED)
    (told,) = [line for line in read_lines(alarms) if line["run_id"] == run.run_id]
    assert f"Cancel owed: {debt.ref.name}" in told["text"]
    assert kinds(chain)[-2:] == ["cancel_owed", "notice"]


@pytest.mark.story("LIF-01")
@pytest.mark.row("P12")
def test_a_task_that_a_person_ends_while_it_submits_leaves_no_training(airflow: Harness) -> None:
    """The worker stands right before, or right after, the creation of the job."""
    runs = {}
    for how in STOPS:
        for point in WORKING:
            name = f"{how}-{point}"
            runs[name] = airflow.start("one_node", LONG, name=name, arm={point: "wait"})
    for name, run in runs.items():
        airflow.wait_reached(name.partition("-")[2], run)
    for name, run in runs.items():
        stop(airflow, run, name.partition("-")[0])
    time.sleep(1)
    for name, run in runs.items():
        airflow.release(name.partition("-")[2], run)
    wait_gone(airflow, {name: run for name, run in runs.items() if name.endswith("after_submit")})
    time.sleep(8)  # a killed worker lives for 5 s more: it creates nothing in them
    wait_gone(airflow, runs)
    for name, run in runs.items():
        assert len(airflow.jobs(run)) <= 1, name
        assert airflow.state(run) == (None if name.startswith("deleted") else name.partition("-")[0])


@pytest.mark.story("LIF-01")
@pytest.mark.both_databases
def test_a_task_that_is_cleared_stops_its_job_before_the_next_one_starts(airflow: Harness) -> None:
    """Cleared while deferred, and while submitting: a new segment, a new number, never two at once."""
    runs = {"deferred": airflow.start("one_node", UNTIL_CLEARED, name="clear-deferred")}
    for point in crash_points.FENCE:
        runs[point] = airflow.start("one_node", UNTIL_CLEARED, name=f"clear-{point}", arm={point: "kill"})
    for point in WORKING:
        runs[point] = airflow.start("one_node", UNTIL_CLEARED, name=f"clear-{point}", arm={point: "wait"})
    for name, run in runs.items():
        if name in WORKING:
            airflow.wait_reached(name, run)
        else:
            airflow.wait_deferred_and_running(run)
    for run in runs.values():
        stop(airflow, run, "cleared")
    # One worker ends by itself before it hears of the clear, the other one is told.
    airflow.release("start.after_submit", runs["start.after_submit"])
    airflow.wait_ended(list(runs.values()))
    for name, run in runs.items():
        if name in crash_points.FENCE:
            assert airflow.reached(name, run), name
        started = [told for told in airflow.told(run) if told["what"] == "start"]
        chain = airflow.chain(run)
        if name == "start.before_submit":  # cleared before anything of this try existed: it simply begins again
            assert chain.attempts == 2
            continue
        assert "cleared" in kinds(chain), name
        assert not [told for told in airflow.told(run) if told["what"] == "double"]
        assert started[-1]["attempt"] == chain.attempts - 1
        assert chain.segment == 1
        assert chain.ledger.restarts == 0, "a clear is no fault"
    check(airflow, runs["deferred"], attempts=2, killed=1, segments=2)


@pytest.mark.story("LIF-11")
def test_a_task_that_has_ended_and_is_cleared_begins_a_new_segment(airflow: Harness) -> None:
    """A succeeded one really runs again; a failed one gets fresh budgets, and keeps its exclusions."""
    done = airflow.start("one_node", "--steps 2", name="done")
    failed = airflow.start("one_node", "--steps 5 --crash-at 2 --say 'ValueError: shape mismatch'", name="failed")
    excluding = airflow.start("one_node", UNTIL_CLEARED, name="excluding")
    airflow.wait_deferred_and_running(excluding)
    (node,) = airflow.jobs(excluding)[0].nodes
    inventory.lose_node(str(airflow.root), "default", node)
    airflow.wait_ended([done, failed, excluding])
    first = check(airflow, done)
    assert check(airflow, failed, state="failed").faults
    assert check(airflow, excluding, attempts=2, restarts=1, killed=1).excluded_nodes == (node,)
    inventory.repair_node(str(airflow.root), "default", node)
    for run in (done, failed, excluding):
        stop(airflow, run, "cleared")
    for run in (done, failed, excluding):
        airflow.wait(lambda run=run: airflow.chain(run).segment == 1, "a new segment")
    airflow.wait_ended([done, failed, excluding])
    again = check(airflow, done, attempts=2, segments=2)
    assert again.chain_id == first.chain_id
    repaired = check(airflow, failed, attempts=2, segments=2)
    assert not repaired.faults
    chain = check(airflow, excluding, attempts=3, segments=2, killed=1)
    assert chain.excluded_nodes == (node,)
    assert node in next(event.text for event in chain.events if event.kind == "cleared")
