"""What one pod says, read off its object: a plain value. Reading never raises; what is missing is ``None``.

A container's end shows up to a second before the pod's phase changes, so ``containerStatuses`` decide, never ``phase``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_ft.backends.kubernetes.building import AGENT, CONTAINER, PRINTS, ROLE
from airflow_ft.backends.kubernetes.kinds import HELPS, TRAINS, Json, walk

# What a pod's place in its job is made of: a pod that replaces another has the same.
PLACE_LABELS = (
    "training.kubeflow.org/replica-type",
    "training.kubeflow.org/replica-index",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
    "batch.kubernetes.io/job-completion-index",
    "volcano.sh/task-spec",
    "volcano.sh/task-index",
)
INDEX_LABELS = tuple(label for label in PLACE_LABELS if label.endswith("-index"))


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    container: str
    code: int
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    began: datetime | None = None
    init: bool = False


@dataclass(frozen=True)
class PodFacts:
    """One pod. ``code`` and ``ended`` are those of the container that trains."""

    name: str
    uid: str
    node: str | None = None
    trains: bool = True
    agent: bool = False
    prints: bool = True
    container: str = ""
    created: datetime | None = None
    phase: str = ""
    reason: str = ""
    message: str = ""
    running: bool = False
    started: datetime | None = None
    restarts: int = 0
    ended: Ended | None = None
    others_ended: tuple[Ended, ...] = ()  # sidecars, init containers, earlier lives of the training container
    waiting: tuple[str, str] | None = None  # reason and message of what can't start
    unschedulable: str = ""
    deleting: datetime | None = None
    grace: float = 30.0
    disruption: tuple[str, str] | None = None
    finalizers: tuple[str, ...] = ()
    slot: str = ""  # what stays the same when a pod is replaced: its index, else its name
    containers: tuple[str, ...] = field(default=())
    ip: str = ""

    @property
    def over(self) -> bool:
        """Whether the training container ended, or never will run."""
        return self.ended is not None or self.phase in ("Failed", "Succeeded")

    @property
    def creating(self) -> bool:
        """Whether it has a node, and its containers are still being made: volumes, sandbox, image."""
        return bool(self.node) and self.phase == "Pending" and self.waiting is None and not (self.running or self.over)

    @property
    def code(self) -> int | None:
        """The container's code in our words: negative for a signal."""
        return None if self.ended is None else signed(self.ended.code)

    @property
    def last_words(self) -> dict[str, Any] | None:
        """The agent's report, which it leaves as the container's termination message."""
        if self.ended is None or not self.agent:
            return None
        try:
            found = json.loads(self.ended.message)
        except ValueError:
            return None
        return found if isinstance(found, dict) and found.get("end") is True else None


def signed(code: int) -> int:
    """Return an exit code as a process's own: 137 is -9."""
    return 128 - code if 128 < code <= 128 + 64 else code


def read_pod(pod: Json) -> PodFacts:
    """Read a pod's object."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    labels = metadata.get("labels") or {}
    names = [str(one.get("name")) for one in spec.get("containers") or () if isinstance(one, dict)]
    container = (metadata.get("annotations") or {}).get(CONTAINER) or (names[0] if names else "")
    statuses = [one for one in status.get("containerStatuses") or () if isinstance(one, dict)]
    inits = [one for one in status.get("initContainerStatuses") or () if isinstance(one, dict)]
    mine = next((one for one in statuses if one.get("name") == container), {})
    others = [one for one in statuses if one is not mine]
    ended = _ended(mine, "state")
    earlier = [one for one in (_ended(mine, "lastState"), *(_ended(o, "state") for o in others)) if one]
    earlier += [one for one in (_ended(one, "state", init=True) for one in inits) if one and one.code]
    running = walk(mine, ("state", "running"))
    return PodFacts(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        node=spec.get("nodeName"),
        trains=labels.get(ROLE, TRAINS) != HELPS,
        agent=labels.get(AGENT) == "yes",
        prints=labels.get(PRINTS, "yes") == "yes",
        container=container,
        created=time_of(metadata.get("creationTimestamp")),
        phase=str(status.get("phase", "")),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        running=running is not None,
        started=time_of(walk(running, ("startedAt",))),
        restarts=mine.get("restartCount") or 0,
        ended=ended,
        others_ended=tuple(earlier),
        waiting=_waiting([*inits, *statuses]),
        unschedulable=_condition(status, "PodScheduled", "False")[1],
        deleting=time_of(metadata.get("deletionTimestamp")),
        grace=float(metadata.get("deletionGracePeriodSeconds") or spec.get("terminationGracePeriodSeconds") or 30),
        disruption=_disruption(status),
        finalizers=tuple(metadata.get("finalizers") or ()),
        slot=_slot(metadata),
        containers=tuple(names),
        ip=str(status.get("podIP") or ""),
    )


def time_of(text: object) -> datetime | None:
    """Read a time of the API."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None


def node_trouble(node: Json) -> str:
    """Say why a node counts as lost; empty if it doesn't. Only what the control plane says of it."""
    conditions = walk(node, ("status", "conditions")) or ()
    for one in conditions:
        if isinstance(one, dict) and one.get("type") == "Ready" and one.get("status") in ("False", "Unknown"):
            return f"Ready is {one.get('status')}: {one.get('reason', '')} {one.get('message', '')}".strip()
    return ""


def node_is_down(node: Json) -> bool:
    """Whether somebody who knows says that the node is really down: its processes don't run on."""
    taints = walk(node, ("spec", "taints")) or ()
    return any(isinstance(one, dict) and one.get("key") == "node.kubernetes.io/out-of-service" for one in taints)


def _ended(status: Json, key: str, *, init: bool = False) -> Ended | None:
    found = walk(status, (key, "terminated"))
    if not isinstance(found, dict) or not isinstance(found.get("exitCode"), int):
        return None
    return Ended(
        container=str(status.get("name", "")),
        code=found["exitCode"],
        reason=str(found.get("reason", "")),
        message=str(found.get("message", "")),
        at=time_of(found.get("finishedAt")),
        began=time_of(found.get("startedAt")),
        init=init,
    )


HARMLESS = ("ContainerCreating", "PodInitializing")


def _waiting(statuses: list[Json]) -> tuple[str, str] | None:
    for status in statuses:
        found = walk(status, ("state", "waiting"))
        if isinstance(found, dict) and found.get("reason") and found["reason"] not in HARMLESS:
            return str(found["reason"]), str(found.get("message", ""))
    return None


def _condition(status: Json, kind: str, value: str) -> tuple[str, str]:
    for one in status.get("conditions") or ():
        if isinstance(one, dict) and one.get("type") == kind and one.get("status") == value:
            return str(one.get("reason", "")), str(one.get("message") or one.get("reason") or "")
    return "", ""


def _disruption(status: Json) -> tuple[str, str] | None:
    reason, message = _condition(status, "DisruptionTarget", "True")
    return (reason, message) if reason else None


def _slot(metadata: Json) -> str:
    labels = metadata.get("labels") or {}
    if not any(label in labels for label in INDEX_LABELS):
        return str(metadata.get("name", ""))
    return "/".join(str(labels[label]) for label in PLACE_LABELS if label in labels)
