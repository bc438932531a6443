"""The whole thing: a real Airflow, the operator in a DAG, and training on a real Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.core.chain import Chain
from demo.stack import AirflowStack
from tests.kubernetes.lab import CONNECTION, Lab
from tests.kubernetes.trainings import manifest

pytestmark = [pytest.mark.kubernetes, pytest.mark.airflow, pytest.mark.timeout(600)]
PATIENCE = 300.0  # for what takes 40 s on a quiet machine
DAG = """
from airflow.sdk import DAG

from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.training import FaultTolerantTrainingOperator

for name, manifest in {manifests!r}.items():
    with DAG(name) as dag:
        FaultTolerantTrainingOperator(
            task_id="train",
            job=KubernetesJob(manifest=manifest, conn_id={conn_id!r}, namespace={namespace!r}),
            policy=FaultTolerancePolicy.full(max_restarts=2, grace_seconds=3),
        )
    globals()[name] = dag
"""
TRAININGS = {
    "in_place": ("PyTorchJob", "link-once"),
    "resubmitted": ("JobSet", "names-once"),
    "stopped": ("TrainJob", "crash"),
    "well": ("Job", "ok"),
}


@pytest.fixture
def airflow(lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AirflowStack]:
    """An Airflow that knows the cluster by a connection."""
    manifests = {name: manifest(*training) for name, training in TRAININGS.items()}
    (tmp_path / "dags").mkdir()
    text = DAG.format(manifests=manifests, conn_id=CONNECTION, namespace=lab.namespace)
    (tmp_path / "dags" / "trainings.py").write_text(text)
    extra = {"kube_config_path": str(lab.kubeconfig), "cluster_context": lab.cluster.context}
    connection = json.dumps({"conn_type": "kubernetes", "extra": extra})
    environment = {f"AIRFLOW_CONN_{CONNECTION.upper()}": connection}
    with AirflowStack(tmp_path / "home", tmp_path / "dags", extra_env=environment) as stack:
        stack.prepare(template=request.config.cache.mkdir("airflow-template") if request.config.cache else None)
        stack.start()
        stack.wait_healthy()
        yield stack


@pytest.mark.row("M1")
@pytest.mark.row("S4")
def test_the_operator_keeps_trainings_alive_on_kubernetes(lab: Lab, airflow: AirflowStack) -> None:
    """A link that failed: in place, in the same pods. No DNS: a new attempt. A bug: one attempt, and it stops."""
    client = airflow.client()
    for name in TRAININGS:
        client.wait_for_dag(name, PATIENCE)
    runs = {name: client.trigger(name) for name in TRAININGS}
    ended = {name: client.wait_for_run(name, run, PATIENCE) for name, run in runs.items()}
    told = {name: client.retry_chain(name, run, "train")["headline"] for name, run in runs.items()}
    expected = {"in_place": "success", "resubmitted": "success", "stopped": "failed", "well": "success"}
    assert ended == expected, told

    chains = {name: Chain.from_record(client.state_store(name, run, "train")["ft/chain"]) for name, run in runs.items()}
    assert {name: chain.ledger.restarts for name, chain in chains.items()} == {
        "in_place": 0,
        "resubmitted": 1,
        "stopped": 0,
        "well": 0,
    }, told
    made = {name: _attempts(lab, chain.chain_id) for name, chain in chains.items()}
    assert made["in_place"] == made["stopped"] == made["well"] == {"0"}
    assert made["resubmitted"] == {"0", "1"}


def _attempts(lab: Lab, chain_id: str) -> set[str]:
    """The attempts of a chain that were ever submitted: each leaves its record."""
    found = lab.cluster.get("configmaps", "-n", lab.namespace, "-l", f"airflow-ft/chain={chain_id}")
    return {one["metadata"]["labels"]["airflow-ft/attempt"] for one in found["items"]}
