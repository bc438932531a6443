"""Which nodes the next attempt avoids: all that are suspected, as far as the pool can spare them.

An exclusion without a cap makes a retry that can never be scheduled (stories EXC-01). The cap is a share of the pool,
and never less is left than the job needs. Nodes that are out of service cost nothing and are always avoided: they may
come back while the job waits. Where the pool can't be seen, a small fixed number is the cap. The newest suspects have
precedence; who had to be kept is said.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from airflow_ft.core.policy import ExclusionSettings


@dataclass(frozen=True)
class Exclusion:
    """``excluded``: to avoid, the newest last. ``kept``: wanted out, but the pool is too small."""

    excluded: tuple[str, ...]
    kept: tuple[str, ...] = ()


def exclude(
    settings: ExclusionSettings,
    newest: Sequence[str],
    earlier: Sequence[str],
    pool: Collection[str],
    nodes_needed: int,
) -> Exclusion:
    """Choose among ``earlier`` exclusions (the newest last) and the ``newest`` suspects (the most suspected first)."""
    in_service = frozenset(pool)
    room = int(settings.max_share * len(in_service) + 1e-9)  # 57 % of 100 nodes are 57, whatever floats say
    room = max(0, min(room, len(in_service) - nodes_needed)) if in_service else settings.max_unseen
    excluded, kept = [], []
    for node in dict.fromkeys((*newest, *reversed(earlier))):
        counts = node in in_service or not in_service
        if counts and room == 0:
            kept.append(node)
            continue
        room -= counts
        excluded.append(node)
    return Exclusion(tuple(reversed(excluded)), tuple(kept))
