"""Which nodes the next attempt avoids: all that are suspected, as far as the pool can spare them.

An exclusion without a cap makes a retry that can never be scheduled (stories EXC-01). The cap is a share of the pool
(and a number, if one is given), and never less is left than the job needs. Nodes that are out of service cost nothing
and are always avoided: they may come back while the job waits. Where the pool can't be seen, a small fixed number is
the cap. The newest suspects have precedence; who had to be kept is said, and is still avoided where others are free
(*soft*).

An exclusion ends some time after its node was suspected last; not that of a repeat offender. If an attempt finds no
place all the same, its exclusions are made soft one by one, the least sure first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy_settings import ExclusionSettings


@dataclass(frozen=True)
class Exclusion:
    """``excluded``: to avoid, the newest last. ``kept``: wanted out, but the pool is too small.

    ``soft``: to avoid where others are free. ``expired``: avoided until now.
    """

    excluded: tuple[str, ...]
    kept: tuple[str, ...] = ()
    soft: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()


def exclude(
    settings: ExclusionSettings,
    newest: Sequence[str],
    earlier: Sequence[str],
    pool: Collection[str],
    nodes_needed: int,
    pool_size: int = 0,
) -> Exclusion:
    """Choose among ``earlier`` exclusions (the newest last) and the ``newest`` suspects (the most suspected first).

    :param pool: the nodes in service, or those of them that may be named here.
    :param pool_size: how many are in service, where ``pool`` isn't all of them.
    """
    size = max(pool_size, len(pool))
    room = int(settings.max_share * size + 1e-9)  # 57 % of 100 nodes are 57, whatever floats say
    room = max(0, min(room, size - nodes_needed)) if size else settings.max_unseen
    if settings.max_nodes is not None:
        room = min(room, settings.max_nodes)
    wanted = tuple(dict.fromkeys((*newest, *reversed(earlier))))
    if len(wanted) <= room:
        return Exclusion(wanted[::-1])  # there is room for all, so nobody needs to know who is in service
    excluded, kept = [], []
    in_service = frozenset(wanted).intersection(pool)
    for node in wanted:
        counts = node in in_service or not size
        if counts and room == 0:
            kept.append(node)
            continue
        room -= counts
        excluded.append(node)
    return Exclusion(tuple(reversed(excluded)), tuple(kept))


def offenders(settings: ExclusionSettings, ledger: Ledger) -> tuple[str, ...]:
    """Return the nodes that were suspected too often to be used again by this chain."""
    return tuple(blame.node for blame in ledger.blames if blame.times >= settings.offender_after)


def expired(settings: ExclusionSettings, nodes: Sequence[str], ledger: Ledger, now: datetime) -> tuple[str, ...]:
    """Return those of ``nodes`` that were suspected too long ago. Of whom nothing is known stays."""
    if settings.expiry_seconds is None:
        return ()
    over = {
        blame.node
        for blame in ledger.blames
        if blame.times < settings.offender_after and (now - blame.at).total_seconds() >= settings.expiry_seconds
    }
    return tuple(node for node in nodes if node in over) if over else ()


def softened(excluded: Sequence[str], ledger: Ledger) -> str | None:
    """Return the node whose exclusion is given up first: the one of whom least is known, then the least sure."""
    sure = {blame.node: (1, blame.times, blame.confidence) for blame in ledger.blames}
    return min(excluded, key=lambda node: sure.get(node, (0, 0, 0.0)), default=None)  # of equals the oldest
