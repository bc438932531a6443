"""The kinds of training jobs: where each keeps its pod templates, replicas, status and settings. One table, ``KINDS``.

Everything else in this package asks this table; nothing else knows what a field of an operator is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Path = tuple[str | int, ...]

TRAINS, HELPS = "training", "helper"


@dataclass(frozen=True)
class Template:
    """A pod template in a manifest.

    ``role`` is ``TRAINS`` for pods whose end is the job's end. ``wrapped``: the agent goes around its command.
    """

    path: Path
    name: str
    count: int
    role: str = TRAINS
    wrapped: bool = True


@dataclass(frozen=True)
class Kind:
    """One kind of object. ``restarts`` are fields that make the platform restart, and the value that means never."""

    kind: str
    group: str
    versions: tuple[str, ...]
    plural: str
    templates: Callable[[Json], list[Template]]
    container: str | None = None  # the name that the training container has to have
    restarts: tuple[tuple[str, Any], ...] = ()  # below spec; None: the field has to be absent
    pod_restart_policy: bool = True  # ``restartPolicy`` of the pod's spec is ours to set
    suspend: Path | None = ("spec", "suspend")
    suspend_first: bool = False
    name_limit: int = 63
    name_tail: str = ""  # what the operator appends to the name at the longest

    @property
    def api_versions(self) -> tuple[str, ...]:
        """The values of ``apiVersion`` that are known."""
        return tuple(f"{self.group}/{version}" for version in self.versions)

    @property
    def resource(self) -> str:
        """What kubectl calls such objects, whatever else is in the cluster."""
        return self.plural if self.group == "batch" else f"{self.plural}.{self.group}"

    def collection(self, api_version: str, namespace: str) -> str:
        """Return the path of the API under which such objects are."""
        return f"/apis/{api_version}/namespaces/{namespace}/{self.plural}"


def walk(document: Any, path: Path) -> Any:
    """Return what is at the path, ``None`` if the way there is missing."""
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def dotted(path: Path) -> str:
    """Write a path as people do: ``spec.tasks[0].template``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _count(value: Any, default: int = 1) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _mapped(manifest: Json, *path: str) -> Iterator[tuple[str, Json]]:
    found = walk(manifest, path)
    for name, value in found.items() if isinstance(found, Mapping) else ():
        if isinstance(value, dict):
            yield str(name), value


def _listed(manifest: Json, *path: str) -> Iterator[tuple[int, Json]]:
    found = walk(manifest, path)
    for number, value in enumerate(found) if isinstance(found, list) else ():
        if isinstance(value, dict):
            yield number, value


def _pytorch(manifest: Json) -> list[Template]:
    path = ("spec", "pytorchReplicaSpecs")
    return [
        Template((*path, name, "template"), name.lower(), _count(spec.get("replicas")))
        for name, spec in _mapped(manifest, *path)
    ]


def _job(manifest: Json) -> list[Template]:
    spec = manifest.get("spec") or {}
    count = _count(spec.get("parallelism"))
    completions = spec.get("completions")
    # A Job with more slots than completions starts no more pods than it has completions.
    count = min(count, _count(completions)) if completions is not None else count
    return [Template(("spec", "template"), "job", count)]


def _jobset(manifest: Json) -> list[Template]:
    found = []
    for number, one in _listed(manifest, "spec", "replicatedJobs"):
        path: Path = ("spec", "replicatedJobs", number, "template", "spec", "template")
        spec = walk(one, ("template", "spec")) or {}
        count = _count(one.get("replicas")) * _count(spec.get("parallelism"))
        found.append(Template(path, str(one.get("name", number)), count))
    return found


def _trainjob(manifest: Json) -> list[Template]:
    # The pods' template is in the runtime; ``building`` speaks to it through spec.runtimePatches.
    return [Template((), "node", _count(walk(manifest, ("spec", "trainer", "numNodes"))))]


def _rayjob(manifest: Json) -> list[Template]:
    cluster: Path = ("spec", "rayClusterSpec")
    found = [Template((*cluster, "headGroupSpec", "template"), "head", 1)]
    for number, group in _listed(manifest, "spec", "rayClusterSpec", "workerGroupSpecs"):
        path = (*cluster, "workerGroupSpecs", number, "template")
        name, count = str(group.get("groupName", number)), _count(group.get("replicas"))
        found.append(Template(path, name, count, HELPS, wrapped=False))
    if walk(manifest, ("spec", "submitterPodTemplate")) is not None:
        found.append(Template(("spec", "submitterPodTemplate"), "submitter", 1, HELPS, wrapped=False))
    return found


def _mpijob(manifest: Json) -> list[Template]:
    path = ("spec", "mpiReplicaSpecs")
    found = []
    for name, spec in _mapped(manifest, *path):
        leads = name == "Launcher"  # workers only run sshd: they end when the job is deleted
        role = TRAINS if leads else HELPS
        count = _count(spec.get("replicas"))
        found.append(Template((*path, name, "template"), name.lower(), count, role, wrapped=leads))
    return found


def _volcano(manifest: Json) -> list[Template]:
    return [
        Template(("spec", "tasks", number, "template"), str(task.get("name", number)), _count(task.get("replicas")))
        for number, task in _listed(manifest, "spec", "tasks")
    ]


_ALL = (
    Kind(
        kind="PyTorchJob",
        group="kubeflow.org",
        versions=("v1",),
        plural="pytorchjobs",
        templates=_pytorch,
        container="pytorch",
        # backoffLimit 0 deletes *all* pods with their logs the moment one fails (seen, training-operator 1.9.3).
        restarts=(
            ("pytorchReplicaSpecs.*.restartPolicy", "Never"),
            ("runPolicy.backoffLimit", None),
            ("runPolicy.cleanPodPolicy", "None"),
            ("runPolicy.ttlSecondsAfterFinished", None),
            ("elasticPolicy.maxRestarts", 0),
        ),
        pod_restart_policy=False,  # the operator overwrites it with the replica's
        suspend=("spec", "runPolicy", "suspend"),
        name_tail="-worker-999",  # of the Service that each pod gets
    ),
    Kind(
        kind="Job",
        group="batch",
        versions=("v1",),
        plural="jobs",
        templates=_job,
        restarts=(("backoffLimit", 0), ("ttlSecondsAfterFinished", None)),
        name_limit=58,  # seen: 58 is taken, 63 refused
    ),
    Kind(
        kind="JobSet",
        group="jobset.x-k8s.io",
        versions=("v1alpha2",),
        plural="jobsets",
        templates=_jobset,
        restarts=(
            ("failurePolicy", None),
            ("replicatedJobs.*.template.spec.backoffLimit", 0),
            ("ttlSecondsAfterFinished", None),
        ),
        name_limit=50,  # seen: NAME-JOB-i-index is at most 63
    ),
    Kind(
        kind="TrainJob",
        group="trainer.kubeflow.org",
        versions=("v1alpha1",),
        plural="trainjobs",
        templates=_trainjob,
        container="node",
        pod_restart_policy=False,
        # Deleted in the foreground, its controller makes the JobSet anew, and training starts again (seen, 2.2.0).
        suspend_first=True,
        name_limit=50,
    ),
    Kind(
        kind="RayJob",
        group="ray.io",
        versions=("v1",),
        plural="rayjobs",
        templates=_rayjob,
        restarts=(
            ("backoffLimit", 0),
            ("submitterConfig.backoffLimit", 0),  # 2 trains again from the start when the head is lost (seen)
            ("shutdownAfterJobFinishes", False),
            ("ttlSecondsAfterFinished", None),
        ),
        pod_restart_policy=False,
        name_limit=47,
    ),
    Kind(
        kind="MPIJob",
        group="kubeflow.org",
        versions=("v2beta1",),
        plural="mpijobs",
        templates=_mpijob,
        restarts=(
            ("mpiReplicaSpecs.*.restartPolicy", "Never"),
            ("runPolicy.backoffLimit", 0),
            ("runPolicy.cleanPodPolicy", "None"),
            ("runPolicy.ttlSecondsAfterFinished", None),
        ),
        pod_restart_policy=False,
        suspend=("spec", "runPolicy", "suspend"),
        name_tail="-worker-999",
    ),
    Kind(
        kind="Job",
        group="batch.volcano.sh",
        versions=("v1alpha1",),
        plural="jobs",
        templates=_volcano,
        restarts=(
            ("maxRetry", 0),
            ("policies", None),
            ("tasks.*.policies", None),
            ("ttlSecondsAfterFinished", None),
        ),
        suspend=None,
        name_tail="-worker-999",
    ),
)

KINDS: dict[tuple[str, str], Kind] = {(version, kind.kind): kind for kind in _ALL for version in kind.api_versions}


def kind_of(manifest: Json) -> Kind | None:
    """Return the kind of a manifest, ``None`` if it isn't one of a training job."""
    return KINDS.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))
