"""Watch a PyTorchJob that somebody else has made (another team, another scheduler), judge its faults, leave it alone.

With ``own=True`` it would be stopped with this task, and ``again=KubernetesJob(…)`` would follow it. Run config: the
job's ``name``. Needs a connection ``gpu_cluster`` of type Kubernetes, which only has to be allowed to look.
"""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG, Param

from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

with DAG(
    dag_id="judge_a_pytorchjob",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={"name": Param("llama", type="string", minLength=1)},
    tags=["airflow_ft", "kubernetes"],
    doc_md=__doc__,
) as dag:
    FaultTolerantTrainingOperator(
        task_id="judge",
        job=ForeignJob(kind="PyTorchJob", name="{{ params.name }}", namespace="training", conn_id="gpu_cluster"),
        policy=FaultTolerancePolicy.full(),
    )
