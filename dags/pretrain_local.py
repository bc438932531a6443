"""Pretrain a small GPT on this machine, and keep it alive.

Two virtual nodes of a pool of four, two ranks each, real ``torchrun`` with gloo. The script is an ordinary one and
knows nothing of airflow_ft. Run config: ``steps``, ``checkpoint_every`` and ``out`` (the folder of its checkpoints).
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.operators.training import FaultTolerantTrainingOperator

SCRIPT = Path(__file__).parent / "training" / "train_gpt.py"

with DAG(
    dag_id="pretrain_local",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "steps": Param(200, type="integer", minimum=1),
        "checkpoint_every": Param(20, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_pretrain", type="string", minLength=1),
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
                "--checkpoint-every={{ params.checkpoint_every }}",
                "--out={{ params.out }}/{{ run_id }}",
            ],
            nodes=2,
        ),
        policy=FaultTolerancePolicy.full(
            max_restarts=3,
            # A step takes a fraction of a second here; a cluster's defaults would wait for minutes.
            hang=HangSettings(floor_seconds=10, ceiling_seconds=120, startup_seconds=300, check_interval_seconds=1),
            grace_seconds=15,
        ),
    )  # fmt: skip
