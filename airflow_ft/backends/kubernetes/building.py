"""From the user's manifest to the object of one attempt. Pure: the same job and submission give the same object.

The manifest is kept as it is; what is added: the attempt's name, our labels on the job and in every pod template, nodes
to stay away from, the agent around the training command, and the platform's own restarts set to never. Everything
that a person might wonder about is in ``notes``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_ft.backends.base import Submission
from airflow_ft.backends.kubernetes import affinity, probes, restarts, wrapping
from airflow_ft.backends.kubernetes.job import KubernetesJob, training_container
from airflow_ft.backends.kubernetes.kinds import HELPS, TRAINS, Json, Kind, Template, walk
from airflow_ft.backends.kubernetes.wrapping import NODE

CHAIN, ATTEMPT, ROLE, CONTAINER = "airflow-ft/chain", "airflow-ft/attempt", "airflow-ft/role", "airflow-ft/container"
AGENT, PRINTS = "airflow-ft/agent", "airflow-ft/prints"  # PRINTS: the training's output is in this pod's log
RESTARTS, PREVIOUS, ADDED = "airflow-ft/restarts", "airflow-ft/previous", "airflow-ft/changed"
MANAGER = "airflow-ft.io/attempt"  # of our entry in a TrainJob's runtimePatches
GRACE_MARGIN_SECONDS = 5  # for the agent's own end, after the command's grace


@dataclass(frozen=True)
class Built:
    """The object to create. ``pods`` is how many pods train; ``agents`` whether commands could be wrapped."""

    manifest: Json
    notes: tuple[str, ...]
    pods: int
    agents: bool


def built(job: KubernetesJob, submission: Submission, hostnames: Mapping[str, str] | None = None) -> Built:
    """Return the object of one attempt.

    :param hostnames: the label ``kubernetes.io/hostname`` of nodes where it isn't the node's name.
    """
    kind, notes = job.kind, list(job.remarks())
    # By way of JSON: replicas that a YAML anchor made the same object become objects of their own.
    manifest: Json = json.loads(json.dumps(job.document, default=str))
    manifest.pop("status", None)
    _name(manifest, kind, submission, job.namespace)
    if not job.platform_restarts:
        restarts.set_to_never(manifest, restarts.found(kind, manifest))
    work = _Work(job, submission, hostnames or {}, notes)
    templates = kind.templates(manifest)
    if kind.kind == "TrainJob":
        work.patch_runtime(manifest)
    elif kind.kind == "RayJob":
        work.ray(manifest, templates)
    else:
        for template in templates:
            work.dress(template, walk(manifest, template.path))
    _tell_changes(manifest, notes)
    pods = sum(template.count for template in templates if template.role == TRAINS)
    return Built(manifest, tuple(notes), pods, work.wrapped > 0)


class _Work:
    """What is done to every pod template."""

    def __init__(
        self, job: KubernetesJob, submission: Submission, hostnames: Mapping[str, str], notes: list[str]
    ) -> None:
        self.job, self.submission, self.notes = job, submission, notes
        excluded = () if probes.is_probe(job) else submission.excluded_nodes  # a probe names its nodes itself
        never = [hostnames.get(node, node) for node in excluded]
        rather_not = [hostnames.get(node, node) for node in submission.soft_nodes]
        self.hard, self.soft = (never, rather_not) if job.exclusion == "hard" else ([], [*never, *rather_not])
        preflight = dict(submission.preflight)
        if preflight and job.nodes_needed() > 1:
            preflight["meet"] = {"count": job.nodes_needed(), "told": probes.is_probe(job)}
        self.options = wrapping.AgentOptions(submission.name, submission.hold, submission.grace, preflight)
        self.wrapped = 0

    def dress(self, template: Template, pod: Json) -> None:
        """Put labels, exclusion and, where it trains, the agent into a pod template."""
        spec = pod.setdefault("spec", {})
        container = training_container(spec, self.job.container or self.job.kind.container)
        self._place(spec)
        if template.role == TRAINS:
            self._let_save(spec)
            _add_environment(container, self._environment())
        has_agent = self.job.agent and template.wrapped and template.role == TRAINS and self._wrap(template, container)
        if has_agent:
            self._mount(spec, container)
        self._label(pod, template, container, has_agent)

    def patch_runtime(self, manifest: Json) -> None:
        """Put all of it into a TrainJob: its pods' template is in the runtime, patches speak to it."""
        trainer = manifest["spec"].setdefault("trainer", {})
        command, name = trainer.get("command"), self.job.container or "node"
        pod: Json = {}
        spec: Json = {}
        self._place(spec)
        container: Json = {"name": name}
        _add_environment(trainer, self._environment())
        has_agent = self.job.agent and bool(command)
        if has_agent:
            trainer["command"] = wrapping.wrapped(command, self.options)
            self.wrapped += 1
            self._mount(spec, container)
            spec["containers"] = [container]
        elif self.job.agent:
            self._not_wrapped("spec.trainer")
        self._label(pod, Template((), "node", 1), container, has_agent)
        target = {"name": "node", "template": {"spec": {"template": {**pod, "spec": spec}}}}
        patch = {
            "manager": MANAGER,
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [target]}}},
        }
        manifest["spec"]["runtimePatches"] = [*(manifest["spec"].get("runtimePatches") or ()), patch]

    def ray(self, manifest: Json, templates: list[Template]) -> None:
        """Put the agent around a RayJob's entrypoint, which runs in the head pod; all pods get the rest.

        The driver's output is in the submitter's log, so its pod has to be found: it gets a template, the operator's
        own default, if the manifest has none.
        """
        if walk(manifest, ("spec", "submitterPodTemplate")) is None and _has_submitter(manifest):
            manifest["spec"]["submitterPodTemplate"] = _submitter(walk(manifest, templates[0].path))
            templates = self.job.kind.templates(manifest)
        for template in templates:
            pod = walk(manifest, template.path)
            spec = pod.setdefault("spec", {})
            container = training_container(spec, self.job.container)
            self._place(spec)
            leads = template.name == "head"
            has_agent = self.job.agent and leads and bool(manifest["spec"].get("entrypoint"))
            if leads:
                _add_environment(container, self._environment())
            if has_agent:
                self._mount(spec, container)
                entrypoint = str(manifest["spec"]["entrypoint"])
                # The head's container lives on after the entrypoint: its termination message would say nothing.
                # Nor is an entrypoint expanded by Kubernetes: a preflight would not know where it is.
                plain = wrapping.AgentOptions(self.submission.name, self.submission.hold, self.submission.grace)
                manifest["spec"]["entrypoint"] = wrapping.wrapped_entrypoint(entrypoint, plain)
                self.wrapped += 1
            self._label(pod, template, container, has_agent)

    # --- the parts -----------------------------------------------------------------------------------------------

    def _place(self, spec: Json) -> None:
        affinity.exclude(spec, self.hard)
        affinity.exclude(spec, self.soft, hard=False)
        affinity.leave_lost_nodes(spec, self.job.lost_node_seconds)

    def _let_save(self, spec: Json) -> None:
        needed = math.ceil(self.submission.grace) + GRACE_MARGIN_SECONDS
        spec.setdefault("terminationGracePeriodSeconds", needed)
        given = spec["terminationGracePeriodSeconds"]
        if isinstance(given, int) and given < self.submission.grace:
            note = f"terminationGracePeriodSeconds: {given} is shorter than the policy's grace of "
            self._note(f"{note}{self.submission.grace:g} s: saving may be cut short.")

    def _wrap(self, template: Template, container: Json) -> bool:
        command = container.get("command")
        if not command:
            self._not_wrapped(f"container {container.get('name')} of {template.name}")
            return False
        container["command"] = wrapping.wrapped([str(word) for word in command], self.options)
        self.wrapped += 1
        return True

    def _not_wrapped(self, what: str) -> None:
        self._note(
            f"{what}: has no command, so the agent can't be put around it: no restart in place, no stacks. Write the "
            "command into the manifest."
        )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _mount(self, spec: Json, container: Json) -> None:
        spec["volumes"] = [*(spec.get("volumes") or ()), *wrapping.volumes()]
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *wrapping.mounts()]

    def _label(self, pod: Json, template: Template, container: Json, has_agent: bool) -> None:
        metadata = pod["metadata"] = dict(pod.get("metadata") or {})
        role = template.role if template.role == HELPS else TRAINS
        prints = template.name == "submitter" if self.job.kind.kind == "RayJob" else role == TRAINS
        labels = {
            **job_labels(self.submission),
            ROLE: role,
            AGENT: "yes" if has_agent else "no",
            PRINTS: "yes" if prints else "no",
        }
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        annotations = {CONTAINER: str(container.get("name", ""))}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}

    def _environment(self) -> list[Json]:
        submission = self.submission
        return [
            {"name": NODE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "FT_CHAIN_ID", "value": submission.chain_id},
            {"name": "FT_ATTEMPT", "value": str(submission.attempt)},
            {"name": "FT_RESUME_FROM", "value": submission.resume_from},
        ]


def job_labels(submission: Submission) -> dict[str, str]:
    """Return the labels by which an attempt's objects are found."""
    return {CHAIN: submission.chain_id, ATTEMPT: str(submission.attempt)}


def selector(chain_id: str, attempt: int) -> str:
    """Return the label selector of all pods of an attempt."""
    return f"{CHAIN}={chain_id},{ATTEMPT}={attempt}"


def label_value(text: str) -> str:
    """Return a legal label value as the Kubernetes provider makes them: as it is, else cut and told apart by a hash."""
    safe = re.sub(r"^[^a-zA-Z0-9]*|[^a-zA-Z0-9_.-]|[^a-zA-Z0-9]*$", "", text)
    if safe == text and len(safe) <= 63:
        return safe
    digest = hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:9]
    return f"{safe[: 63 - len(digest) - 1]}-{digest}".lstrip("-_.")


def _name(manifest: Json, kind: Kind, submission: Submission, namespace: str | None) -> None:
    metadata = manifest["metadata"] = dict(manifest.get("metadata") or {})
    for key in ("generateName", "resourceVersion", "uid", "creationTimestamp", "managedFields", "selfLink"):
        metadata.pop(key, None)
    tags = {key: value for key, value in submission.tags.items() if key in ("dag_id", "task_id", "run_id", "map_index")}
    described = {f"airflow-ft/{key.replace('_', '-')}": value for key, value in tags.items()}
    if "restarts" in submission.tags:
        described[RESTARTS] = submission.tags["restarts"]
    if submission.attempt:
        described[PREVIOUS] = f"{submission.chain_id}-a{submission.attempt - 1}"
    metadata["name"] = submission.name
    if namespace:
        metadata["namespace"] = namespace
    metadata["labels"] = {
        **(metadata.get("labels") or {}),
        **{key: label_value(value) for key, value in tags.items()},
        **job_labels(submission),
    }
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **described}


def _tell_changes(manifest: Json, notes: list[str]) -> None:
    if notes:
        manifest["metadata"]["annotations"][ADDED] = json.dumps(notes)[:8000]


def _has_submitter(manifest: Json) -> bool:
    return bool(manifest["spec"].get("submissionMode", "K8sJobMode") == "K8sJobMode")


def _submitter(head: Json) -> Json:
    """Return the pod that KubeRay makes to submit the entrypoint: the head's image, and little else."""
    spec = head.get("spec") or {}
    container = {
        "name": "ray-job-submitter",
        "image": training_container(spec).get("image"),
        "resources": {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    }
    kept = {key: spec[key] for key in ("imagePullSecrets", "tolerations", "nodeSelector") if key in spec}
    return {"spec": {**kept, "restartPolicy": "Never", "containers": [container]}}


def _add_environment(container: Json, ours: list[Json]) -> None:
    names = {one["name"] for one in ours}
    theirs = [one for one in container.get("env") or () if not (isinstance(one, dict) and one.get("name") in names)]
    container["env"] = [*theirs, *ours]
