"""Stacks as a person reads them: who stood where when a hang was found, the odd ones first. Pure.

Each node groups only its own processes; here those of all nodes that stood at one place come together. Little is kept
of it, as it goes into the chain's record: a few places, of each the innermost frames of the main thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from airflow_ft.core.facts import Stack
from airflow_ft.core.faults import StackPlace
from airflow_ft.core.stackplaces import frames

MOST_PLACES = 4
MOST_FRAMES = 10
FRAME_LENGTH = 120
WHO_LENGTH = 100
_Place = tuple[bool, tuple[str, ...]]


def grouped(stacks: Sequence[Stack], odd_ranks: Collection[int]) -> tuple[StackPlace, ...]:
    """Return the places where ranks stood: the odd ones first, then those with fewest ranks.

    :param odd_ranks: who is suspected; who is stopped (SIGSTOP, a debugger) is odd, too.
    """
    places: dict[_Place, list[tuple[int, str]]] = {}
    for stack in stacks:
        place = (stack.stopped, _frames(stack.stack))
        places.setdefault(place, []).extend((rank, stack.node) for rank in stack.ranks)
    made = [
        (len(members), _place(place, members, odd_ranks)) for place, members in places.items() if members
    ]  # without a rank: the launcher, a helper
    made.sort(key=lambda one: (not one[1].odd, one[0]))
    return tuple(place for _, place in made[:MOST_PLACES])


def _frames(stack: str) -> tuple[str, ...]:
    found = [f"{one.function} ({one.file}:{one.line})" if one.line else one.function for one in frames(stack)]
    lines = found or [line.strip() for line in stack.splitlines() if line.strip()]
    return tuple(line if len(line) <= FRAME_LENGTH else f"…{line[1 - FRAME_LENGTH :]}" for line in lines[:MOST_FRAMES])


def _place(place: _Place, members: Sequence[tuple[int, str]], odd_ranks: Collection[int]) -> StackPlace:
    stopped, lines = place
    ranks = sorted({rank for rank, _ in members})
    nodes = sorted({node for _, node in members})
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    who = f"{'Rank' if len(ranks) == 1 else f'{len(ranks)} ranks:'} {_ranges(ranks)}"
    odd = stopped or all(rank in odd_ranks for rank in ranks)
    return StackPlace(who=f"{who[:WHO_LENGTH]} on {where}", frames=lines, odd=odd, stopped=stopped)


def _ranges(ranks: Iterable[int]) -> str:
    """Return "0-3, 7" for 0, 1, 2, 3, 7."""
    runs = [list(run) for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)
