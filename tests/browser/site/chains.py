"""The DAGs of the browser tests: real trainings of shell, one for each story that a person has to read."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import BackoffSettings, ExclusionSettings, FaultTolerancePolicy, HangSettings
from airflow_ft.operators.training import FaultTolerantTrainingOperator

SCRIPT = Path(__file__).parent / "training" / "steps.sh"
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def policy(max_restarts: int = 3) -> FaultTolerancePolicy:
    return FaultTolerancePolicy.full(
        max_restarts=max_restarts,
        hang=HangSettings(floor_seconds=5, ceiling_seconds=15, startup_seconds=60, check_interval_seconds=1),
        backoff=BackoffSettings(base_seconds=0.5, max_seconds=1),
        exclusion=ExclusionSettings(max_share=0.9),
        settle_seconds=0.5,
        grace_seconds=2,
    )


def job(arguments: str, nodes: int = 1) -> LocalJob:
    token = os.environ.get("AIRFLOW_VAR_HF_TOKEN", "")
    return LocalJob(
        command=f"sh {SCRIPT} {arguments}",
        nodes=nodes,
        pool_nodes=40,
        env={"STORY": os.environ.get("STORY", "/tmp"), "HF_TOKEN": token},
    )


def chain(dag_id: str, arguments: str, *, nodes: int = 1, max_restarts: int = 3) -> None:
    with DAG(dag_id, schedule=None, start_date=START, catchup=False, tags=["browser"]):
        stage = EmptyOperator(task_id="stage_data")
        training = FaultTolerantTrainingOperator(
            task_id="pretrain",
            job=job(arguments, nodes),
            policy=policy(max_restarts),
            retry_delay=timedelta(seconds=1),
        )
        stage >> training


def mapped(dag_id: str, commands: list[str]) -> None:
    with DAG(dag_id, schedule=None, start_date=START, catchup=False):
        policies: dict[str, Any] = {"policy": policy(), "retry_delay": timedelta(seconds=1)}
        FaultTolerantTrainingOperator.partial(task_id="distill", **policies).expand(job=[job(one) for one in commands])


chain("crash", "4000 0.5 crash 12")  # goes on: the tests look at it live
chain("lost_node", "4000 0.5", nodes=2)
chain("hang", "60 0.2 hang 12")
chain("budget", "60 0.2 dns 7 9", max_restarts=1)
chain("oom", "60 0.2 oom 4")
chain("cleared", "400 0.2 bug 9")
chain("markup", "60 0.2 markup 3")
chain("marked", "4000 0.5")  # a person marks it as failed
chain("long", "5 0.2")  # its records are replaced by those of 128 attempts
mapped("sweep", ["20 0.2", "60 0.2 crash 6", "60 0.2 oom 5", "30 0.2 dns 6"])
