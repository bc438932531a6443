"""What fault tolerance came to over some days: restarts, recoveries, time lost, and the nodes where faults were.

From the newest attempts, at most ``MOST_ATTEMPTS`` of them, and the page says if there were more. ETTR is the share of
the trainings' wall time in which they made steps that they had not made before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median, quantiles
from typing import Any

from airflow_ft.attempts.quarantine import cluster_of_ref
from airflow_ft.core.chain import Attempt, Incident
from airflow_ft.core.recovery import Recovery
from airflow_ft.views.listing import PastAttempt, attempts_since, feedback_of
from airflow_ft.views.models import Figures, MayNodes, NodeFault, NodeRow, TaskKey
from airflow_ft.views.runs import DISRUPTION

MOST_ATTEMPTS = 1_000  # half a second to read once; what is over is kept in memory, so the next look is cheap
MOST_FEEDBACK = 1_000
MOST_NODES = 50
MOST_NODE_MARKS = 60
CHARGED = ("restart", "unconditional")


@dataclass
class _Sums:
    restarts: int = 0
    free: int = 0
    judged: int = 0
    lost: float = 0.0
    trained: float = 0.0
    recovery_seconds: list[float] = field(default_factory=list)
    nodes: dict[str, list[NodeFault]] = field(default_factory=lambda: defaultdict(list))
    excluded: dict[str, set[tuple[object, ...]]] = field(default_factory=lambda: defaultdict(set))


def figures(session: Any, dag_ids: Collection[str], now: datetime, days: int) -> Figures:
    """Return the figures of the DAGs that the reader may read."""
    since = now - timedelta(days=days)
    found = attempts_since(session, dag_ids, since, MOST_ATTEMPTS + 1)
    complete, found = len(found) <= MOST_ATTEMPTS, found[:MOST_ATTEMPTS]
    tasks = {_task(one) for one in found}
    said = feedback_of(session, tasks, MOST_FEEDBACK)
    sums = _Sums()
    for chain in _by_chain(found):
        _add(sums, chain, now)
    seconds = sorted(sums.recovery_seconds)
    return Figures(
        now=now.timestamp(),
        days=days,
        dags=len({one.dag_id for one in found}),
        chains=len(tasks),
        attempts=len(found),
        complete=complete,
        restarts=sums.restarts,
        free_restarts=sums.free,
        recovered=len(seconds),
        judged=sums.judged,
        lost_seconds=sums.lost,
        training_seconds=sums.trained,
        ettr=max(0.0, 1 - sums.lost / sums.trained) if sums.trained > 0 else None,
        median_seconds=median(seconds) if seconds else None,
        slow_seconds=quantiles(seconds, n=10)[-1] if len(seconds) > 1 else None,
        marked=len(said),
        marked_wrong=sum(not value.get("right", True) for *_, value in said if isinstance(value, dict)),
        nodes=tuple(_nodes(sums)),
        may=MayNodes(clusters=tuple(sorted({cluster_of_ref(one.attempt.ref) for one in found if one.attempt.ref}))),
    )


def _task(one: PastAttempt) -> tuple[str, str, str, int]:
    return one.dag_id, one.run_id, one.task_id, one.map_index


def _by_chain(found: Iterable[PastAttempt]) -> Iterator[list[PastAttempt]]:
    chains: dict[tuple[str, str, str, int], list[PastAttempt]] = defaultdict(list)
    for one in found:
        chains[_task(one)].append(one)
    for attempts in chains.values():
        yield sorted(attempts, key=lambda one: one.attempt.number)


def _add(sums: _Sums, chain: list[PastAttempt], now: datetime) -> None:
    for position, one in enumerate(chain):
        attempt = one.attempt
        following = chain[position + 1].attempt if position + 1 < len(chain) else None
        sums.trained += max(0.0, ((attempt.ended_at or now) - attempt.created_at).total_seconds())
        if following is not None and attempt.ended_at is not None:
            sums.trained += max(0.0, (following.created_at - attempt.ended_at).total_seconds())
        for incident in attempt.incidents:
            last = incident is attempt.incidents[-1] and incident.decision.ends_attempt
            _count(sums, one, incident, (following.recovery if following else None) if last else incident.recovery)


def _count(sums: _Sums, one: PastAttempt, incident: Incident, recovery: Recovery | None) -> None:
    charged = incident.decision.charged
    sums.restarts += charged in CHARGED
    sums.free += bool(charged) and charged not in CHARGED
    began = _stood_still(incident, one.attempt)
    if recovery is not None:
        sums.judged += recovery.state != "pending"
        if recovery.state == "recovered" and recovery.passed_at is not None:
            seconds = max(0.0, (recovery.passed_at - began).total_seconds())
            sums.recovery_seconds.append(seconds)
            sums.lost += seconds
    diagnosis = incident.diagnosis
    kind = DISRUPTION if diagnosis.disruption else diagnosis.fault_class.value
    named = diagnosis.suspect_nodes or ((diagnosis.root.node,) if diagnosis.root and diagnosis.root.node else ())
    task = TaskKey(dag_id=one.dag_id, run_id=one.run_id, task_id=one.task_id, map_index=one.map_index)
    for node in named[:8]:
        sums.nodes[node].append(NodeFault(at=began.timestamp(), fault_class=kind, task=task))
    for node in incident.decision.excluded_nodes:
        sums.excluded[node].add(_task(one))


def _stood_still(incident: Incident, attempt: Attempt) -> datetime:
    seen = incident.progress.at if incident.progress and incident.progress.step is not None else None
    return seen or incident.began_at or incident.detected_at or attempt.created_at


def _nodes(sums: _Sums) -> Iterator[NodeRow]:
    order = sorted(sums.nodes, key=lambda node: (-len(sums.nodes[node]), node))
    for node in order[:MOST_NODES]:
        faults = sorted(sums.nodes[node], key=lambda fault: fault.at)
        yield NodeRow(
            name=node,
            faults=len(faults),
            classes=tuple(sorted({fault.fault_class for fault in faults})),
            marks=tuple(faults[-MOST_NODE_MARKS:]),
            excluded_by=len(sums.excluded[node]),
        )
