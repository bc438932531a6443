"""The DAG of the test with trainings of somebody else: which process it is comes from the run's conf."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.operators.training import FaultTolerantTrainingOperator

QUICK = HangSettings(floor_seconds=5, ceiling_seconds=20, startup_seconds=120, check_interval_seconds=1)

with DAG(
    "foreign", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False, max_active_runs=10
):
    FaultTolerantTrainingOperator(
        task_id="train",
        job=ForeignJob(pid="{{ dag_run.conf['pid'] }}", log="{{ dag_run.conf['log'] }}"),
        policy=FaultTolerancePolicy.full(max_restarts=3, hang=QUICK, settle_seconds=0.5, grace_seconds=1),
    )
