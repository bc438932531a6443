"""Nodes are tested, searched, put into quarantine and released by a real Airflow: operators, example DAG, commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.harness import PATIENCE, Harness

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "dags" / "node_health.py"
CLUSTER = "local:default"


def night(airflow: Harness, name: str, saved: Path) -> dict[str, Any]:
    """Run the example to its end. Returns the results of its tasks."""
    run = airflow.start("node_health", name=name, checkpoints=f"{saved}/{{node}}")
    ended = airflow.client.wait_for_run(run.dag_id, run.run_id, PATIENCE)
    tasks = ("retest_quarantined", "test_idle", "tell")
    logs = {task: airflow.client.log(run.dag_id, run.run_id, task, 1)[-3000:] for task in tasks if ended != "success"}
    assert ended == "success", logs
    return {task: airflow.client.xcom(run.dag_id, run.run_id, task, "return_value") for task in tasks}


def in_quarantine(printed: str) -> dict[str, Any]:
    """Return node to entries, as ``airflow ft nodes --json`` has them."""
    shown = json.loads(printed[printed.index("{") :])
    return {kept["node"]: kept["entries"] for kept in shown.get(CLUSTER, ())}


@pytest.mark.row("S3")
@pytest.mark.row("S4")
@pytest.mark.row("M9")
@pytest.mark.story("EXC-06")
def test_a_night_finds_the_bad_node_and_the_next_one_releases_it_when_it_is_mended(
    airflow: Harness, tmp_path: Path
) -> None:
    (airflow.dags / EXAMPLE.name).write_text(EXAMPLE.read_text().replace('schedule="@daily"', "schedule=None"))
    for node in ("n1", "n3", "n4"):
        (tmp_path / node).mkdir()
    (tmp_path / "n2").write_text("a file where the folder should be")
    airflow.client.wait_for_dag("node_health", PATIENCE)

    first = night(airflow, "first", tmp_path)
    assert first["tell"] == {"bad": ["n2"], "released": [], "kept": []}
    assert first["retest_quarantined"]["text"] == "There was no node to look at."
    items = {node: items["checkpoint"]["status"] for node, items in first["test_idle"]["nodes"].items()}
    assert items == {"n1": "ok", "n2": "failed", "n3": "ok", "n4": "ok"}
    assert first["test_idle"]["excluded_nodes"] == ["n2"]

    listed, put_in, searched = airflow.commands(
        "ft nodes --json",
        f"ft nodes quarantine n4 --cluster {CLUSTER} --why fan",
        "ft bisect --nodes n1,n2,n3,n4 --max-tests 1 --json -- true",
    )
    (entry,) = in_quarantine(listed)["n2"]
    assert entry["by"] == "node_health.test_idle, preflight"
    assert "item=checkpoint status=failed" in entry["evidence"]
    assert "n4 is in quarantine until" in put_in
    assert list(json.loads(searched[searched.index("{") :])["confidence"]) == ["n1", "n3"], "bad nodes are left out"

    (tmp_path / "n2").unlink()
    (tmp_path / "n2").mkdir()
    second = night(airflow, "second", tmp_path)
    assert second["tell"] == {"bad": [], "released": ["n2"], "kept": ["n4"]}
    assert sorted(second["retest_quarantined"]["nodes"]) == ["n1", "n2", "n3", "n4"], "two others to compare with"
    assert sorted(second["test_idle"]["nodes"]) == ["n1", "n2", "n3"], "a person's word stands"

    listed, _, left = airflow.commands(
        "ft nodes --json", f"ft nodes release n4 --cluster {CLUSTER}", f"ft nodes --cluster {CLUSTER}"
    )
    assert list(in_quarantine(listed)) == ["n4"]
    assert "No node is in quarantine." in left


@pytest.mark.row("S4")
@pytest.mark.row("P6")
def test_a_bisect_and_a_preflight_name_the_bad_node_and_leave_no_job_when_a_person_ends_it(airflow: Harness) -> None:
    found = airflow.start("bisect_nodes", name="found", reproducer="test $FT_NODE != n3")
    looked = airflow.start("look_at_nodes", name="looked", nodes="n1,n4", fan="test $FT_NODE != n4")
    airflow.wait_ended([found, looked])
    result = airflow.client.xcom(*found.key, "return_value")
    assert result["faulty_nodes"] == result["excluded_nodes"] == ["n3"], airflow.explain(found)
    assert "Bisect, round 2:" in airflow.client.log(*found.key, 1), "how far it is"
    assert all(job.closed for job in airflow.jobs(found))
    assert airflow.state(looked) == "failed", "the finding fails the task"
    assert airflow.client.xcom(*looked.key, "return_value")["bad_nodes"] == ["n4"], "what was found is there"
    assert "The preflight failed on n4: item=fan status=failed" in airflow.client.log(*looked.key, 1)

    ended = airflow.start("bisect_nodes", name="ended", reproducer="sleep 600")
    airflow.wait(lambda: [job for job in airflow.jobs(ended) if job.nodes], "a test that runs")
    airflow.client.mark(*ended.key, "failed")
    airflow.wait(lambda: all(job.closed for job in airflow.jobs(ended)), "an end of its jobs", 60)
    assert airflow.state(ended) == "failed"
