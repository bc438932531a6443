"""What the cluster knows of a job's fault: as evidence, and as lines that the signatures of Kubernetes can read.

Evidence: lost nodes (the platform's word), failed preflights and exit codes. Lines: each pod's reasons, conditions
and messages, its events, and the conditions and taints of its nodes, as ``kubectl describe`` says them. They are
gathered before anything is deleted, and bounded: events of at most ``MAX_EVENT_OBJECTS`` objects are asked for, those
in trouble first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_ft.agent.preflight_result import EXIT_FAILED
from airflow_ft.backends import node_evidence, preflight_reports
from airflow_ft.backends.base import LogTail, NodeReport, Observation
from airflow_ft.backends.kubernetes.cluster import JobView, events_of
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.observation import Known, Picture, cant_start, lost_why, suspected_nodes
from airflow_ft.backends.kubernetes.pods import PodFacts, node_trouble
from airflow_ft.core.faults import CANT_START_HERE, Evidence, FaultClass, Role, Trust

MAX_EVENT_OBJECTS = 12
MAX_EVENTS = 60  # of one object; the newest
HEALTHY = ("Scheduled", "Pulled", "Pulling", "Created", "Started", "SuccessfulCreate")
CANT_START = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
# Killed by us or by the operator after somebody else had failed: what it ended with says nothing.
KILLED = (137, 143)


def evidence(picture: Picture, seen: Observation) -> list[Evidence]:
    """Return lost nodes and exit codes."""
    lost = [node_evidence.lost(report, "lost") for report in seen.nodes if report.lost]
    named = {report.node for report in seen.nodes}
    for known in picture.pods:  # helpers (a Ray worker, an MPI worker) are in no report
        why = lost_why(known.pod, picture.nodes) if not known.pod.over else ""
        if why and known.pod.node not in named:
            report = NodeReport(node=str(known.pod.node), state=seen.state, lost=True, lost_why=why)
            lost.append(node_evidence.lost(report, "lost"))
    said = [one for known in picture.pods for one in _said_of_pod(known)]
    checked = [one for known in picture.pods for one in _preflight(known.pod)]
    return (
        lost
        + checked
        + said
        + _stuck(picture)
        + [node_evidence.ended(report, "signal {}".format) for report in seen.nodes if report.code]
    )


def _preflight(pod: PodFacts) -> list[Evidence]:
    """The failed items of a preflight that has let nothing start: the agent's last words have them."""
    if pod.node is None or pod.code != EXIT_FAILED or pod.last_words is None:
        return []
    return preflight_reports.evidence(pod.node, {"items": pod.last_words.get("preflight")})


def _said_of_pod(known: Known) -> list[Evidence]:
    """What the kubelet says of a pod that has one meaning only; the rest is in the lines, for the signatures."""
    pod = known.pod
    said = []
    for ended in [*([pod.ended] if pod.ended is not None else []), *pod.others_ended]:
        if ended.reason == "OOMKilled":
            text = f"container {ended.container} of {pod.name} was killed: OOMKilled, over its memory limit"
            said.append(_platform("pod", text, pod, FaultClass.OOM_HOST))
    if known.oom_killed and not said:
        text = f"the kernel has killed a process in {pod.name}: out of memory (memory limit of the container)"
        said.append(_platform("kernel", text, pod, FaultClass.OOM_HOST))
    if pod.waiting is not None and pod.waiting[0] in CANT_START:
        text = f"{pod.name} can't start: {pod.waiting[0]}: {pod.waiting[1]}"[:600]
        said.append(_platform("pod", text, pod, FaultClass.ENV_ERROR))
    return said


def _stuck(picture: Picture) -> list[Evidence]:
    """What keeps pods from starting: a node's fault if only few have it, else one of what they all wait for."""
    blamed = suspected_nodes(picture)
    said = []
    for known in picture.pods:
        why = cant_start(picture, known) if known.obstacle is not None else ""
        if why and known.pod.node in blamed:
            text = f"{why} (on {known.pod.node}; pods on other nodes run)"
            said.append(_platform(CANT_START_HERE, text[:600], known.pod, FaultClass.HW_NODE))
        elif why:
            said.append(_platform("pod", why[:600], known.pod, FaultClass.ENV_ERROR))
    return said


def _platform(source: str, text: str, pod: PodFacts, fault_class: FaultClass) -> Evidence:
    return Evidence(
        source=source,
        text=text,
        node=pod.node,
        role=Role.ROOT,
        fault_class=fault_class,
        trust=Trust.PLATFORM,
    )


# --- lines -------------------------------------------------------------------------------------------------------


async def platform_texts(view: JobView, picture: Picture) -> list[LogTail]:
    """Return what the cluster says of pods, nodes and the job itself. Raises ``UnreachableError``."""
    pods = [known.pod for known in picture.pods]
    troubled = sorted(pods, key=_calm)[: MAX_EVENT_OBJECTS - 1]
    names = [view.ref.name, *(pod.name for pod in troubled)]
    told = await asyncio.gather(*(events_of(view.api, view.namespace, name) for name in names))
    events = {name: event_lines(found) for name, found in zip(names, told, strict=True)}
    texts = []
    for known in picture.pods:
        lines = [*pod_lines(known), *events.get(known.pod.name, ())]
        if lines:
            head = [f"Name: {known.pod.name}", *([f"Node: {known.pod.node}"] if known.pod.node else [])]
            texts.append(_text(f"pod/{known.pod.name}", known.pod.node, [*head, *lines]))
    used = {pod.node for pod in pods if pod.node}
    for name, node in (picture.nodes or {}).items():
        lines = node_lines(node) if name in used else []
        if lines:
            texts.append(_text(f"node/{name}", name, lines))
    said = [picture.status.text] if picture.status is not None and picture.status.ended else []
    lines = [*said, *events[view.ref.name]]
    return [*texts, *([_text(f"job/{view.ref.name}", None, lines)] if lines else [])]


def pod_lines(known: Known) -> list[str]:
    """Return what a pod's status says of its trouble."""
    pod = known.pod
    lines = []
    if pod.disruption is not None:
        lines.append(f"DisruptionTarget True {pod.disruption[0]}: {pod.disruption[1]}")
    if pod.reason or (pod.phase == "Failed" and pod.message):
        lines.append(f"Reason: {pod.reason} Message: {pod.message}")
    if known.obstacle is not None:  # before its other events: the kubelet sums up without the cause
        lines.append(f"Waiting for {known.obstacle.what or known.obstacle.kind.value}: {known.obstacle.line}")
    if pod.waiting is not None:
        lines.append(f"Reason: {pod.waiting[0]} Message: {pod.waiting[1]}")
    if pod.unschedulable:
        lines.append(f"PodScheduled False Unschedulable {pod.unschedulable}")
    for ended in [*([pod.ended] if pod.ended is not None else []), *pod.others_ended]:
        victim = pod.deleting is not None and ended.code in KILLED
        if ended.code == 0 and ended.reason in ("", "Completed"):
            continue
        own = pod.last_words is not None and ended is pod.ended
        message = "" if own else f" Message: {ended.message[:500]}" if ended.message else ""
        # What the agent's own command came to is in the evidence; a container's code says the same once more.
        code = "" if victim or own else f" Exit Code: {ended.code}"
        if ended.reason not in ("", "Error") or code or message:
            lines.append(f"Container {ended.container} Reason: {ended.reason}{code}{message}")
    return lines


def node_lines(node: Json) -> list[str]:
    """Return what a node's conditions and taints say of its trouble."""
    lines = []
    for one in walk(node, ("status", "conditions")) or ():
        if not isinstance(one, dict) or one.get("type") == "Ready":
            continue
        if one.get("status") == "True":
            said = f"{one.get('type')} True {one.get('reason', '')} {one.get('message', '')}"
            lines.append(f"NodeCondition {said}".strip())
    trouble = node_trouble(node)
    if trouble:
        lines.append(f"Node {trouble}")
    for one in walk(node, ("spec", "taints")) or ():
        if isinstance(one, dict):
            lines.append(f"Taint {one.get('key')}:{one.get('effect')} {one.get('value', '')}".strip())
    return lines


def event_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return events as lines, without those of a healthy life."""
    telling = [e for e in events if e.get("type") == "Warning" or e.get("reason") not in HEALTHY]
    telling = [e for e in telling if e.get("source", {}).get("component") != "airflow-ft"]
    telling.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    return [f"{e.get('type')}  {e.get('reason')}  {e.get('message', '')}"[:1000] for e in telling[-MAX_EVENTS:]]


def _calm(pod: PodFacts) -> int:
    """Sort pods in trouble first."""
    failed = pod.ended is not None and pod.ended.code != 0
    return 0 if failed or pod.creating or pod.waiting or pod.disruption or pod.unschedulable or pod.reason else 1


def _text(source: str, node: str | None, lines: Sequence[str]) -> LogTail:
    return LogTail(source=source, node=node, data="\n".join(lines).encode(), trust=Trust.PLATFORM)
