"""From an agent's own record (``airflow_ft.agent.state``) to what the protocol says of a node. For all backends.

The record was written by a process of the job's user: whatever is in it, reading never raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_ft.backends.base import JobState, NodeReport

# The agent's phases in our words. "stopping" still has processes.
PHASES = {
    "starting": JobState.STARTING,
    "running": JobState.RUNNING,
    "held": JobState.HELD,
    "stopping": JobState.RUNNING,
    "ended": JobState.ENDED,
}


def phase_of(said: Mapping[str, Any]) -> JobState:
    """Return the state that the agent's phase stands for. An unknown word is somebody who runs."""
    return PHASES.get(str(said.get("phase")), JobState.RUNNING)


def node_report(
    node: str,
    state: JobState,
    said: Mapping[str, Any],
    notes: Sequence[dict[str, Any]] = (),
    *,
    agent: bool,
    lost_why: str | None = None,
) -> NodeReport:
    """Return the report of a node whose agent has left a record."""
    return NodeReport(
        node=node,
        state=state,
        generation=whole(said.get("generation")) or 0,
        # While an order is carried out the state still has the code of the generation before.
        code=None if state in (JobState.RUNNING, JobState.STARTING) else whole(said.get("code")),
        term=said.get("term") is True,
        lost=lost_why is not None,
        lost_why=lost_why or "",
        agent=agent,
        exited_at=time_of(said.get("exited_at")),
        spawned_at=time_of(said.get("spawned_at")),
        first_sign_at=_first_sign(said),
        unkillable=tuple(filter(None, map(whole, said.get("unkillable") or ()))),
        note=said["decision"] if isinstance(said.get("decision"), dict) else None,
        notes=tuple(notes),
        digest=str(said.get("digest") or ""),
    )


def time_of(seconds: object) -> datetime | None:
    """Read a time in seconds."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return None
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None


def whole(value: object) -> int | None:
    """Read a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first_sign(said: Mapping[str, Any]) -> datetime | None:
    exits = said.get("child_exits")
    times = [time_of(one.get("at")) for one in exits if isinstance(one, dict)] if isinstance(exits, list) else []
    spawned = time_of(said.get("spawned_at"))  # what an earlier generation lost is no sign of this one
    return min((at for at in times if at is not None and (spawned is None or at >= spawned)), default=None)
