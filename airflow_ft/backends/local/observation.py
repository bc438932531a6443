"""What a job is doing, read from its folder and from /proc.

A node: the agent's phase if it lives; else its last word; else what is left of the command. The job: ``HELD`` as soon
as one node is held; ``STARTING`` while one has not begun; ``RUNNING`` while something runs; then ``ENDED`` with the
first code that isn't 0, else 0 if *every* node left its end marker, else ``GONE``. Looking also moves things on: a
queued job is placed, what a dead launcher left is launched, a job that is over is closed.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_ft.agent import orders as agent_orders
from airflow_ft.backends import agent_reports
from airflow_ft.backends.base import JobState, NodeReport, Observation
from airflow_ft.backends.local import launch, pool, survey
from airflow_ft.backends.local.folder import OVER, Identity, JobFolder, Placement, now
from airflow_ft.backends.local.survey import NodeLife

FINAL = (JobState.ENDED, JobState.GONE)


def observe(folder: JobFolder, uid: str) -> Observation:
    """See what the job is doing. Raises ``UnreachableError``."""
    identity = folder.identity() if folder.exists() else None
    if identity is None:
        return _gone("there is no such job")
    if identity.uid != uid:
        return _gone("the name belongs to another job now")
    tombstone = folder.tombstone()
    cancelled = tombstone is not None and tombstone.kind != OVER
    placement, reason = move_on(folder, identity)
    if placement is None and not cancelled:
        return Observation(state=JobState.QUEUED, at=now(), reason=reason)
    nodes = tuple(report(folder, identity, node, cancelled) for node in (placement.nodes if placement else ()))
    state = _combine([node.state for node in nodes], [node.code for node in nodes])
    if state in FINAL:
        survey.settle(folder, identity)
    code = _code(nodes) if state is JobState.ENDED else None
    return Observation(
        state=state,
        at=now(),
        nodes=nodes,
        code=code,
        reason=reason or _why(state, nodes),
        cancelled=cancelled,
        cancelled_by=tombstone.by if tombstone is not None and cancelled else "",
    )


def move_on(folder: JobFolder, identity: Identity) -> tuple[Placement | None, str]:
    """Place and launch what isn't yet; returns the placement and, in words, what is in the way."""
    if folder.tombstone() is not None:
        return folder.placement(), ""
    placement, reason = folder.placement(), ""
    if placement is None:
        reason = pool.place(folder, identity)
        placement = folder.placement()
    if placement is not None:
        reason = launch.launch(folder, identity, placement)
    return placement, reason


def report(folder: JobFolder, identity: Identity, node: str, closed: bool) -> NodeReport:
    """See what one node is doing."""
    life = survey.look(folder, identity, node)
    state = _node_state(life, closed)
    lost = _lost(folder, identity, node, state)
    if life.state is None:
        begun = JobState.GONE if lost and not life.command else state
        return NodeReport(node=node, state=begun, agent=False, lost=lost is not None, lost_why=lost or "")
    notes = agent_orders.notes(folder.node(node))
    return agent_reports.node_report(node, state, life.state, notes, agent=life.agent, lost_why=lost)


def _node_state(life: NodeLife, closed: bool) -> JobState:
    if life.state is None:
        return JobState.GONE if closed and not life.command else JobState.STARTING
    if life.agent or life.ended:
        return agent_reports.phase_of(life.state)
    return JobState.RUNNING if life.command else JobState.GONE


def _lost(folder: JobFolder, identity: Identity, node: str, state: JobState) -> str | None:
    """Why the node is lost for this job. A node that goes down after its command ended took nothing with it."""
    mark = folder.lost(node)
    if mark is None and state is not JobState.ENDED:
        mark = pool.Pool(folder.root, identity.pool, identity.pool_nodes).down(node)
        if mark is not None:
            with suppress(OSError):  # a full disk: the pool's mark says it until the node is repaired
                folder.mark_lost(node, mark.why)
    return None if mark is None else mark.why or "down"


def _combine(states: list[JobState], codes: list[int | None]) -> JobState:
    for state in (JobState.HELD, JobState.STARTING, JobState.RUNNING):
        if state in states:
            return state
    failed = any(codes[i] for i, state in enumerate(states) if state is JobState.ENDED)
    everywhere = bool(states) and all(state is JobState.ENDED for state in states)
    return JobState.ENDED if failed or everywhere else JobState.GONE


def _code(nodes: tuple[NodeReport, ...]) -> int | None:
    """The first code that isn't 0. A node that ended without a code never ran its command (cancelled before)."""
    codes = [node.code for node in nodes if node.state is JobState.ENDED]
    return next((code for code in codes if code), None if None in codes else 0)


def _why(state: JobState, nodes: tuple[NodeReport, ...]) -> str:
    lost = [f"node {node.node} is lost: {node.lost_why}" for node in nodes if node.lost]
    gone = [node.node for node in nodes if node.state is JobState.GONE and not node.lost]
    alone = [node.node for node in nodes if node.state is JobState.RUNNING and not node.agent]
    said = [*lost]
    if gone:
        said.append(f"nothing is left on {', '.join(gone)}, and no end marker: the result is not known")
    if alone:
        said.append(f"the agent on {', '.join(alone)} is dead, the command runs on")
    if state is JobState.GONE and not nodes:
        said.append("cancelled before it started")
    return "; ".join(said)


def _gone(reason: str) -> Observation:
    return Observation(state=JobState.GONE, at=now(), reason=reason)
