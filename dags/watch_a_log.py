"""Watch a training that something else has started, by the log that it writes; say so when it stopped advancing.

Nothing of the training is touched: it may be a job of another scheduler, or somebody's ``nohup``. Run config: ``log``,
a path or a glob that worker and triggerer can read, and ``until_step`` (0: wait for the end).
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, Param

from airflow_ft.core.policy import HangSettings
from airflow_ft.sensors.progress import TrainingProgressSensor

with DAG(
    dag_id="watch_a_log",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "log": Param("/tmp/train.log", type="string", minLength=1),
        "until_step": Param(0, type="integer", minimum=0),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):
    TrainingProgressSensor(
        task_id="train",
        log="{{ params.log }}",
        until_step="{{ params.until_step or '' }}",
        hang=HangSettings(floor_seconds=120, startup_seconds=1800),
        poll_interval=5,
        timeout=timedelta(days=7).total_seconds(),
    )
