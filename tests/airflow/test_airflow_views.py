"""What a person sees: the plugin's pages, the links that lead there, and ``airflow ft chain``."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.airflow.harness import Harness
from tests.airflow.stories import check

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]


def test_the_links_of_a_task_lead_to_its_chain_and_its_log_as_plain_text(airflow: Harness) -> None:
    """They show what happened, and only to whom may see the task; the chain's own page asks the API for it."""
    run = airflow.start("one_node", "--crash-at 3 --say '<script>alert(1)</script>'", name="seen")
    airflow.wait_ended([run])
    check(airflow, run, in_place=1)
    path = "dags/{}/dagRuns/{}/taskInstances/{}/links".format(*run.key)
    links = airflow.client.request("GET", path)["extra_links"]
    assert links.keys() == {"Training log", "Training job", "Retry chain"}
    own = links["Retry chain"]
    assert own.startswith(f"{airflow.stack.url}/plugin/fault-tolerance?dag_id=one_node&run_id=")
    links["Retry chain"] = own.replace("/plugin/fault-tolerance?dag_id=one_node&", "/fault-tolerance/chain/one_node?")
    for url in links.values():
        page = airflow.page(url)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain")
        assert page.headers["x-content-type-options"] == "nosniff"
        assert httpx.get(url, trust_env=False).status_code == 401
        assert airflow.page(url, "outsider").status_code == 403
    assert "restart in place" in airflow.page(links["Retry chain"]).text
    assert "<script>alert(1)</script>" in airflow.page(links["Training log"]).text
    assert airflow.page(links["Retry chain"].replace(run.run_id, "no-such-run")).status_code == 404


def test_the_command_line_shows_the_chain_as_a_table_and_as_json(airflow: Harness) -> None:
    """``airflow ft chain DAG RUN TASK``, and a sentence where there is none."""
    run = airflow.start("one_node", "--crash-at 3", name="shown")
    airflow.wait_ended([run])
    check(airflow, run, in_place=1)
    table = airflow.command("ft", "chain", *run.key)
    assert "restart in place" in table.stdout
    shown = json.loads(airflow.command("ft", "chain", *run.key, "--json").stdout)
    assert shown["task_state"] == "success"
    assert len(shown["attempts"][0]["incidents"]) == 1
    missing = airflow.command("ft", "chain", run.dag_id, "no-such-run", "train")
    assert missing.returncode == 1
    assert "No retry chain of one_node.train in run 'no-such-run'" in missing.stderr
