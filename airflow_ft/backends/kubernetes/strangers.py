"""Objects that we have not made: which pods are theirs, and what each of them is for. One table, as ``kinds``.

Our own pods carry our labels; here the operators' have to do. ``dressed`` gives such a pod, in memory, the labels that
it would have if we had made it, so that everything that reads pods reads these, too.
"""

from __future__ import annotations

from airflow_ft.backends.kubernetes.building import CONTAINER, PRINTS, ROLE
from airflow_ft.backends.kubernetes.job import DEFAULT_CONTAINER, training_container
from airflow_ft.backends.kubernetes.kinds import HELPS, TRAINS, Json, Kind, walk

# By which label an operator marks the pods of the object with that name (kubernetes-notes, seen on real clusters).
_MARKS = {
    "PyTorchJob": "training.kubeflow.org/job-name",
    "MPIJob": "training.kubeflow.org/job-name",
    "JobSet": "jobset.sigs.k8s.io/jobset-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",  # its JobSet has its name
}
JOB_NAME, VOLCANO_NAME, RAY_CLUSTER = "batch.kubernetes.io/job-name", "volcano.sh/job-name", "ray.io/cluster"


def marks(kind: Kind, name: str, job: Json | None) -> list[tuple[str, str]]:
    """Return the labels of an object's pods, each with its value: a pod with one of them is its.

    :param job: the object, as it was last seen: a RayJob says there what its cluster is called.
    """
    if kind.kind == "RayJob":
        cluster = walk(job, ("status", "rayClusterName"))
        return [*([(RAY_CLUSTER, str(cluster))] if cluster else []), (JOB_NAME, name)]
    if kind.kind == "Job":
        return [(JOB_NAME if kind.group == "batch" else VOLCANO_NAME, name)]
    return [(_MARKS[kind.kind], name)]


def dressed(pod: Json, kind: Kind) -> Json:
    """Return the pod with the labels that ours have. The given one stays as it is."""
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    role, prints = _role(kind, labels)
    default = annotations.get(DEFAULT_CONTAINER)
    container = str(training_container(pod.get("spec") or {}, kind.container, default).get("name", ""))
    ours = {ROLE: role, PRINTS: "yes" if prints else "no"}
    worn = {"labels": {**ours, **labels}, "annotations": {CONTAINER: container, **annotations}}
    return {**pod, "metadata": {**metadata, **worn}}


def _role(kind: Kind, labels: Json) -> tuple[str, bool]:
    """Whether a pod trains (its end is the job's end) or helps, and whether training prints there."""
    if kind.kind == "RayJob":
        return (TRAINS, False) if labels.get("ray.io/node-type") == "head" else (HELPS, JOB_NAME in labels)
    if kind.kind == "MPIJob" and labels.get("training.kubeflow.org/job-role") == "worker":
        return HELPS, False  # it only runs sshd
    return TRAINS, True
