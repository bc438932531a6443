"""The ten lines of a DAG that the README shows. Needs ``/data/code/train.py``."""

from datetime import datetime

from airflow.sdk import DAG

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

with DAG("pretrain", start_date=datetime(2026, 1, 1), schedule=None):
    FaultTolerantTrainingOperator(
        task_id="pretrain",
        job=LocalJob(command="torchrun --nproc-per-node=8 train.py --out /data/run1", workdir="/data/code"),
        policy=FaultTolerancePolicy.full(max_restarts=5),
    )
