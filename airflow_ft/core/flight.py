"""Who is behind in the collectives, by PyTorch's flight recorder (``agent.flight``).

Feeds the evidence of a hang. All ranks of a process group enqueue the same collectives in the same order; who has
enqueued fewer than the others is the one that they wait for. Ranks that are not in a group say nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MOST_RANKS = 8


class Behind(NamedTuple):
    """A rank that has not come to the collective that the others are in."""

    rank: int
    text: str


def behind(dumps: object) -> list[Behind]:
    """Return the ranks that are behind, if they are the smaller part of a group."""
    told = [dump for dump in dumps if isinstance(dump, Mapping)] if isinstance(dumps, Sequence) else []
    groups: dict[str, dict[int, int]] = {}
    for dump in told:
        rank, status = dump.get("rank"), dump.get("group")
        for name, numbers in status.items() if isinstance(status, Mapping) else ():
            enqueued = numbers[0] if isinstance(numbers, Sequence) and numbers else -1
            if isinstance(rank, int) and isinstance(enqueued, int) and enqueued >= 0:
                groups.setdefault(str(name), {})[rank] = enqueued
    found: dict[int, Behind] = {}
    for name, ranks in groups.items():
        most = max(ranks.values())
        late = {rank: number for rank, number in ranks.items() if number < most}
        if late and 2 * len(late) <= len(ranks) and len(late) <= MOST_RANKS:
            for rank, number in sorted(late.items()):
                text = f"rank {rank} has called {number} collectives of group {name}, the others {most}"
                found.setdefault(rank, Behind(rank, text))
    return list(found.values())
