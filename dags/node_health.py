"""Look at idle nodes every night, so that a bad one is found before a training finds it.

``retest_quarantined`` looks deeply at the nodes in quarantine and releases those that pass (whom a person has put there
a person releases). ``test_idle`` looks at all nodes that nobody uses and puts the bad ones into quarantine, where every
training avoids them. Run config: ``checkpoints``, the folder that trainings save to ({node} is the node's name).
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.operators.preflight import PreflightOperator

NODES = LocalJob(command="true")  # where the nodes are: only its pool is of interest, the command isn't run
CHECKS = {
    "checkpoints": "{{ params.checkpoints }}",
    # The nodes of the local backend share one machine: what it is like as a whole says nothing about one of them.
    "skip": ("disk-size root", "disk-size shm", "disk-size cache", "disk-free root", "memory-free", "cpu-speed"),
}

with DAG(
    dag_id="node_health",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    params={"checkpoints": Param("/tmp", type="string", minLength=1)},
    tags=["airflow_ft"],
    doc_md=__doc__,
):
    retested = PreflightOperator(
        task_id="retest_quarantined",
        job=NODES,
        nodes="quarantined",
        preflight={"set": "deep", **CHECKS},
        on_failure="continue",
        update_quarantine=True,
    )
    tested = PreflightOperator(
        task_id="test_idle",
        job=NODES,
        nodes="free",
        preflight={"set": "standard", **CHECKS},
        on_failure="continue",
        update_quarantine=True,
    )

    @task
    def tell(again: Any = None, idle: Any = None) -> dict[str, Any]:
        """Say what the night has brought."""
        for found in (again, idle):
            print(found["text"])
        return {"bad": idle["bad_nodes"], "released": again["released_nodes"], "kept": idle["quarantined_nodes"]}

    retested >> tested
    tell(again=retested.output, idle=tested.output)
