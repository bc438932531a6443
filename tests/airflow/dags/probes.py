"""A bisect of a pool of its own; the reproducer comes from the run's conf."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.operators.bisect import BisectOperator

with DAG("bisect_nodes", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False):
    BisectOperator(
        task_id="train",
        job=LocalJob(command="true", pool="probes"),
        bisect={"command": ["sh", "-c", "{{ dag_run.conf['reproducer'] }}"]},
        update_quarantine=True,
    )
