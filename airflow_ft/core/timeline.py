"""One time line for the logs of several nodes, whose clocks differ. Feeds ``classify``.

Ranks make their steps together, so a step that two logs tell is the same moment: the median of the differences is how
far their clocks are apart, and is taken off. Logs that share no steps can't be compared like that; their clocks
are believed (the preflight looks at them), but never to a second: what lies closer is called simultaneous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

SAME_TIME = 1.0  # seconds; launchers tell whole seconds, and notice a death within a tenth of one
COMMON_STEPS = 2  # the fewest that align two clocks
STEADY = 5.0  # seconds between which the differences must lie: a rank that printed late tells no offset

_T = TypeVar("_T")


@dataclass(frozen=True)
class Timeline:
    """``ahead`` says of a log by how many seconds its clock is ahead of the reference."""

    ahead: Mapping[str, float] = field(default_factory=dict)

    def first(self, items: Sequence[_T], moment: Callable[[_T], tuple[str, float | None]]) -> list[_T]:
        """Return the items that are not clearly later than the first one, and those that tell no time.

        :param moment: the log of an item, and its time by that log's clock.
        """
        told = {index: moment(item) for index, item in enumerate(items)}
        times = {i: at - self.ahead.get(source, 0.0) for i, (source, at) in told.items() if at is not None}
        if not times:
            return list(items)
        latest = min(times.values()) + SAME_TIME
        return [item for index, item in enumerate(items) if times.get(index, latest) <= latest]


def align(steps: Mapping[str, Mapping[int, float]], nodes: Iterable[tuple[str, str | None]] = ()) -> Timeline:
    """Return the time line of logs, by the times of their steps.

    :param steps: for each log the time of each step.
    :param nodes: the logs with their nodes: a log without steps has the clock of another log of its node.
    """
    if not steps:
        return Timeline()
    reference = max(steps, key=lambda source: len(steps[source]))
    ahead = {reference: 0.0} if steps[reference] else {}
    for source, times in steps.items():
        apart = [times[step] - steps[reference][step] for step in times if step in steps[reference]]
        if source != reference and len(apart) >= COMMON_STEPS and max(apart) - min(apart) <= STEADY:
            ahead[source] = median(apart)
    known = {node: ahead[source] for source, node in nodes if node is not None and source in ahead}
    ahead |= {source: known[node] for source, node in nodes if source not in ahead and node in known}
    return Timeline(ahead)
