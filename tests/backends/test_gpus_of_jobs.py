"""How many GPUs a job holds: what the limit on lost GPU-hours is counted with."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.local.job import LocalJob


def pytorch_job(limits: dict[str, Any], workers: int = 3) -> KubernetesJob:
    container = {"name": "pytorch", "image": "x", "resources": {"limits": limits}}
    replica = {"template": {"spec": {"containers": [container]}}}
    replicas = {"Master": {"replicas": 1, **replica}, "Worker": {"replicas": workers, **replica}}
    manifest = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "x"}}
    return KubernetesJob(manifest={**manifest, "spec": {"pytorchReplicaSpecs": replicas}})


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [({"nvidia.com/gpu": 8}, 32), ({"amd.com/gpu": "4", "memory": "1Gi"}, 16), ({"memory": "1Gi"}, 0), ({}, 0)],
)
def test_a_manifest_says_how_many_gpus_its_pods_have(limits: dict[str, Any], gpus: int) -> None:
    assert pytorch_job(limits).gpus() == gpus


def test_a_job_that_does_not_say_has_none() -> None:
    assert LocalJob(command=["true"]).gpus() == 0
