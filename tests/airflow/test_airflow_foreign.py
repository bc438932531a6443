"""``ForeignJob`` on a real Airflow: a process that somebody else has started is judged, and lives on all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_ft.agent import processes
from airflow_ft.core.chain import End
from airflow_ft.core.decisions import Action
from tests.airflow.harness import Harness

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

Start = Callable[[str], "tuple[subprocess.Popen[bytes], str]"]
STEP = "n=$((n + 1)); echo step $n/{total} loss 2.5; sleep 0.3"
HANGS = "n=0; while [ $n -lt 9 ]; do " + STEP.format(total=20) + "; done; sleep 1000"
GOES_ON = "n=0; while :; do " + STEP.format(total=100_000) + "; done"
ENDS = "n=0; while [ $n -lt 60 ]; do " + STEP.format(total=60) + "; done"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script with a log of its own. What is left of it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str) -> tuple[subprocess.Popen[bytes], str]:
        log = tmp_path / f"{len(started)}.log"
        with log.open("wb") as out:
            started.append(subprocess.Popen(["sh", "-c", script], stdout=out, stdin=subprocess.DEVNULL))
        return started[-1], str(log)

    yield run
    for one in started:
        processes.kill_tree([one.pid])
        one.wait()


@pytest.mark.row("S4")
@pytest.mark.story("LIF-01")
def test_a_process_of_somebody_else_is_judged_and_left_alone(airflow: Harness, start: Start) -> None:
    """One hangs, one ends, and one is watched when a person clears the task, and then ends it."""
    trainings = {name: start(script) for name, script in (("hangs", HANGS), ("ends", ENDS), ("goes-on", GOES_ON))}
    runs = {
        name: airflow.start("foreign", name=f"foreign-{name}", pid=process.pid, log=log)
        for name, (process, log) in trainings.items()
    }
    watched = runs["goes-on"]
    airflow.wait(lambda: airflow.client.xcom(*watched.key, "ft_progress"), "a step is seen")
    airflow.client.clear(watched.dag_id, watched.run_id)
    airflow.wait(lambda: airflow.chain(watched).segment == 1, "a segment of its own")
    airflow.wait_state(watched, "deferred")
    airflow.client.mark(*watched.key, "failed")
    trainings["ends"][0].wait(timeout=120)
    airflow.wait_ended(list(runs.values()))
    assert {name: airflow.state(run) for name, run in runs.items()} == {
        "hangs": "failed",
        "ends": "success",
        "goes-on": "failed",
    }
    hung = airflow.chain(runs["hangs"])
    assert hung.decision is not None and hung.decision.action is Action.FAIL
    assert hung.decision.shadow is not None and hung.ledger.restarts == 0
    assert f"Nothing is done to process {trainings['hangs'][0].pid}, which is not ours" in hung.decision.reason
    assert airflow.chain(runs["ends"]).concluded is End.SUCCEEDED
    assert "left as it is: not ours" in airflow.client.log(*runs["hangs"].key, 1)
    assert [trainings[name][0].poll() for name in ("hangs", "goes-on")] == [None, None], "both live on"
