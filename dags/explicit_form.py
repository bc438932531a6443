"""Pretrain a small GPT on this machine, with the stages of fault tolerance as tasks in the grid.

The same training as in ``pretrain_local``. Each attempt is a group: watch, classify, decide, act. Two stages are the
author's own: a branch that never restarts a program that is at fault, whatever the policy says, and a task that opens a
ticket for each fault. Run config: ``steps``, ``checkpoint_every`` and ``out`` (the folder of its checkpoints).
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.taskgroups.training import fault_tolerant_training

SCRIPT = Path(__file__).parent / "training" / "train_gpt.py"


@task.branch
def decide(attempt: dict[str, Any]) -> str:
    """Resubmit, but not a program that is at fault. ``choices`` has the tasks that a branch of its own may follow."""
    choices: dict[str, str] = attempt["choices"]
    stop = attempt["fault_class"] in ("APP_ERROR", "OOM_GPU") or "resubmit" not in choices
    return choices["give_up" if stop else "resubmit"]


@task
def ticket(attempt: dict[str, Any]) -> str:
    """Say what a ticket would say."""
    return f"Attempt {attempt['number']} at step {attempt['step']}: {attempt['fault_class']}: {attempt['text']}"


@task
def evaluate(result: dict[str, Any]) -> str:
    """Use the training's result, as the single operator would have returned it."""
    return f"Evaluating the checkpoint of step {result['step']}, after {result['restarts']} restarts."


with DAG(
    dag_id="explicit_form",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "steps": Param(200, type="integer", minimum=1),
        "checkpoint_every": Param(20, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_explicit", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):
    pretraining = fault_tolerant_training(
        group_id="pretrain",
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
        attempts=4,
        stages={"decide": decide},
        on_fault=ticket,
    )  # fmt: skip
    evaluate(pretraining.get_child_by_label("result").output)
