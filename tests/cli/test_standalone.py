"""``airflow-ft``: the local backend's jobs and nodes, without Airflow."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from airflow_ft.backends.base import PERSON, JobState, Submission
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.cli.standalone import main
from airflow_ft.core.chain import JobRef

DEADLINE_SECONDS = 30.0


@pytest.fixture
def running(tmp_path: Path) -> JobRef:
    """A job that would run for minutes."""
    job = LocalJob(command=[sys.executable, "-c", "import time; time.sleep(300)"], root=str(tmp_path))
    submission = Submission(name="sleeper-1-a0", chain_id="sleeper-1", attempt=0, tags={"dag_id": "d", "task_id": "t"})
    ref = asyncio.run(create_backend().submit(job, submission))
    _until(ref, JobState.RUNNING)
    return ref


def _until(ref: JobRef, state: JobState) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while asyncio.run(create_backend().observe(ref)).state is not state:
        assert time.monotonic() < deadline, f"not {state.value} in time"
        time.sleep(0.05)


def test_jobs_lists_what_runs_where(running: JobRef, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Name, nodes and the task that a job belongs to."""
    assert main(["jobs", "--root", str(tmp_path)]) == 0
    assert "sleeper-1-a0  open       n1            d.t" in capsys.readouterr().out
    main(["jobs", "--root", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["nodes"] == ["n1"]
    main(["cancel", "--root", str(tmp_path), running.name])


def test_cancel_stops_a_job_in_a_persons_name(running: JobRef, tmp_path: Path) -> None:
    """The watch tells a person's cancel from its own: it is not restarted."""
    assert main(["cancel", "--root", str(tmp_path), running.name]) == 0
    seen = asyncio.run(create_backend().observe(running))
    assert seen.state in (JobState.ENDED, JobState.GONE)
    assert seen.cancelled_by == PERSON


def test_cancel_of_an_unknown_job_names_those_that_exist(
    running: JobRef, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what was given and what is there."""
    assert main(["cancel", "--root", str(tmp_path), "sleeper"]) == 1
    assert "no job 'sleeper'" in (said := capsys.readouterr().err)
    assert running.name in said
    main(["cancel", "--root", str(tmp_path), running.name])


@pytest.mark.row("S4")
def test_a_lost_node_is_down_until_it_is_repaired(
    running: JobRef, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``lose`` kills what runs on the node; ``nodes`` shows why it is down; ``repair`` puts it back."""
    root = ["--root", str(tmp_path)]
    assert main(["lose", *root, "n1", "--why", "rehearsal"]) == 0
    assert asyncio.run(create_backend().observe(running)).nodes[0].lost
    main(["nodes", *root])
    assert "down: rehearsal" in capsys.readouterr().out
    main(["repair", *root, "n1"])
    main(["nodes", *root])
    assert "down" not in capsys.readouterr().out.rsplit("service", 1)[1]
    main(["cancel", *root, running.name])
