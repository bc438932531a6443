"""One small manifest of each kind of training job, as users write them."""

from __future__ import annotations

import copy
from typing import Any

CONTAINER: dict[str, Any] = {"name": "main", "image": "registry.local/train:1", "command": ["python", "train.py"]}
KINDS = ("Job", "PyTorchJob", "JobSet", "TrainJob", "RayJob", "MPIJob", "VolcanoJob")


def manifest(kind: str, **container: Any) -> dict[str, Any]:
    """A manifest. ``container`` are fields of the container that trains; ``None`` leaves one out."""
    wanted = {**CONTAINER, **container}
    given = {key: value for key, value in wanted.items() if value is not None}
    return copy.deepcopy(_MAKERS[kind](given))


def _pod(container: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [container]}}


def _object(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def _job(container: dict[str, Any]) -> dict[str, Any]:
    return _object("batch/v1", "Job", {"parallelism": 2, "completions": 2, "template": _pod(container)})


def _pytorch(container: dict[str, Any]) -> dict[str, Any]:
    named = {**container, "name": "pytorch"}
    replicas = {"Master": {"replicas": 1, "template": _pod(named)}, "Worker": {"replicas": 3, "template": _pod(named)}}
    return _object("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": replicas})


def _jobset(container: dict[str, Any]) -> dict[str, Any]:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": _pod(container)}}
    return _object(
        "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"name": "w", "replicas": 2, "template": job}]}
    )


def _trainjob(container: dict[str, Any]) -> dict[str, Any]:
    trainer = {"numNodes": 2, **{key: value for key, value in container.items() if key != "name"}}
    return _object(
        "trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    )


def _rayjob(container: dict[str, Any]) -> dict[str, Any]:
    pod = _pod({key: value for key, value in container.items() if key not in ("command", "args")})
    group = {"groupName": "w", "replicas": 2, "template": pod}
    cluster = {"headGroupSpec": {"template": pod}, "workerGroupSpecs": [group]}
    return _object("ray.io/v1", "RayJob", {"entrypoint": "python train.py", "rayClusterSpec": cluster})


def _mpijob(container: dict[str, Any]) -> dict[str, Any]:
    replicas = {
        "Launcher": {"replicas": 1, "template": _pod(container)},
        "Worker": {"replicas": 2, "template": _pod({"name": "w", "image": "registry.local/train:1"})},
    }
    return _object("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": replicas})


def _volcano(container: dict[str, Any]) -> dict[str, Any]:
    tasks = [{"name": "worker", "replicas": 3, "template": _pod(container)}]
    return _object("batch.volcano.sh/v1alpha1", "Job", {"minAvailable": 3, "tasks": tasks})


_MAKERS = {
    "Job": _job,
    "PyTorchJob": _pytorch,
    "JobSet": _jobset,
    "TrainJob": _trainjob,
    "RayJob": _rayjob,
    "MPIJob": _mpijob,
    "VolcanoJob": _volcano,
}
