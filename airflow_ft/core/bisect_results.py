"""What goes in and out of a bisect: its groups, its result in data and in words, the errors of its arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


class BisectError(ValueError):
    """The planner was asked for, or told, something that doesn't fit. The message says what does."""


@dataclass(frozen=True)
class Group:
    """Nodes to be tested together. Groups of one round share no node."""

    number: int
    round: int
    nodes: tuple[str, ...]
    purpose: str  # screen, search or verify

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True)
class BisectResult:
    """What is known so far.

    :param faulty_nodes: the culprits, each confirmed in company that is innocent.
    :param faulty_links: pairs of nodes that fail only together. Neither end is faulty alone.
    :param cleared_nodes: tested, and improbable to be culprits. An end of a faulty link is among them.
    :param inconclusive: nodes of which neither can be said.
    :param confidence: for each node the probability that what is said of it is right; for an inconclusive one the
        probability that it is healthy.
    :param nothing_wrong: the probability that no culprit is left among the nodes that aren't inconclusive.
    :param details: what the reports of the failing tests said, by group number.
    """

    faulty_nodes: tuple[str, ...] = ()
    faulty_links: tuple[tuple[str, str], ...] = ()
    cleared_nodes: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    tests: int = 0
    rounds: int = 0
    lost: int = 0
    confidence: dict[str, float] = field(default_factory=dict)
    nothing_wrong: float = 0.0
    details: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        spent = f"{self.tests} tests in {self.rounds} rounds"
        found = [f"{node} (confidence {_percent(self.confidence[node])})" for node in self.faulty_nodes]
        found += [f"the link {one} – {other}" for one, other in self.faulty_links]
        unclear = f"; inconclusive: {', '.join(self.inconclusive)}" if self.inconclusive else ""
        if found:
            return f"found {', '.join(found)}{unclear}; {spent}"
        if unclear:
            return f"nothing proved{unclear}; {spent}"
        return f"nothing found, confidence {_percent(self.nothing_wrong)}; {spent}"


def check_arguments(
    nodes: Sequence[str], group_min: int, detection_probability: float | None, max_tests: int | None
) -> None:
    """Raise one ``BisectError`` for all arguments of a bisect that can't be right."""
    problems = []
    if isinstance(nodes, str) or not all(isinstance(node, str) and node for node in nodes):
        problems.append(f"nodes: {nodes!r:.80} is not allowed. Give a list of names.")
    else:
        twice = sorted({node for node in nodes if list(nodes).count(node) > 1}) if len(set(nodes)) < len(nodes) else []
        if twice:
            problems.append(f"nodes: {', '.join(twice):.80} given more than once. Give each node once.")
    if not isinstance(group_min, int) or isinstance(group_min, bool) or group_min < 1:
        problems.append(f"group_min: {group_min!r:.80} is not allowed. Give a whole number from 1.")
    elif not problems and len(nodes) < group_min:
        problems.append(f"nodes: {len(nodes)} given, a test needs {group_min}. Give more nodes, or a lower group_min.")
    if detection_probability is not None and not 0 < detection_probability <= 1:
        problems.append(f"detection_probability: {detection_probability!r:.80} is not allowed. Above 0 to 1 is.")
    if max_tests is not None and (not isinstance(max_tests, int) or max_tests < 1):
        problems.append(f"max_tests: {max_tests!r:.80} is not allowed. Give a whole number from 1, or leave it out.")
    if problems:
        raise BisectError("\n".join(problems))


def _percent(probability: float) -> str:
    return f"{math.floor(min(probability, 0.99999) * 1000) / 10:g} %"
