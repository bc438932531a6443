"""Watch a training that somebody has started by hand, say what is wrong with it, and leave it alone.

The process may be somebody's ``nohup torchrun …``, on the machine where worker and triggerer run. When it dies or
hangs, this task fails with the fault class, and with what a job of ours would have got. Run config: ``pid`` and
``log``, the file that it writes (or a glob of several).
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG, Param

from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.operators.training import FaultTolerantTrainingOperator

with DAG(
    dag_id="judge_a_process",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "pid": Param(2, type="integer", minimum=2),
        "log": Param("/tmp/train.log", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):
    FaultTolerantTrainingOperator(
        task_id="judge",
        job=ForeignJob(pid="{{ params.pid }}", log="{{ params.log }}"),
        policy=FaultTolerancePolicy.full(hang=HangSettings(floor_seconds=120, startup_seconds=1800)),
    )
