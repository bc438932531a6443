"""Looking at a cluster's nodes outside of any attempt: which ones a preflight or a bisect takes, what is kept of it.

================  ====================================================================================================
asked for         looked at
================  ====================================================================================================
``free``          the nodes that nobody uses, without those in quarantine
``quarantined``   those in quarantine that are free, with ``COMPANIONS`` others: a node alone shows no bad network
names             these, without those in quarantine; one that is in use is waited for
================  ====================================================================================================

What a preflight finds goes into the quarantine as the platform's word. A node in quarantine that passes a *deep* one
is released, but for one that a person has put there: that is a person's to release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.quarantine import Quarantine, Say, looked_up, written
from airflow_ft.backends.base import Backend, TrainingJob
from airflow_ft.core.bisect import BisectResult
from airflow_ft.core.quarantine import EXPIRY, TEXT, Entry, Kept
from airflow_ft.diagnosis.preflighting import PreflightReport

FREE, QUARANTINED = "free", "quarantined"
COMPANIONS = 2  # of three nodes that are compared the odd one can be told
RELEASING_SET = "deep"


@dataclass(frozen=True)
class Choice:
    """The nodes to look at, of the ``pool``'s.

    ``kept`` are the nodes in quarantine; those that were left out because of it are ``left_out``. ``unusable`` were
    asked for and aren't in service.
    """

    nodes: tuple[str, ...]
    pool: tuple[str, ...]
    kept: tuple[Kept, ...] = ()
    unusable: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


async def chosen(
    wanted: str | Sequence[str],
    backend: Backend,
    job: TrainingJob,
    quarantine: Quarantine | None,
    now: datetime,
    say: Say,
) -> Choice:
    """Return the nodes to look at. Raises ``BackendError`` if the cluster's nodes can't be listed."""
    view = await limited(backend.pool(job), LOOK_SECONDS, "listing nodes")
    kept = looked_up(quarantine, now, say)
    bad = {one.node for one in kept}
    free = view.nodes if view.free is None else view.free
    healthy = tuple(node for node in free if node not in bad)
    left_out: tuple[str, ...] = ()
    unusable: tuple[str, ...] = ()
    if wanted == FREE:
        nodes = healthy
        left_out = tuple(node for node in view.nodes if node in bad)
    elif wanted == QUARANTINED:
        tested = tuple(node for node in free if node in bad)
        nodes = (*tested, *healthy[:COMPANIONS]) if tested else ()
    else:
        asked = tuple(dict.fromkeys([wanted] if isinstance(wanted, str) else wanted))
        nodes = tuple(node for node in asked if node in view.nodes and node not in bad)
        left_out = tuple(node for node in asked if node in bad)
        unusable = tuple(node for node in asked if node not in view.nodes and node not in bad)
    for one in kept:
        if one.node in left_out:
            say(f"{one.why}: it is not looked at.")
    return Choice(nodes, view.nodes, tuple(kept), unusable, left_out)


@dataclass(frozen=True)
class Witness:
    """Who has looked: the task, for the words that the quarantine keeps."""

    dag_id: str
    task: str  # dag.task
    by: str
    at: datetime  # when the look began: what is said later than this isn't touched
    chain_id: str = ""


def remember_preflight(
    quarantine: Quarantine, report: PreflightReport, kept: Sequence[Kept], deep: bool, witness: Witness, say: Say
) -> tuple[str, ...]:
    """Put bad nodes into quarantine, release those that passed, remove what ended. Returns the released ones."""
    root = report.diagnosis.root if report.diagnosis else None
    entries = [
        _entry(node, "platform", str(report.diagnosis.text), root.text if root else "", witness)
        for node in report.bad_nodes
        if report.diagnosis
    ]
    written(quarantine, entries, say)
    released = []
    for one in kept:
        if one.node not in report.good_nodes:
            continue
        if any(entry.word == "person" for entry in one.entries):
            say(f"{one.node} passed; a person has put it into quarantine, and is to release it.")
        elif not deep:
            say(f"{one.node} passed; it takes the set {RELEASING_SET} to release it.")
        else:
            released += _released(quarantine, one.node, witness, say)
    try:
        quarantine.sweep(witness.at)
    except Exception as error:  # noqa: BLE001 - a supervisor's border: what isn't removed now is removed next time
        say(f"What has ended could not be removed from the quarantine: {error!r}")
    return tuple(released)


def remember_bisect(
    quarantine: Quarantine, result: BisectResult, own_command: bool, witness: Witness, say: Say
) -> None:
    """Put the nodes that a bisect has found into quarantine."""
    written(quarantine, bisect_entries(result, own_command, witness), say)


def bisect_entries(result: BisectResult, own_command: bool, witness: Witness) -> list[Entry]:
    """Return what a bisect says about nodes. What the user's own program said counts like a job's word."""
    word, evidence = "job" if own_command else "platform", "; ".join(result.details.values())
    return [_entry(node, word, f"found by a bisect: {result}", evidence, witness) for node in result.faulty_nodes]


def _entry(node: str, word: str, reason: str, evidence: str, witness: Witness) -> Entry:
    return Entry(
        node=node,
        word=word,
        reason=reason[:TEXT],
        evidence=evidence[:TEXT],
        chain_id=witness.chain_id,
        dag_id=witness.dag_id,
        task=witness.task,
        since=witness.at,
        until=witness.at + EXPIRY,
        by=witness.by,
    )


def _released(quarantine: Quarantine, node: str, witness: Witness, say: Say) -> list[str]:
    try:
        quarantine.release(node, witness.by, witness.at)
    except Exception as error:  # noqa: BLE001 - a supervisor's border: what can't be released now ends by itself
        say(f"{node} passed, and could not be released: {error!r}")
        return []
    say(f"{node} passed the preflight and is released.")
    return [node]
