"""What the tests of a bisect say about each node and each pair of nodes: the arithmetic behind ``bisect``.

Theory
------
A test runs a group of nodes. A healthy group never fails; a group that contains a culprit fails at the culprit's
*rate*, which nobody knows: a fault may show always, or half of the time. A culprit is a node, or a pair of nodes that
fails only when both work together (a bad link between two good nodes). So a failure is proof that a culprit is inside,
and a pass is only a hint that none is, the stronger the more often it happens and the higher the rate.

``Evidence`` keeps the tests as bits: each node has a number whose bit t says that it took part in test t. What a pair
went through is then one ``and``. ``Belief`` is the posterior over all culprits that could be inside one failing group,
taken to be one culprit, with the rate as an unknown of its own. Nodes with the same history and the same prior are one
*cell*, which keeps a thousand nodes (half a million pairs) at a few dozen cells.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# How often a fault shows, as far as known before the first test. Most faults of hardware show in every test that uses
# the part (0.99: even then a test may miss it); 0.8 and 0.5 are the published cases of flaky ones; the tail is a guess.
BASE_RATES: dict[float, float] = {0.99: 0.55, 0.8: 0.22, 0.6: 0.08, 0.5: 0.1, 0.35: 0.05}
# How much of the prior stands on the rate that the caller names; the rest keeps us right when the caller is wrong.
NAMED_SHARE = 0.6
# One fault in six is a pair: a gut feeling (cables and switch ports against whole nodes). It sets how many passes of
# each end alone it takes before a link is named.
LINK_SHARE = 0.15
# A search looks for one culprit; that a failing test needed another one counts as so improbable. It only steers.
SECOND_CULPRIT = 0.05

Rates = Mapping[float, float]


def rates(detection_probability: float | None) -> dict[float, float]:
    """Return the prior of a culprit's rate, with most weight on the one that is expected."""
    if detection_probability is None:
        return dict(BASE_RATES)
    named = min(0.99, detection_probability)
    prior = {rate: weight * (1 - NAMED_SHARE) for rate, weight in BASE_RATES.items()}
    prior[named] = prior.get(named, 0.0) + NAMED_SHARE
    return prior


def learned(prior: Rates, failed: int, passed: int) -> dict[float, float]:
    """Return the rate's posterior after a culprit was part of that many tests."""
    weights = {rate: weight * rate**failed * (1 - rate) ** passed for rate, weight in prior.items()}
    total = sum(weights.values())
    return {rate: weight / total for rate, weight in weights.items()} if total > 0 else dict(prior)


def mixed(one: Rates, other: Rates) -> dict[float, float]:
    """Return half of each: the next culprit may be like the last one, or not."""
    return {rate: (one.get(rate, 0.0) + other.get(rate, 0.0)) / 2 for rate in {**one, **other}}


@dataclass
class Evidence:
    """All tests with a result, as bits. ``open_failures`` are those that no culprit explains yet."""

    masks: list[int]
    passed: int = 0
    open_failures: dict[int, frozenset[int]] = field(default_factory=dict)
    failures: dict[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: int) -> Evidence:
        """Return no evidence about so many nodes."""
        return cls([0] * nodes)

    def add(self, number: int, members: Collection[int], failed: bool) -> None:
        """Take in test ``number`` (each number once)."""
        bit = 1 << number
        for node in members:
            self.masks[node] |= bit
        if failed:
            self.failures[number] = self.open_failures[number] = frozenset(members)
        else:
            self.passed |= bit

    def explain(self, culprit: Collection[int]) -> tuple[int, int]:
        """Close the failures that this culprit explains; returns how often it failed and passed."""
        both = self.history(culprit)
        for number in [number for number in self.open_failures if both >> number & 1]:
            del self.open_failures[number]
        failed = sum(both >> number & 1 for number in self.failures)
        return failed, (both & self.passed).bit_count()

    def history(self, culprit: Collection[int]) -> int:
        """Return the tests that all of these nodes took part in."""
        mask = -1
        for node in culprit:
            mask &= self.masks[node]
        return mask

    def smallest_failures(self) -> list[frozenset[int]]:
        """Return the open failing groups that contain no other one, the smallest first."""
        found: list[frozenset[int]] = []
        for group in sorted(self.open_failures.values(), key=lambda group: (len(group), min(group))):
            if not any(smaller <= group for smaller in found):
                found.append(group)
        return found

    def doubt(self, culprit: Collection[int], prior: float, density: float, rate_prior: Rates) -> float:
        """The probability that this culprit is innocent, for all that others can explain.

        Were it innocent, each of its failures would need a culprit in its company; failures whose companies share no
        node need one each. ``prior`` is the culprit's own probability before any test, ``density`` a node's.
        """
        others, needed, failures = 1.0, 0, self._apart(culprit)
        for company in failures:
            others *= min(1.0, sum(density * self._likelihood([node], 1, rate_prior) for node in company))
            needed += 1
        own = prior * self._likelihood(culprit, needed, rate_prior)
        return others / (others + own) if needed and others + own > 0 else 1.0

    def companions(self, node: int) -> set[int]:
        """All that were part of an open failure of this node."""
        return {other for group in self.open_failures.values() if node in group for other in group} - {node}

    def _apart(self, culprit: Collection[int]) -> list[frozenset[int]]:
        """The companies that the culprit failed in, without those that share a node with a smaller one."""
        seen: set[int] = set()
        apart = []
        for group in sorted(self.open_failures.values(), key=len):
            company = group.difference(culprit)
            if group.issuperset(culprit) and not company & seen:
                seen |= company
                apart.append(company)
        return apart

    def _likelihood(self, culprit: Collection[int], failed: int, rate_prior: Rates) -> float:
        passed = (self.history(culprit) & self.passed).bit_count()
        return sum(weight * rate**failed * (1 - rate) ** passed for rate, weight in rate_prior.items())

    def common(self, node: int) -> frozenset[int]:
        """Return the nodes that took part in every open failure of this node: any of them may be the other end."""
        groups = [group for group in self.open_failures.values() if node in group]
        return frozenset.intersection(*groups) if groups else frozenset()


@dataclass(frozen=True)
class Cell:
    """Nodes with one history: ``weight`` is the probability that a given one of them is the culprit."""

    nodes: tuple[int, ...]
    weight: float


class Belief:
    """The probabilities of every culprit among ``members``. They add up to 1; ``evidence`` is what they explain."""

    def __init__(
        self,
        evidence: Evidence,
        members: Iterable[int],
        prior: Mapping[int, float],
        rate_prior: Rates,
        known_links: Collection[tuple[int, int]] = (),
    ):
        self._evidence, self._rates = evidence, rate_prior
        self._open = sum(1 << number for number in evidence.open_failures)
        self._likelihoods: dict[tuple[int, int], float] = {}
        ends = {node for link in known_links for node in link}
        groups: dict[tuple[int, float, int], list[int]] = {}
        for node in members:
            key = (evidence.masks[node], prior.get(node, 1.0), node if node in ends else -1)
            groups.setdefault(key, []).append(node)
        everyone = len(evidence.masks)
        per_node = (1 - LINK_SHARE) / everyone
        per_pair = LINK_SHARE / max(1, everyone * (everyone - 1) // 2)
        cells = [(mask, tuple(nodes), per_node * boost) for (mask, boost, _), nodes in groups.items()]
        weights = [weight * self._likelihood(mask) for mask, _, weight in cells]
        links = [[per_pair * self._likelihood(one & other) for one, _, _ in cells] for other, _, _ in cells]
        for number, (_, nodes, _) in enumerate(cells):
            for other in range(len(cells)):
                if tuple(sorted((nodes[0], cells[other][1][0]))) in known_links:
                    links[number][other] = 0.0
        self.evidence_weight = _total([len(nodes) for _, nodes, _ in cells], weights, links)
        scale = 1 / self.evidence_weight if self.evidence_weight > 0 else 0.0
        self.cells = [Cell(nodes, weight * scale) for (_, nodes, _), weight in zip(cells, weights, strict=True)]
        self.links = [[weight * scale for weight in row] for row in links]

    def _likelihood(self, history: int) -> float:
        """How well a culprit with this history explains all results."""
        failed, passed = key = ((history & self._open).bit_count(), (history & self._evidence.passed).bit_count())
        if key not in self._likelihoods:
            self._likelihoods[key] = sum(
                weight * rate**failed * (1 - rate) ** passed for rate, weight in self._rates.items()
            )
        return self._likelihoods[key] * SECOND_CULPRIT ** (self._open.bit_count() - failed)

    def of_node(self, node: int) -> float:
        """The probability that this node is the culprit."""
        return next((cell.weight for cell in self.cells if node in cell.nodes), 0.0)

    def likely_node(self) -> tuple[int, float]:
        """The most probable node."""
        cell = max(self.cells, key=lambda cell: cell.weight)
        return cell.nodes[0], cell.weight

    def likely_link(self) -> tuple[tuple[int, int], float]:
        """The most probable pair."""
        best, link = 0.0, (-1, -1)
        for one, row in enumerate(self.links):
            for other in range(one, len(row)):
                nodes = self.cells[one].nodes[:1] + self.cells[other].nodes[one == other :][:1]
                if row[other] > best and len(nodes) == 2:
                    best, link = row[other], (min(nodes), max(nodes))
        return link, best

    def marginals(self) -> list[float]:
        """For each cell the probability that a given node of it is the culprit, or one end of it."""
        sizes = [len(cell.nodes) for cell in self.cells]
        found = []
        for number, (cell, row) in enumerate(zip(self.cells, self.links, strict=True)):
            pairs = sum(size * weight for size, weight in zip(sizes, row, strict=True)) - row[number]
            found.append(cell.weight + pairs)
        return found

    def held(self, nodes: Collection[int]) -> float:
        """The probability that these nodes hold the culprit: the node itself, or both ends of the pair."""
        counts = [sum(node in nodes for node in cell.nodes) for cell in self.cells]
        return _total(counts, [cell.weight for cell in self.cells], self.links)

    def pick(self, target: float, free: Collection[int]) -> list[int]:
        """Choose nodes, the likeliest first, that hold the culprit with a probability near ``target``."""
        counts = [0] * len(self.cells)
        picked: list[int] = []
        held = 0.0
        shares = self.marginals()
        for number in sorted(range(len(self.cells)), key=lambda one: (-shares[one], self.cells[one].nodes)):
            nodes = [node for node in self.cells[number].nodes if node in free]
            each = self.cells[number].weight
            each += sum(count * weight for count, weight in zip(counts, self.links[number], strict=True) if count)
            pair = self.links[number][number]
            take = _nearest(target - held, each, pair, len(nodes))
            if take == 0 and not picked and nodes:
                take = 1
            picked += nodes[:take]
            held += take * each + take * (take - 1) / 2 * pair
            counts[number] = take
            if take < len(nodes):
                break
        return picked


def _nearest(wanted: float, each: float, pair: float, most: int) -> int:
    """How many of ``most`` nodes hold nearest to ``wanted``; all of them where even that is less."""
    best, distance = 0, abs(wanted)
    for count in range(1, most + 1):
        off = abs(count * each + count * (count - 1) / 2 * pair - wanted)
        if off > distance:
            return best
        best, distance = count, off
    return best


def _total(counts: Sequence[int], weights: Sequence[float], links: Sequence[Sequence[float]]) -> float:
    """The weight of that many nodes of each cell, and of all pairs among them."""
    total = 0.0
    for one, count in enumerate(counts):
        if count:
            row = links[one]
            total += count * weights[one] + count * (count - 1) / 2 * row[one]
            total += count * sum(counts[other] * row[other] for other in range(one) if counts[other])
    return total


def information(held: float, rate: float = 0.8) -> float:
    """How many bits a test tells that holds the culprit with probability ``held`` and then fails at ``rate``."""
    return _entropy(rate * held) - held * _entropy(rate)


def _entropy(probability: float) -> float:
    if not 0 < probability < 1:
        return 0.0
    return -probability * math.log2(probability) - (1 - probability) * math.log2(1 - probability)
