"""The stack itself: a real Airflow on PostgreSQL bears the faults that the other tests will cause."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import airflow_processes
from demo.stack import AirflowStack
from tests.systems import postgres

DAG = '''
from datetime import timedelta

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator


class WaitAndFailOnce(BaseOperator):
    """Waits in the triggerer; its first try fails after that."""

    def execute(self, context):
        context["task_state_store"].set(f"try {context['ti'].try_number}", "deferred")
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=3)), method_name="resume")

    def resume(self, context, event=None):
        context["task_state_store"].set(f"try {context['ti'].try_number}", "resumed")
        if context["ti"].try_number == 1:
            raise RuntimeError("the first try fails")
        return "done"


with DAG("wait_and_fail_once"):
    WaitAndFailOnce(task_id="wait", retries=5, retry_delay=timedelta(0))
'''


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """A database on a server of its own, or a reason why not."""
    if reason := postgres.available():
        pytest.skip(reason)
    with postgres.PostgresServer() as server:
        yield server.url()


@pytest.fixture
def stack(postgres_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AirflowStack]:
    """A healthy Airflow with one DAG."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "wait.py").write_text(DAG)
    with AirflowStack(tmp_path / "home", tmp_path / "dags", postgres_url) as airflow:
        airflow.prepare(template=request.config.cache.mkdir("airflow-template"))
        airflow.start()
        airflow.wait_healthy()
        yield airflow


@pytest.mark.airflow
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_deferred_task_with_retries_survives_a_killed_triggerer(stack: AirflowStack) -> None:
    """A new triggerer takes the trigger over, the failed try is followed by another, and everything can be read."""
    client = stack.client()
    dag_id, task_id = "wait_and_fail_once", "wait"
    client.wait_for_dag(dag_id)
    run_id = client.trigger(dag_id, run_id="an~odd:run+id")
    client.wait_for_task(dag_id, run_id, task_id, "deferred")

    stack.kill("triggerer")
    assert not stack.processes("triggerer")
    assert stack.is_running("scheduler")
    stack.restart("triggerer")
    stack.wait_healthy()

    assert client.wait_for_run(dag_id, run_id) == "success"
    tries = client.tries(dag_id, run_id, task_id)
    assert [one_try["state"] for one_try in tries][-1] == "success"
    assert len(tries) > 1
    assert "the first try fails" in client.log(dag_id, run_id, task_id, try_number=1)
    assert client.xcom(dag_id, run_id, task_id, "return_value") == "done"
    assert client.state_store(dag_id, run_id, task_id)[f"try {len(tries)}"] == "resumed"

    stack.stop()
    assert not stack.processes()


def test_processes_in_other_sessions_are_found_but_training_is_not(tmp_path: Path) -> None:
    """What a killed component left behind belongs to the stack; what airflow_ft's agent started doesn't."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    environment = dict(os.environ) | airflow_processes.marks(tmp_path, "scheduler")
    worker = subprocess.Popen(sleep, env=environment, start_new_session=True)
    training = subprocess.Popen(sleep, env=environment | {"FT_AGENT_DIR": str(tmp_path)}, start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while not airflow_processes.find(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [process.pid for process in airflow_processes.find(tmp_path)] == [worker.pid]
        assert [process.pid for process in airflow_processes.find(tmp_path, "scheduler")] == [worker.pid]
        assert airflow_processes.find(tmp_path, "triggerer") == []
    finally:
        for process in (worker, training):
            process.kill()
            process.wait()
