"""From what is known of a job's pods, agents, nodes and object to one observation. Pure.

The pods decide. A job's own conditions come late, or never (a dead node), or wrong (a PyTorchJob is Succeeded while a
worker trains on), so they confirm an end and explain a wait. Pods that vanished are remembered: most kinds delete the
innocent within seconds.

========  ==============================================================================================================
HELD      a training command ended abnormally, its agent keeps the container
QUEUED    suspended, or a pod has no node yet: waiting is not hanging
STARTING  pods are missing, or their containers have not begun
RUNNING   something trains
ENDED     nothing trains any more, or something can't start at all (image, configuration): then without a code
GONE      the object is gone
========  ==============================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.backends.agent_reports import node_report, phase_of
from airflow_ft.backends.base import PERSON, JobState, NodeReport, Observation
from airflow_ft.backends.kubernetes.agents import AgentState
from airflow_ft.backends.kubernetes.kinds import Json
from airflow_ft.backends.kubernetes.obstacles import Kind, Obstacle, suspected
from airflow_ft.backends.kubernetes.pods import PodFacts, node_trouble
from airflow_ft.backends.kubernetes.status import JobStatus

# What no patience mends; other reasons may pass (a registry, a ConfigMap that is made a second later).
HOPELESS = ("InvalidImageName", "ErrImageNeverPull")
LATE_SECONDS = 15.0  # pods are made, and placed, within seconds of their job
TAINTED = "DeletionByTaintManager"


@dataclass(frozen=True)
class Known:
    """A pod, and what is known of it beside its object."""

    pod: PodFacts
    agent: AgentState | None = None
    vanished: bool = False
    oom_killed: bool = False  # the kernel has killed something in its container since this generation began
    stuck_seconds: float = 0.0  # how long it has been waiting for the same thing that can't start, or been made
    obstacle: Obstacle | None = None  # why its containers aren't made


@dataclass(frozen=True)
class Closed:
    """Who stopped the job, as its record says."""

    by: str
    why: str = ""


@dataclass(frozen=True)
class Picture:
    """Everything that an observation is made of.

    :param status: the job's own word; ``None``: its object is gone.
    :param nodes: the nodes' objects by name; ``None``: not allowed to look.
    :param expected: how many pods train.
    :param closed: who stopped it; ``None``: nobody of us did.
    """

    status: JobStatus | None = None
    pods: Sequence[Known] = ()
    nodes: Mapping[str, Json] | None = None
    expected: int = 1
    closed: Closed | None = None
    start_error_seconds: float = 60.0
    volume_error_seconds: float = 600.0
    age_seconds: float = 0.0  # since the job was made
    removes_itself: bool = False  # a TTL of the manifest deletes it: a vanished object is then no person's doing
    replaced: bool = False  # the name is another object's now
    foreign: bool = False  # somebody else has made it, and its operator may replace pods that failed


def observe(picture: Picture, at: datetime) -> Observation:
    """Say what the job is doing."""
    if picture.replaced:
        return Observation(state=JobState.GONE, at=at, reason="the name belongs to another object now")
    current = newest(picture.pods)
    trains = [known for known in current if known.pod.trains]
    reports = tuple(report for known in trains if (report := _report(known, picture.nodes)) is not None)
    if picture.foreign and picture.status is not None and picture.status.ended is None:
        reports = tuple(_replaceable(report) for report in reports)
    alive = [known for known in current if not known.vanished and not known.pod.over]
    cancelled, by = _cancelled(picture)
    if picture.status is None and not alive:
        state = JobState.ENDED if reports and all(r.state is JobState.ENDED for r in reports) else JobState.GONE
        reason = "the object does not exist"
    else:
        state, reason = _state(picture, trains, reports)
    return Observation(
        state=state,
        at=at,
        nodes=reports,
        code=_code(picture, reports) if state is JobState.ENDED else None,
        reason=(picture.closed.why if picture.closed is not None else "") or reason,
        cancelled=cancelled,
        cancelled_by=by,
    )


def newest(pods: Sequence[Known]) -> list[Known]:
    """Return the newest pod of each slot: operators make new ones beside the old."""
    found: dict[str, Known] = {}
    for known in sorted(pods, key=_age):
        found[known.pod.slot] = known
    return list(found.values())


def _age(known: Known) -> float:
    return known.pod.created.timestamp() if known.pod.created is not None else 0.0


def lost_why(pod: PodFacts, nodes: Mapping[str, Json] | None) -> str:
    """Say why the node of a pod is lost; empty if it isn't."""
    if pod.node is None:
        return ""
    if pod.disruption is not None and pod.disruption[0] == TAINTED:
        return f"{TAINTED}: {pod.disruption[1]}"
    if pod.reason == "NodeLost":
        return f"NodeLost: {pod.message}"
    if not nodes:
        return ""
    return node_trouble(nodes[pod.node]) if pod.node in nodes else "the node does not exist any more"


def cant_start(picture: Picture, known: Known) -> str:
    """Say why a pod will not start, once it has had its time; empty if it may."""
    pod, obstacle = known.pod, known.obstacle
    if pod.over or known.vanished or pod.running:
        return ""
    if pod.waiting is not None:
        over = pod.waiting[0] in HOPELESS or known.stuck_seconds >= picture.start_error_seconds
        return f"{pod.name} can't start: {': '.join(filter(None, pod.waiting))}" if over else ""
    if obstacle is None or not pod.creating:
        return ""
    missing = obstacle.kind is Kind.MISSING
    limit = picture.start_error_seconds if missing else picture.volume_error_seconds
    what = f"{obstacle.what}: " if obstacle.what else ""
    return f"{pod.name} can't start: {what}{obstacle.line}" if known.stuck_seconds >= limit else ""


def suspected_nodes(picture: Picture) -> frozenset[str]:
    """Return the nodes that keep their pods from starting while pods of this job run on others."""
    trains = [known for known in newest(picture.pods) if known.pod.node is not None and not known.vanished]
    stuck = {str(known.pod.node): known.obstacle for known in trains if known.obstacle and cant_start(picture, known)}
    creating = [str(known.pod.node) for known in trains if known.pod.creating]
    return suspected(stuck, creating, (str(known.pod.node) for known in trains if known.pod.running))


# --- one pod -----------------------------------------------------------------------------------------------------


def _report(known: Known, nodes: Mapping[str, Json] | None) -> NodeReport | None:
    """Return what one pod's node does; ``None`` for a pod that has no node yet."""
    pod, agent = known.pod, known.agent
    if pod.node is None:
        return None
    why = lost_why(pod, nodes) if not pod.over else ""
    if pod.over:
        return _over(pod, agent)
    said = agent.state if agent is not None else {}
    if known.vanished or why:
        return node_report(pod.node, JobState.GONE, said, agent=False, lost_why=why or None)
    if not pod.running:
        return NodeReport(node=pod.node, state=JobState.STARTING, agent=pod.agent)
    if agent is None:
        return NodeReport(node=pod.node, state=JobState.RUNNING, agent=pod.agent, spawned_at=pod.started)
    state = phase_of(said) if agent.lives else JobState.RUNNING if agent.command_lives else phase_of(said)
    return node_report(pod.node, state, said, agent.notes, agent=agent.lives)


def _over(pod: PodFacts, agent: AgentState | None) -> NodeReport:
    """A container that ended: its agent's last words, else the kubelet's."""
    assert pod.node is not None
    before = agent.state if agent is not None else {}
    said = {**before, **(pod.last_words or {})}
    notes = agent.notes if agent is not None else ()
    report = node_report(pod.node, JobState.ENDED, said, notes, agent=False)
    ended = pod.ended
    code = report.code if pod.last_words is not None else pod.code
    if ended is None:  # the pod was refused or evicted before its container began
        return report.but(state=JobState.GONE, code=None)
    return report.but(
        code=code,
        exited_at=report.exited_at or ended.at,
        spawned_at=report.spawned_at or ended.began,
        term=report.term,
    )


def _replaceable(report: NodeReport) -> NodeReport:
    """A pod that failed may be made anew: until the object itself says that it has ended, silence alone tells."""
    failed = report.state is JobState.ENDED and report.code != 0
    return report.but(state=JobState.RUNNING, code=None) if failed else report


# --- the job -----------------------------------------------------------------------------------------------------


def _state(picture: Picture, trains: list[Known], reports: tuple[NodeReport, ...]) -> tuple[JobState, str]:
    status = picture.status
    states = [report.state for report in reports]
    lost = "; ".join(f"node {report.node} is lost: {report.lost_why}" for report in reports if report.lost)
    if JobState.HELD in states:
        return JobState.HELD, lost
    if status is not None and status.ended is not None:
        trains_on = status.ended == 0 and JobState.RUNNING in states and not _only_heads(trains)
        return (JobState.RUNNING if trains_on else JobState.ENDED), status.text
    why = next((why for known in trains if (why := cant_start(picture, known))), "")
    if why:
        return JobState.ENDED, why
    waiting = next((k.pod for k in trains if k.pod.node is None and not k.vanished and not k.pod.over), None)
    if waiting is not None:
        return JobState.QUEUED, waiting.unschedulable or _late(picture, f"{waiting.name} has no node yet")
    if status is not None and status.suspended and JobState.RUNNING not in states:
        return JobState.QUEUED, f"suspended by its queue or by a person. {status.text}".strip()
    present = [known for known in trains if not known.vanished]
    if len(present) < picture.expected and not any(report.code for report in reports) and not lost:
        gone = len(trains) - len(present)
        text = _late(picture, f"{len(present)} of {picture.expected} pods are there. {status.text if status else ''}")
        return (JobState.RUNNING if gone and JobState.RUNNING in states else JobState.STARTING), text
    for state in (JobState.STARTING, JobState.RUNNING):
        if state in states:
            return state, lost or (status.text if status is not None and state is JobState.STARTING else "")
    if states and all(state is JobState.ENDED for state in states):
        return JobState.ENDED, status.text if status is not None else ""
    return (JobState.GONE if lost else JobState.STARTING), lost


def _late(picture: Picture, text: str) -> str:
    """What is only worth a word if it lasts."""
    return text.strip() if picture.age_seconds > LATE_SECONDS else ""


def _only_heads(trains: list[Known]) -> bool:
    """Whether these pods outlive the training by design: a Ray head runs until its cluster is deleted."""
    return all(not known.pod.prints for known in trains)


def _code(picture: Picture, reports: tuple[NodeReport, ...]) -> int | None:
    """The first code that isn't 0; 0 if all ended well, or the job itself says so."""
    codes = [report.code for report in reports if report.state is JobState.ENDED]
    # Of the first to end: who comes later was mostly killed for it.
    bad = next((report.code for report in sorted(reports, key=_exit_time) if report.code), None)
    if bad is not None:
        return bad
    status = picture.status
    if status is not None and status.ended is not None:
        return 0 if status.ended == 0 else None
    return 0 if codes and len(codes) == len(reports) and None not in codes else None


def _exit_time(report: NodeReport) -> float:
    return report.exited_at.timestamp() if report.exited_at is not None else math.inf


def _cancelled(picture: Picture) -> tuple[bool, str]:
    if picture.closed is not None:
        return True, picture.closed.by
    gone = picture.status is None or picture.status.deleting
    return (True, PERSON) if gone and not picture.removes_itself else (False, "")
