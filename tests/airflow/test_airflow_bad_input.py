"""Mistakes of a DAG's author, and an Airflow that lacks a part: said at once, in words that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.harness import Harness, Run
from tests.airflow.stories import check, read_lines
from tests.systems.disks import fill_up

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

HEAD = """
from airflow.sdk import DAG
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

with DAG("bad"):
    FaultTolerantTrainingOperator(task_id="train", %s)
"""
JOB = 'job=LocalJob(command="true")'
# What an author writes, and what the import error must name.
MISTAKES = {
    f"{JOB}, retries=3": ("retries: 3", "max_restarts=3"),
    f'{JOB}, policy=FaultTolerancePolicy.full(max_restarts="3")': ("max_restarts: '3'", "1 to 128"),
    f"{JOB}, policy=FaultTolerancePolicy.full(max_restarts=129)": ("max_restarts: 129", "1 to 128"),
    f"{JOB}, policy={{'mode': 'full', 'max_restarts': -1}}": ("max_restarts: -1", "1 to 128"),
    f"{JOB}, policy=3": ("policy: 3", "full()"),
    f"{JOB}, attempt_timeout=90": ("attempt_timeout: 90", "timedelta"),
    'job=LocalJob(command="true", nodes=0)': ("nodes: 0", "1 to 250"),
    'job="torchrun train.py"': ("job: 'torchrun train.py'", "LocalJob"),
    'job=["torchrun"]': ("job: ['torchrun']",),
    "job=None": ("job: None",),
}


def test_a_mistake_in_a_dag_is_an_import_error_that_names_the_field(airflow: Harness) -> None:
    """retries, policies that are out of range, and jobs that are none."""
    files = {}
    for number, arguments in enumerate(MISTAKES):
        path = airflow.dags / f"bad_{number}.py"
        path.write_text(HEAD % arguments)
        files[path.name] = arguments
    try:
        errors = airflow.wait(lambda: found(airflow, files), "the import errors")
    finally:
        for name in files:
            (airflow.dags / name).unlink()
    for name, arguments in files.items():
        for words in MISTAKES[arguments]:
            assert words in errors[name], f"{arguments}: {errors[name]}"


def found(airflow: Harness, files: dict[str, str]) -> dict[str, str] | None:
    """The import errors of these files, once there is one for each."""
    errors = {Path(error["filename"]).name: error["stack_trace"] for error in airflow.client.import_errors()}
    return errors if files.keys() <= errors.keys() else None


def test_a_job_that_cannot_run_fails_at_once_and_without_a_triggerer_it_says_so(airflow: Harness) -> None:
    """A missing script, program or folder: one attempt, no job, and the field in the log."""
    fields = {"no_script": "command: the script 'missing.py'", "no_program": "command: 'no-such-program'"}
    fields["no_workdir"] = "workdir: '/no/such/folder'"
    with airflow.unguarded("triggerer"):
        # They ask for a triggerer as long as there is one.
        runs = {dag_id: airflow.start(dag_id, name=dag_id) for dag_id in fields}
        airflow.wait_ended(list(runs.values()))
        airflow.stack.kill("triggerer")
        unhealthy = lambda: airflow.client.health()["triggerer"]["status"] != "healthy"  # noqa: E731
        airflow.wait(unhealthy, "Airflow to miss the triggerer")
        unwatched = airflow.start("one_node", name="unwatched")
        airflow.wait_ended([unwatched], 120)
    for dag_id, words in fields.items():
        refused(airflow, runs[dag_id], words)
        assert len(read_lines(airflow.story / f"{airflow.chain(runs[dag_id]).chain_id}.told")) == 1
    log = airflow.client.log(*unwatched.key, 1)
    assert "deferrable: True needs a triggerer, and none is healthy after 40 s" in log
    assert "airflow triggerer" in log
    assert not airflow.jobs(unwatched)
    assert len(airflow.client.tries(*unwatched.key)) == 1


def refused(airflow: Harness, run: Run, words: str) -> None:
    """Check that a task failed with these words, in one try, and that there is no job."""
    assert airflow.state(run) == "failed"
    assert len(airflow.client.tries(*run.key)) == 1
    assert words in airflow.client.log(*run.key, 1)
    assert not airflow.jobs(run)
    chain = airflow.chain(run)
    assert (chain.attempts, chain.open) == (1, None)
    assert chain.decision is not None
    assert words in chain.decision.reason


def test_a_full_disk_is_said_and_nothing_is_left_running(airflow: Harness, small_disk: Path) -> None:
    """Full before the job is made: refused. Full while it trains: told as that, and stopped once it can be."""
    root = str(small_disk / "root")
    during = airflow.start("elsewhere", "--steps 60 --crash-at 50", name="fills", root=root)
    airflow.wait_state(during, "deferred")
    airflow.wait(lambda: list(small_disk.rglob("output.log")), "the training on the small disk")
    fill = fill_up(small_disk)
    before = airflow.start("elsewhere", name="is-full", root=root)
    airflow.wait_ended([before])
    refused(airflow, before, "root: ")
    airflow.wait(lambda: "No space left on device" in airflow.client.log(*during.key, 1), "the reason in the log")
    airflow.wait_ended([during])
    chain = airflow.chain(during)
    assert chain.decision is not None
    assert "disk is full" in chain.decision.reason
    fill.unlink()
    airflow.wait(lambda: not airflow.living(small_disk / "root"), "the end of all processes")


def test_default_args_with_retries_are_no_mistake(airflow: Harness) -> None:
    """Nearly every DAG has them; they are ignored."""
    run = airflow.start("default_retries", "--steps 2", name="defaults")
    airflow.wait_ended([run])
    check(airflow, run)
    assert airflow.client.tries(*run.key)[-1]["max_tries"] == 1000
