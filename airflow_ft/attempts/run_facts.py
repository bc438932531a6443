"""The facts of a failed run: what was gathered, and what the watch knows. Fed by ``conclude``, for ``classify``."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.backends.base import JobState, Observation, StackGroup
from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import Diagnosis
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.stackgroups import grouped
from airflow_ft.diagnosis.gather import Gathered


def facts_of(
    gathered: Gathered,
    seen: Observation,
    verdict: HangVerdict | None,
    stacks: Sequence[StackGroup],
    first_step_seen: bool,
) -> Facts:
    """Return what is known about a run that failed, ready to be classified."""
    planned = next((node for node in seen.nodes if node.term and not node.lost), None)
    first_end = min((n.exited_at for n in seen.nodes if n.exited_at), default=None)
    if (
        planned is not None
        and planned.exited_at is not None
        and first_end is not None
        and planned.exited_at > first_end
    ):
        planned = None  # TERM on other nodes after the first abnormal end is clean-up, not a disruption
    began = min((n.spawned_at for n in seen.nodes if n.spawned_at), default=None)
    return Facts(
        logs=gathered.logs,
        evidence=gathered.evidence,
        good_logs=gathered.good_logs,
        nodes=tuple(node.node for node in seen.nodes),
        hang=verdict,
        stacks=tuple(stacks),
        planned_stop="stopped by airflow_ft"
        if seen.cancelled
        else "asked to stop (TERM)"
        if planned is not None
        else "",
        gone=seen.state is JobState.GONE,
        first_step_seen=first_step_seen,
        seconds_since_start=(seen.at - began).total_seconds() if began else None,
    )


def with_what_was_missing(diagnosis: Diagnosis, gathered: Gathered) -> Diagnosis:
    """Say what a diagnosis was made without: an end that nobody can explain has a text all the same (UIO-04)."""
    missing = list(gathered.problems)
    if not any(log.data for log in gathered.logs) and not any(problem.startswith("logs") for problem in missing):
        missing.append(
            f"logs: {len(gathered.logs)} were there, all empty" if gathered.logs else "logs: there were none"
        )
    if gathered.dropped:
        missing.append(f"logs too many to read: {len(gathered.dropped)}")
    if not missing:
        return diagnosis
    return diagnosis.but(text=f"{diagnosis.text} Looked at logs, exit codes and nodes; missing: {'; '.join(missing)}.")


def with_stacks(diagnosis: Diagnosis, facts: Facts) -> Diagnosis:
    """Add where everybody stood, for people: what made somebody a suspect of a hang."""
    if not facts.stacks:
        return diagnosis
    odd = {int(one.name) for one in diagnosis.suspects if one.kind == "rank" and one.name.isdigit()}
    return diagnosis.but(stacks=grouped(facts.stacks, odd))
