"""What keeps a pod's containers from being made: a ConfigMap that isn't there, a volume that doesn't come (EXC-05).

Such a pod shows ContainerCreating and no reason, for ever; only its events tell. They are read here, from plain
objects, to one ``Obstacle``, and compared between the pods of a job:

========  ==============================================================================================================
MISSING   a ConfigMap, a Secret, a key of one, or a claim does not exist: whoever wrote the manifest has to make it
VOLUME    a volume isn't attached or mounted. Only on few nodes, while more run: those nodes are suspected. Everywhere,
          or held by another pod or node (Multi-Attach: whoever waits for it did nothing): the storage, without blame
SANDBOX   the node can't make the pod's sandbox (its network plugin, its runtime). Suspected like with a volume
========  ==============================================================================================================

What has passed is no obstacle: an image is pulled, a container is made only after all volumes are there. A slow image
is none either (story SUB-09).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from airflow_ft.backends.kubernetes.pods import time_of

ATTACHING = ("FailedAttachVolume",)
MOUNTING = ("FailedMount", "FailedMapVolume", "FailedMapBlockVolume", "VolumeConditionAbnormal")
SANDBOX_EVENTS = ("FailedCreatePodSandBox",)
PAST_ALL = ("Pulling", "Pulled", "Created", "Started")
# Every two minutes the kubelet sums up, without the cause ("timed out waiting for the condition"), and it tries again
# at most two minutes after it failed: what it has not said for longer is over.
FRESH = timedelta(minutes=5)
_MISSING = re.compile(
    r"\b(?P<kind>configmap|secret|persistentvolumeclaim) \"(?P<name>[^\"]+)\" not found"
    r"|(?:configmap )?references non-existent (?:config|secret) key: (?P<key>[^\s,]+)"
    r"|couldn't find key (?P<entry>\S+) in (?P<of>ConfigMap|Secret) (?P<where>\S+)"
)
_HELD_ELSEWHERE = re.compile(r"Multi-Attach error|already (?:exclusively )?(?:attached|used by)|volume is in use")
_NAMES = {"configmap": "ConfigMap", "secret": "Secret", "persistentvolumeclaim": "PersistentVolumeClaim"}


class Kind(Enum):
    """What it is that a pod waits for."""

    MISSING = "missing"
    VOLUME = "volume"
    SANDBOX = "sandbox"


@dataclass(frozen=True)
class Obstacle:
    """Why a pod's containers aren't made. ``what`` names the missing object; ``line`` is the platform's own."""

    kind: Kind
    line: str
    what: str = ""
    held_elsewhere: bool = False


def obstacle_of(events: Iterable[Mapping[str, Any]]) -> Obstacle | None:
    """Return what the events of a pod say that it waits for now; ``None`` if nothing is in its way."""
    missing = found = None
    missed_at: datetime | None = None
    for event in sorted(events, key=_order):
        reason, at = event.get("reason"), _last_seen(event)
        if reason in PAST_ALL:
            missing = found = None
        elif reason == "SuccessfulAttachVolume":
            found = None if found is not None and found.line.startswith(ATTACHING) else found
        elif reason in (*ATTACHING, *MOUNTING, *SANDBOX_EVENTS):
            one = _read(str(reason), str(event.get("message") or ""))
            if one.kind is Kind.MISSING:
                missing, missed_at = one, at
            elif missed_at is None or at is None or at - missed_at > FRESH:
                missing = None
            found = one
    return missing or found


def suspected(stuck: Mapping[str, Obstacle], creating: Iterable[str], running: Iterable[str]) -> frozenset[str]:
    """Return the nodes that are to blame for what their pods wait for: few of them, where more have it and run.

    :param stuck: the obstacle on each node that is known to have one.
    :param creating: the nodes on which pods of the same job are still being made: not all of them were asked why.
    :param running: the nodes on which some have begun.
    """
    alone = {node for node, one in stuck.items() if one.kind is not Kind.MISSING and not one.held_elsewhere}
    waiting = stuck.keys() | set(creating)
    fine = set(running) - waiting
    return frozenset(alone) if alone and len(waiting) <= len(fine) else frozenset()


def _read(reason: str, message: str) -> Obstacle:
    line = f"{reason}: {' '.join(message.split())}"
    missing = _MISSING.search(message)
    if missing is not None:
        return Obstacle(Kind.MISSING, line, _object_of(missing))
    if reason in SANDBOX_EVENTS:
        return Obstacle(Kind.SANDBOX, line)
    return Obstacle(Kind.VOLUME, line, held_elsewhere=_HELD_ELSEWHERE.search(message) is not None)


def _object_of(found: re.Match[str]) -> str:
    if found["kind"]:
        return f"{_NAMES[found['kind']]} {found['name']}"
    return f"key {found['key']}" if found["key"] else f"key {found['entry']} of {found['of']} {found['where']}"


def _order(event: Mapping[str, Any]) -> tuple[float, bool]:
    """By time, to the second: of two in the same one what says that all volumes are there is the later."""
    at = _last_seen(event)
    return (float(int(at.timestamp())) if at is not None else 0.0), event.get("reason") in PAST_ALL


def _last_seen(event: Mapping[str, Any]) -> datetime | None:
    series, metadata = event.get("series") or {}, event.get("metadata") or {}
    seen = event.get("lastTimestamp") or series.get("lastObservedTime") or event.get("eventTime")
    return time_of(seen or event.get("firstTimestamp") or metadata.get("creationTimestamp"))
