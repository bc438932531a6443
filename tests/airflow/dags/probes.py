"""A bisect and a preflight, of a pool of its own each; what is run on the nodes comes from the run's conf."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.preflight import PreflightOperator

START = datetime(2026, 1, 1, tzinfo=timezone.utc)

with DAG("bisect_nodes", schedule=None, start_date=START, catchup=False):
    BisectOperator(
        task_id="train",
        job=LocalJob(command="true", pool="probes"),
        bisect={"command": ["sh", "-c", "{{ dag_run.conf['reproducer'] }}"]},
        update_quarantine=True,
    )

with DAG("look_at_nodes", schedule=None, start_date=START, catchup=False):
    PreflightOperator(
        task_id="train",
        job=LocalJob(command="true", pool="looked-at"),
        nodes="{{ dag_run.conf['nodes'] }}",
        preflight={"set": "quick", "commands": {"fan": ["sh", "-c", "{{ dag_run.conf['fan'] }}"]}},
    )
