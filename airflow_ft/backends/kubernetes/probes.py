"""A probe job on Kubernetes: the user's pod, once on each of so many nodes, with another command in it.

Whatever kind the training is of, its probe is a plain Job: one pod a node, each index for itself (a node that fails
must not take the others' answers along, as a ``backoffLimit`` of 0 would), and nobody else's probe on the same node.
Image, environment, resources, volumes, tolerations, accounts and labels (a queue's name is one) are the training's, so
that what is tested is what training would have had. Its nodes are named by name, in service or cordoned: a node in
quarantine is to be tested before it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.backends.kubernetes.affinity import HOSTNAME, REQUIRED
from airflow_ft.backends.kubernetes.job import KubernetesJob, gpus_of, training_container
from airflow_ft.backends.kubernetes.kinds import Json, Template, walk

PROBE = "airflow-ft/probe"  # a label of a probe's pods
CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
# What belongs to the training's life, not to its place.
_OF_THE_POD = ("initContainers", "restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds")
_OF_ITS_NAME = ("hostname", "subdomain", "topologySpreadConstraints", "schedulingGates")
_OF_THE_CONTAINER = ("args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def probing(job: KubernetesJob, command: tuple[str, ...], nodes: Sequence[str]) -> KubernetesJob:
    """Return the probe job. Raises ``ValueError`` where a manifest doesn't say what its pods are made of."""
    pod, container = _pod_and_container(job)
    if not container.get("image"):
        raise ValueError(
            f"manifest: a {job.kind.kind} whose image is in its runtime can't be probed with. Name the image in "
            "manifest.spec.trainer.image."
        )
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in (*_OF_THE_POD, *_OF_ITS_NAME)}
    kept = {key: value for key, value in container.items() if key not in _OF_THE_CONTAINER}
    spec |= {
        "restartPolicy": "Never",
        "containers": [{"name": "probe", **kept, "command": list(command)}],
        "affinity": {**_on_just(spec, nodes), **_alone()},
        "tolerations": [*(spec.get("tolerations") or ()), CORDONED],
    }
    metadata = {key: (pod.get("metadata") or {}).get(key) or {} for key in ("labels", "annotations")}
    metadata["labels"] = {**metadata["labels"], PROBE: "yes"}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {key: value for key, value in (job.document.get("metadata") or {}).items() if key in _KEPT},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            "backoffLimitPerIndex": 0,
            "template": {"metadata": metadata, "spec": spec},
        },
    }
    settings = {name: getattr(job, name) for name in ("conn_id", "namespace", "agent", "start_error_seconds")}
    # Each index has its own limit: the one limit of all that airflow_ft sets otherwise must not come on top.
    return KubernetesJob(manifest=manifest, platform_restarts=True, **settings)


_KEPT = ("labels", "namespace")


def _pod_and_container(job: KubernetesJob) -> tuple[Json, Json]:
    """Return the pod template with the most GPUs (an MPIJob's launcher has none), and what trains in it."""
    document = job.document
    if job.kind.kind == "TrainJob":
        trainer = walk(document, ("spec", "trainer")) or {}
        resources = {"resources": trainer["resourcesPerNode"]} if trainer.get("resourcesPerNode") else {}
        return {}, {**{key: trainer[key] for key in ("image", "env") if key in trainer}, **resources}
    pods: list[tuple[Template, Json]] = [(one, walk(document, one.path)) for one in job.kind.templates(document)]
    _, pod = max(pods, key=lambda one: (gpus_of(one[1]), one[0].count))
    return pod, training_container(pod.get("spec") or {}, job.container or job.kind.container)


def is_probe(job: KubernetesJob) -> bool:
    """Whether a job is one of these: it names its nodes itself."""
    return bool(walk(job.document, ("spec", "template", "metadata", "labels", PROBE)) == "yes")


def _on_just(spec: Json, nodes: Sequence[str]) -> Json:
    """Return the node affinity: these nodes, one term for each (a field takes one value), with what the user asks."""
    node = dict(walk(spec, ("affinity", "nodeAffinity")) or {})
    theirs = (node.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    terms = []
    for name in nodes:
        here = {"key": "metadata.name", "operator": "In", "values": [name]}
        terms += [{**term, "matchFields": [*(term.get("matchFields") or ()), here]} for term in theirs]
    return {"nodeAffinity": {**node, REQUIRED: {"nodeSelectorTerms": terms}}}


def _alone() -> Json:
    others = {"labelSelector": {"matchLabels": {PROBE: "yes"}}, "topologyKey": HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [others]}}
