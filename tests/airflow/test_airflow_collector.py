"""The collector against Airflow's own tables: a job without a task is owed, told once, stopped, and struck off."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from airflow_ft.backends.local import inventory
from demo.stack import AirflowStack
from tests.airflow.stories import read_lines

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300), pytest.mark.story("LIF-09")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("news", [[], ["older-news"]], ids=["a-task-that-told-all", "a-task-that-tells-nobody"])
def test_a_job_that_no_task_answers_for_is_owed_told_once_stopped_and_struck_off(
    tmp_path: Path, request: pytest.FixtureRequest, news: list[str]
) -> None:
    stack = prepared(tmp_path, request)
    done = story(stack, *news)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ended, unable, again, stopped, after, stale = lines
    assert (ended["alive"], ended["debts"], ended["events"]) == (True, 0, [])
    assert ended["owed"] == ["its task is failed"]
    assert (unable["alive"], unable["debts"], unable["open"]) == (True, 1, 0)
    assert (unable["events"], unable["notified"]) == (["cancel_owed"], -1 if news else 0)
    assert again["events"] == ["cancel_owed"], "written once"
    assert (stopped["alive"], stopped["debts"], stopped["open"], stopped["fenced"]) == (False, 0, None, True)
    assert (stopped["concluded"], stopped["events"]) == ("cancelled", ["cancel_owed", "notice"])
    assert stopped["highest_step"] >= 9, "how far it had come is read from its log"
    assert after["owed"] == []
    assert stale == {"step": "what was read before", "written": False}, "a chain that has changed is not overwritten"
    (told,) = read_lines(tmp_path / "alarms")
    assert told["key"] == f"train-x/{len(news)}"
    assert told["text"].startswith("d.t: Cancel owed: train-x-a0: no access from here. ")


def test_a_triggerer_collects_by_itself(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Nothing else of Airflow runs: whoever could have heard of the task's end has died."""
    stack = prepared(tmp_path, request)
    assert story(stack, "only-begin").returncode == 0
    root = str(tmp_path / "root")
    assert [job.closed for job in inventory.list_jobs(root)] == [""]
    with stack:
        stack.start("triggerer")
        deadline = time.monotonic() + 200
        while not inventory.list_jobs(root)[0].closed:
            assert time.monotonic() < deadline, stack.log_path("triggerer").read_text()[-4000:]
            time.sleep(0.2)


def prepared(tmp_path: Path, request: pytest.FixtureRequest) -> AirflowStack:
    """An Airflow of which nothing runs."""
    environment = {
        "AIRFLOW_FT_LOCAL_ROOT": str(tmp_path / "root"),
        "AIRFLOW__FAULT_TOLERANCE__COLLECT_SECONDS": "1",
        "AIRFLOW__FAULT_TOLERANCE__NOTIFIERS": "tests.airflow.dags.modules.alarms:note",
        "TRAINING_STORY": str(tmp_path),
    }
    stack = AirflowStack(tmp_path / "home", tmp_path, extra_env=environment)
    stack.prepare(request.config.cache.mkdir("airflow-template"))
    return stack


def story(stack: AirflowStack, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``collector_story`` with this Airflow's database."""
    command = [stack.python, "-m", "tests.airflow.collector_story", str(stack.home), *arguments]
    environment = stack.environment("cli")
    return subprocess.run(
        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
    )
