"""What training prints: values that would stop a triggerer or a database, and secrets that must not be found again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.harness import CANARY, Harness, Run
from tests.airflow.stories import check, read_lines

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

HOSTILE = (
    b"step 3/6 loss nan\nstep 4/6 loss inf\nstep 99999999999999999999999999/6 loss 1e999\n"
    b'\x1b[31mTraceback (most recent call last):\n  File "x.py", line 1, in <module>\n'
    b"%s \xed\xa0\x80 \x00 \xff\xfe \xf0\x9f\x98 \x1b[0m 123456789012345678901234567890"
)


def hostile(error: bytes) -> str:
    """Return arguments that print lone surrogates, NUL, broken UTF-8, ANSI codes, NaN and huge numbers, and fail."""
    return f"--crash-at 2 --code 1 --say64 {base64.b64encode(HOSTILE % error).decode()}"


@pytest.mark.story("WAT-06")
@pytest.mark.both_databases(thorough=True)
def test_hostile_output_reaches_the_chain_and_stops_no_triggerer(airflow: Harness) -> None:
    """One training stops with it, one is resubmitted; a third one is watched beside them all the time."""
    died = len(airflow.deaths)
    beside = airflow.start("one_node", "--endless", name="beside")
    stopped = airflow.start("one_node", hostile(b"ValueError: "), name="hostile-stopped")
    again = airflow.start(
        "one_node", hostile(b"socket.gaierror: Temporary failure in name resolution"), name="hostile-again"
    )
    airflow.wait_ended([stopped, again])
    airflow.enough(beside)
    airflow.wait_ended([beside])
    chain = check(airflow, stopped, state="failed")
    assert chain.decision is not None
    check(airflow, again, attempts=2, restarts=1)
    check(airflow, beside)
    assert airflow.deaths[died:] == []
    for run in (stopped, again):
        assert "�" in json.dumps(airflow.client.state_store(*run.key), ensure_ascii=False)


@pytest.mark.story("SEC-01")
@pytest.mark.story("SEC-02")
def test_a_secret_of_the_job_is_nowhere_to_be_found(airflow: Harness) -> None:
    """HF_TOKEN in env and on the command line, printed in an error line: not in database, logs, REST or messages."""
    printed = "--crash-at 2 --say-variable HF_TOKEN"
    stopped = airflow.start("with_a_token", f"{printed} --times 9", name="token-stopped")
    hung = airflow.start("with_a_token", "--hang-at 3", name="token-hung")
    fine = airflow.start("with_a_token", "--steps 30", name="token-fine")
    deferred = airflow.start("with_a_token", "--endless", name="token-deferred")
    airflow.wait_deferred_and_running(deferred)
    database = airflow.folder / "home" / "airflow.db"
    assert not holders([*database.parent.glob(f"{database.name}*")]), "in the arguments of a trigger"
    airflow.client.mark(*deferred.key, "failed")
    airflow.wait_ended([stopped, hung, fine])
    airflow.wait(lambda: not airflow.processes(deferred), "the end of the marked one")
    for run in (stopped, hung, fine, deferred):
        assert not [where for where, text in answers(airflow, run).items() if CANARY in text]
        told = [read_lines(path) for path in airflow.story.glob(f"{airflow.chain(run).chain_id}.told")]
        assert CANARY not in json.dumps(told)
    files = [path for path in (airflow.folder / "home").rglob("*") if path.is_file()]
    assert not holders(files)
    seen = [path.read_bytes() for path in airflow.root.rglob("output.log")]
    assert any(CANARY.encode() in text for text in seen), "the training has really printed it"


def holders(files: list[Path]) -> list[Path]:
    """The files that hold the secret."""
    return [path for path in files if CANARY.encode() in path.read_bytes()]


def answers(airflow: Harness, run: Run) -> dict[str, str]:
    """Everything that Airflow, and the plugin, say about a run."""
    client, (dag_id, run_id, task_id) = airflow.client, run.key
    instance = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
    found: dict[str, Any] = {"tries": client.tries(*run.key), "states": client.state_store(*run.key)}
    for key in [entry["key"] for entry in client.request("GET", f"{instance}/xcomEntries")["xcom_entries"]]:
        found[f"xcom {key}"] = client.xcom(*run.key, key)
    for one in found["tries"]:
        found[f"log {one['try_number']}"] = client.log(*run.key, one["try_number"])
    found["instance"] = client.task_instance(*run.key)
    assert "HF_TOKEN" in json.dumps(found["instance"]["rendered_fields"])
    for page in ("chain", "log"):
        shown = airflow.page(f"/fault-tolerance/{page}/{dag_id}?run_id={run_id}&task_id={task_id}")
        assert shown.status_code == 200
        found[f"page {page}"] = shown.text
    return {where: json.dumps(value) for where, value in found.items()}
