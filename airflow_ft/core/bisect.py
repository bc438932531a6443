"""Bisect: which nodes, or which pair of nodes, make tests fail, when nobody knows and a fault shows only sometimes.

``Bisect`` is a planner. It says which groups of nodes to test next, and is told the results; it runs nothing. The same
results in the same order give the same plan. The story of a search:

1. *Screen*: all nodes together, again and again, until a test fails or it is improbable that anything is wrong.
2. *Search*: the smallest group that failed holds a culprit. Two disjoint parts of it, each of which holds the culprit
   with about one chance in three, are tested at once. A part that fails takes the group's place. A part that passes
   isn't cleared: its probability falls (``bisect_belief``), and it comes back when the rest has become improbable too.
   Groups that failed and share no node are searched in the same round.
3. *Confirm*: a node is faulty if it is probable enough **and** no single other node was part of all its failures,
   else a pair would explain them as well. A pair is named when each end alone passed too often to be the culprit.
4. *Verify*: what was found is set aside; all others together are screened again. So it goes on with the next culprit.

Nodes that are needed only to fill a group up to ``group_min`` come from outside the failing group, the most often
passed first. What can't be told apart (two nodes that can only be tested together) is ``inconclusive``, never guessed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from airflow_ft.core.bisect_belief import LINK_SHARE, Belief, Evidence, information, learned, mixed, rates
from airflow_ft.core.bisect_results import BisectError, BisectResult, Group, check_arguments

__all__ = ["Bisect", "BisectError", "BisectResult", "Group", "default_max_tests"]

# Two groups at once: the shares of the probability that tell most, for a fault that shows 80 % of the time (found by
# maximising the mutual information; flat around it).
SHARE = 0.36
# A second group that holds less isn't worth a test.
WORTH_SHARE = 0.12
# A verdict needs this probability. False blame was measured: benchmarks/bisect.py.
BLAME = 0.985
BLAME_LINK = 0.985
MOST_DOUBT = 0.005  # that its failures were all somebody else's
# Nothing is wrong (any more) when a culprit is this improbable: at first, and after something was found.
NOTHING_WRONG = 0.005
NOTHING_MORE = 0.01
PRIOR_WRONG = 0.5  # somebody suspects that something is wrong
# After k culprits another one has the probability k / (k + OTHERS): one bad node is usually alone, four are not.
OTHERS = 5.0
# A neighbour of a culprit (the order of the nodes is the order of the racks) is suspected first: so much of the
# probability goes to so many nodes on each side.
NEIGHBOUR_SHARE = 0.3
NEIGHBOURS = 4
# A search in which so many tests passed in a row has lost its culprit: at a rate of 0.35 one in 10,000 would.
SILENT_TESTS = 44


class Bisect:
    """The planner of one bisect.

    :param nodes: names, each once, in an order in which neighbours share a rack.
    :param group_min: the fewest nodes that a test can run on.
    :param detection_probability: how often a fault is expected to show in a test that contains it, above 0 to 1. Only
        a start: the rate is learned from the tests. Left out: usually always, perhaps less.
    :param max_tests: the most tests; what isn't known by then is inconclusive. Default: ``default_max_tests``.
    :param seed: another number gives another order of testing; 0 keeps the order of ``nodes``.

    Raises ``BisectError`` for arguments that can't be right.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        group_min: int = 2,
        detection_probability: float | None = None,
        max_tests: int | None = None,
        seed: int = 0,
    ):
        check_arguments(nodes, group_min, detection_probability, max_tests)
        self.nodes = tuple(nodes)
        self.group_min = group_min
        self.max_tests = default_max_tests(len(self.nodes)) if max_tests is None else max_tests
        self._names = _ordered(self.nodes, seed)
        self._everyone = frozenset(range(len(self._names)))
        self._evidence = Evidence.of(len(self._names))
        self._base_rates = self._rates = rates(detection_probability)
        self._groups: dict[int, Group] = {}
        self._outstanding: dict[int, Group] = {}
        self._members: dict[int, frozenset[int]] = {}
        self._faulty: dict[int, float] = {}
        self._links: dict[tuple[int, int], float] = {}
        self._silent: dict[frozenset[int], int] = {}
        self._stuck: set[frozenset[int]] = set()
        self._details: dict[int, str] = {}
        self._round = self._lost = self._verified = 0

    # --- what a caller uses --------------------------------------------------------------------------------------

    def next_round(self) -> list[Group]:
        """Return the groups to test now, all at the same time; empty when the bisect is over.

        Raises ``BisectError`` while a group of the last round has no report.
        """
        if self._outstanding:
            waiting = ", ".join(str(number) for number in self._outstanding)
            raise BisectError(
                f"next_round: group {waiting} of round {self._round} has no report yet. Report it; None if it was lost."
            )
        self._settle()
        left = self.max_tests - len(self._groups)
        plans = (self._searches() or self._verification())[: max(0, left)]
        if not plans:
            return []
        self._round += 1
        return [self._issued(purpose, members) for purpose, members in plans]

    def report(self, group: Group, failed: bool | None, detail: str = "") -> None:
        """Take in the result of one group; ``None`` means that the test was lost and says nothing.

        The groups of a round may be reported in any order. Raises ``BisectError`` for a group that this planner did not
        issue, or that was reported already.
        """
        number = getattr(group, "number", None)
        issued = self._groups.get(number) if isinstance(number, int) else None
        if issued is None or issued != group:
            known = ", ".join(str(number) for number in self._outstanding) or "none"
            raise BisectError(f"group: {group!r:.200} was not issued by this bisect. Waiting for a report: {known}.")
        if issued.number not in self._outstanding:
            raise BisectError(f"group: {issued.number} was reported already. Report each group once.")
        if failed is not None and not isinstance(failed, bool):
            raise BisectError(f"failed: {failed!r:.80} is not allowed. Give True, False, or None for a lost test.")
        del self._outstanding[issued.number]
        if failed is None:
            self._lost += 1
            return
        if failed and detail:
            self._details[issued.number] = detail
        self._evidence.add(issued.number, self._members[issued.number], failed)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The nodes of the smallest failing groups that nothing explains yet: where the search stands."""
        open_nodes = {node for group in self._evidence.smallest_failures() for node in group}
        return self._named(open_nodes - set(self._faulty))

    @property
    def result(self) -> BisectResult:
        """What is known now. Groups without a report count as tests and say nothing."""
        self._settle()
        unexplained = {node for group in self._evidence.smallest_failures() for node in group} - set(self._faulty)
        healthy, nothing_wrong = self._healthy(unexplained)
        rest = self._everyone - set(self._faulty)
        cleared = {node for node in rest if healthy[node] >= 1 - NOTHING_MORE} if self._round else set()
        confidence = {self._names[node]: healthy[node] for node in rest}
        confidence.update({self._names[node]: sure for node, sure in self._faulty.items()})
        return BisectResult(
            faulty_nodes=self._named(self._faulty),
            faulty_links=tuple((self._names[one], self._names[other]) for one, other in sorted(self._links)),
            cleared_nodes=self._named(cleared),
            inconclusive=self._named(rest - cleared),
            tests=len(self._groups),
            rounds=self._round,
            lost=self._lost,
            confidence={node: confidence[node] for node in self.nodes},
            nothing_wrong=nothing_wrong,
            details=dict(self._details),
        )

    # --- verdicts ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Name the culprits that are certain enough by now."""
        found = True
        while found:
            found = any(self._convict(group) for group in self._evidence.smallest_failures())

    def _convict(self, group: frozenset[int]) -> bool:
        belief, density = self._belief(group - set(self._faulty)), self._density()
        node, sure = belief.likely_node()
        if sure >= BLAME and self._evidence.common(node) - set(self._faulty) == {node}:
            doubt = self._evidence.doubt([node], density, density, self._rates)
            if doubt <= MOST_DOUBT:
                self._faulty[node] = min(sure, 1 - doubt)
                self._learn([node])
                return True
        link, sure = belief.likely_link()
        if sure >= BLAME_LINK:
            prior = LINK_SHARE * 2 / len(self.nodes) ** 2
            sure = min(sure, 1 - self._evidence.doubt(link, prior, density, self._rates))
            if sure >= BLAME_LINK:
                self._links[link] = sure
                self._learn(link)
                self._one_for_two_links(link)
                return True
        return False

    def _one_for_two_links(self, newest: tuple[int, int]) -> None:
        """A node at the end of two bad links is the simpler explanation of both."""
        for link in [link for link in self._links if link != newest and set(link) & set(newest)]:
            (shared,) = set(link) & set(newest)
            self._faulty[shared] = min(self._links.pop(link), self._links.pop(newest))
            self._learn([shared])
            return

    def _learn(self, culprit: Sequence[int]) -> None:
        failed, passed = self._evidence.explain(culprit)
        self._rates = mixed(self._base_rates, learned(self._base_rates, failed, passed))
        self._silent.clear()

    def _belief(self, members: frozenset[int]) -> Belief:
        return Belief(self._evidence, sorted(members), self._prior(members), self._rates, self._links)

    def _density(self) -> float:
        """How probably a given node is faulty, before its own tests."""
        found = len(self._faulty) + len(self._links)
        return min(0.5, (1 + found + _apart(self._evidence.smallest_failures())) / len(self.nodes))

    def _prior(self, members: frozenset[int]) -> dict[int, float]:
        near = {
            node + step
            for node in self._faulty
            for step in range(-NEIGHBOURS, NEIGHBOURS + 1)
            if node + step in members and node + step not in self._faulty
        }
        if not near:
            return {}
        boost = 1 + NEIGHBOUR_SHARE / (1 - NEIGHBOUR_SHARE) * len(self._everyone) / len(near)
        return dict.fromkeys(near, boost)

    # --- plans ---------------------------------------------------------------------------------------------------

    def _searches(self) -> list[tuple[str, frozenset[int]]]:
        """Two groups for each failing group; those that share nodes wait for each other."""
        plans: list[tuple[str, frozenset[int]]] = []
        used: set[int] = set()
        failing = [group for group in self._evidence.smallest_failures() if group not in self._stuck]
        suspected = {node for group in failing for node in group}
        for group in failing:
            if group & used:
                continue
            parts = self._parts(group - set(self._faulty), used, suspected)
            if not parts or self._silent.get(group, 0) >= SILENT_TESTS:
                self._stuck.add(group)
                continue
            self._silent[group] = self._silent.get(group, 0) + len(parts)
            used |= group.union(*parts)
            plans += [("search", part) for part in parts]
        return plans

    def _parts(self, group: frozenset[int], used: set[int], suspected: set[int]) -> list[frozenset[int]]:
        belief = self._belief(group)
        parts: list[frozenset[int]] = []
        taken: set[int] = set()
        worth = WORTH_SHARE
        for _ in range(2):
            choices = self._choices(belief, group, used | taken, suspected)
            if not choices:
                break
            _, held, part = max(choices, key=lambda choice: (choice[0], -len(choice[2])))
            if parts and held < worth:
                break
            parts.append(part)
            taken |= part
            worth = min(WORTH_SHARE, held / 3)
        return parts

    def _choices(
        self, belief: Belief, group: frozenset[int], used: set[int], suspected: set[int]
    ) -> list[tuple[float, float, frozenset[int]]]:
        """Groups that could be tested, with what each would tell and how probably it holds the culprit."""
        free = group - used
        node, sure = belief.likely_node()
        if sure >= BLAME:
            return self._last_doubts(node, sure, group, used, suspected)
        link, _ = belief.likely_link()
        picks = [belief.pick(SHARE, free), [node for node in link if node in free]]
        picks += [[node] for node in link if node in free]
        choices = []
        for picked in picks:
            part = self._filled(picked, used, suspected, group) if picked else None
            if part is not None and not group <= part:
                held = belief.held(part)
                choices.append((information(held), held, part))
        return choices

    def _last_doubts(
        self, node: int, sure: float, group: frozenset[int], used: set[int], suspected: set[int]
    ) -> list[tuple[float, float, frozenset[int]]]:
        """What is missing is a failure in better company; or, with no new company left, that the company passes."""
        met = self._evidence.companions(node)
        alone = self._filled([node], used, suspected, group) if node not in used else None
        if alone is not None and not group <= alone and not alone - {node} <= met:
            return [(0.0, sure, alone)]
        without = self._filled(sorted(met - used), used | {node}, suspected, group) if met - used else None
        return [(0.0, sure, without)] if without is not None and node not in without else []

    def _filled(
        self, picked: list[int], used: set[int], suspected: set[int], group: frozenset[int]
    ) -> frozenset[int] | None:
        """Fill up to ``group_min``: with nodes that aren't suspected, else with the least suspected of the group."""
        missing = self.group_min - len(picked)
        if missing <= 0:
            return frozenset(picked)
        barred = used | set(self._faulty) | set(picked) | self._other_ends(picked)
        others = self._everyone - barred
        company = sorted(others, key=lambda node: (node in group, node in suspected, *self._trust(node)))[:missing]
        return frozenset(picked + company) if len(company) == missing else None

    def _trust(self, node: int) -> tuple[int, int, int]:
        """Sort key: the most often passed first; the one that was in the fewest tests among equals."""
        mask = self._evidence.masks[node]
        return -(mask & self._evidence.passed).bit_count(), mask.bit_count(), node

    def _other_ends(self, nodes: Sequence[int]) -> set[int]:
        return {other for link in self._links if set(link) & set(nodes) for other in link}

    def _verification(self) -> list[tuple[str, frozenset[int]]]:
        """All that aren't known to be faulty, together, until it is improbable that one of them is."""
        stuck = {node for group in self._evidence.smallest_failures() for node in group}
        members = self._everyone - set(self._faulty) - stuck
        limit = NOTHING_MORE if self._faulty or self._links else NOTHING_WRONG
        if len(members) < self.group_min or self._wrong(members) <= limit:
            return []
        if not (self._faulty or self._links) and self._verified >= most_screens(len(self.nodes)):
            return []
        self._verified += 1
        apart = {link[self._verified % 2] for link in self._links}
        together = members - apart if len(members - apart) >= self.group_min else members
        return [("verify" if self._faulty or self._links else "screen", together)]

    def _wrong(self, members: frozenset[int]) -> float:
        """The probability that a culprit is among these nodes, none of which is in an open failure."""
        found = len(self._faulty) + len(self._links)
        prior = found / (found + OTHERS) if found else PRIOR_WRONG
        likelihood = prior * min(1.0, self._belief(members).evidence_weight)
        return likelihood / (likelihood + 1 - prior)

    def _healthy(self, unexplained: set[int]) -> tuple[dict[int, float], float]:
        healthy: dict[int, float] = {}
        for group in self._evidence.smallest_failures():
            belief = self._belief(group - set(self._faulty))
            for cell, share in zip(belief.cells, belief.marginals(), strict=True):
                for node in cell.nodes:
                    healthy[node] = min(healthy.get(node, 1.0), max(0.0, 1 - share))
        others = self._everyone - set(self._faulty) - unexplained
        wrong = self._wrong(others) if others else 0.0
        if others:
            belief = self._belief(others)
            for cell in belief.cells:
                for node in cell.nodes:
                    healthy[node] = 1 - wrong * cell.weight
        return healthy, 1 - wrong

    # --- names and numbers ---------------------------------------------------------------------------------------

    def _issued(self, purpose: str, members: frozenset[int]) -> Group:
        number = len(self._groups)
        group = Group(number, self._round, self._named(members), purpose)
        self._groups[number] = self._outstanding[number] = group
        self._members[number] = members
        return group

    def _named(self, members: set[int] | frozenset[int] | dict[int, float]) -> tuple[str, ...]:
        return tuple(self._names[node] for node in sorted(members))


def _apart(groups: Sequence[frozenset[int]]) -> int:
    """How many of these groups share no node: there are at least so many culprits."""
    seen: set[int] = set()
    count = 0
    for group in groups:
        if not group & seen:
            seen |= group
            count += 1
    return count


def most_screens(nodes: int) -> int:
    """How often a group without a failure is tested at most: 2·log2 n, but four times."""
    return max(4, int(2 * math.log2(max(2, nodes))))


def default_max_tests(nodes: int) -> int:
    """Enough for a fault that shows half of the time, and for a rack of nodes in which all are bad."""
    return 24 * max(1, math.ceil(math.log2(max(2, nodes)))) + nodes // 2


def _ordered(nodes: tuple[str, ...], seed: int) -> tuple[str, ...]:
    if seed == 0:
        return nodes
    return tuple(sorted(nodes, key=lambda node: hashlib.sha256(f"{seed}:{node}".encode()).digest()))
