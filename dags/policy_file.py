"""Train with the team's policy, which stands in a file of its own beside the DAGs.

A file can be read by those who don't write DAGs, checked (``airflow-ft policy check``), and rehearsed on what has
happened so far (``airflow ft replay``). Its rules are the team's own: here, data that isn't there yet is waited for.
Run config: ``steps`` and ``out`` (the folder of its checkpoints).
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.operators.training import FaultTolerantTrainingOperator

SCRIPT = Path(__file__).parent / "training" / "train_gpt.py"

with DAG(
    dag_id="policy_file",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "steps": Param(100, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_policy_file", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):
    FaultTolerantTrainingOperator(
        task_id="pretrain",
        job=LocalJob(
            command=[
                "torchrun", "--nproc-per-node=2", str(SCRIPT),
                "--steps={{ params.steps }}",
                "--out={{ params.out }}/{{ run_id }}",
            ],
        ),
        policy="policies/nightly.yaml",  # beside this file
    )  # fmt: skip
