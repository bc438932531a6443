"""Train with a RayJob, and keep it alive: the basic mode, as a cautious user begins.

Needs a connection ``gpu_cluster`` of type Kubernetes; ``airflow ft doctor --conn gpu_cluster`` says whether it will do.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG, Param

from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

with DAG(
    dag_id="pretrain_rayjob",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={"steps": Param(100_000, type="integer", minimum=1)},
    tags=["airflow_ft", "kubernetes"],
    doc_md=__doc__,
) as dag:
    FaultTolerantTrainingOperator(
        task_id="pretrain",
        job=KubernetesJob(manifest="rayjob.yaml", conn_id="gpu_cluster", namespace="training"),
        policy=FaultTolerancePolicy.basic(max_restarts=3),
    )
