"""Bisect: how often the culprit is found, what it costs, and whether a healthy node is blamed. Ours beside others.

    python -m benchmarks.bisect --json bisect.json

Every row is simulated with its own oracle: a group that holds a culprit fails with the row's probability, for each
culprit anew. All planners get the same culprits. The others are our own implementations of the published ideas:

halving        split the failing group, keep the half that fails (or the other one when it passes)
drop-one       halve as long as a half fails, then leave out one node after the other: the one without which it passes
pairs          two rounds of pairs, as in DLRover's network check: partners change, who fails twice is faulty
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow_ft.core.bisect import Bisect

Fails = Callable[[tuple[str, ...]], bool]
MAX_STEPS = 4096


@dataclass(frozen=True)
class Row:
    """One line of the table: what is wrong, how often it shows, and the goal."""

    name: str
    nodes: int
    culprits: int = 1
    rate: float = 1.0
    pair: bool = False
    rack: int = 0
    lost: float = 0.0
    recall: float = 0.0
    tests: float = math.inf
    rounds: float = math.inf


LOG = 2 * math.log2(256)
ROWS = (
    Row("n=256 k=1, always", 256, recall=1.0, tests=LOG, rounds=10),
    Row("n=256 k=1, 80 %", 256, rate=0.8, recall=0.95, tests=3 * LOG),
    Row("n=256 k=1, 50 %", 256, rate=0.5, recall=0.90, tests=6 * LOG),
    Row("n=1024 k=4, 80 %", 1024, culprits=4, rate=0.8, recall=0.95, tests=256),
    Row("n=64 bad pair, always", 64, pair=True, recall=0.95),
    Row("n=64 bad pair, 80 %", 64, rate=0.8, pair=True, recall=0.95),
    Row("n=256 k=0", 256, culprits=0, recall=1.0, tests=LOG),
    Row("n=256 rack of 16, always", 256, rack=16, recall=0.95),
    Row("n=256 k=1, 20 % lost", 256, lost=0.2, recall=0.95),
)


def main() -> int:
    """Run all rows; the exit code is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=300, help="runs a row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    args = parser.parse_args()
    print(f"{'':26}{'planner':10}{'recall':>8}{'false':>8}{'tests':>8}{'max':>6}{'rounds':>8}{'recall/100 tests':>18}")
    table = {}
    for row in ROWS:
        table[row.name] = {name: measure(row, plan, args.seeds) for name, plan in PLANNERS.items()}
        for name, numbers in table[row.name].items():
            print(
                f"{row.name if name == 'ours' else '':26}{name:10}{numbers['recall']:8.3f}{numbers['false_blame']:8.3f}"
                f"{numbers['tests']:8.1f}{numbers['most_tests']:6.0f}{numbers['rounds']:8.1f}{numbers['per_100']:18.2f}"
            )
    missed = [f"{row.name}: {text}" for row in ROWS for text in misses(row, table[row.name])]
    print("\n".join(missed) if missed else "All goals are met.")
    if args.json:
        args.json.write_text(json.dumps({"seeds": args.seeds, "rows": table, "missed": missed}, indent=1) + "\n")
    return 1 if missed else 0


def misses(row: Row, table: dict[str, dict[str, float]]) -> list[str]:
    """Which goals this row misses."""
    ours, found = table["ours"], []
    if ours["recall"] < row.recall:
        found.append(f"recall {ours['recall']:.3f} is below {row.recall}")
    if ours["false_blame"] > (0.0 if row.rate == 1.0 else 0.01):
        found.append(f"false blame {ours['false_blame']:.3f}")
    # Where the fault always shows, the limit is for every run; elsewhere for the mean.
    tests = ours["most_tests"] if row.rate == 1.0 else ours["tests"]
    if tests > row.tests or ours["most_rounds"] > row.rounds:
        found.append(f"{tests:.0f} tests, {ours['most_rounds']:.0f} rounds")
    behind = [name for name, other in table.items() if other["per_100"] > ours["per_100"]]
    if row.rate == 0.8 and not row.pair and behind:
        found.append(f"recall per test is behind {', '.join(behind)}")
    return found


def measure(row: Row, plan: Callable[[list[str], Fails, random.Random], Found], seeds: int) -> dict[str, float]:
    """Run one planner over all seeds of a row."""
    hit = wanted = blamed = 0
    tests, rounds = [], []
    began = time.perf_counter()
    for seed in range(seeds):
        chance = random.Random(seed)
        nodes = [f"n{number:04d}" for number in range(row.nodes)]
        culprits = _culprits(row, nodes, chance)
        oracle = Oracle(culprits, row.rate, row.lost, chance)
        found, used_rounds = plan(nodes, oracle, chance)
        hit += len(found & culprits)
        wanted += len(culprits)
        blamed += bool(found - culprits)
        tests.append(oracle.tests)
        rounds.append(used_rounds)
    recall = hit / wanted if wanted else 1 - blamed / seeds
    return {
        "recall": recall,
        "false_blame": blamed / seeds,
        "tests": sum(tests) / seeds,
        "most_tests": max(tests),
        "rounds": sum(rounds) / seeds,
        "most_rounds": max(rounds),
        "per_100": 100 * recall / (sum(tests) / seeds),
        "seconds_each": round((time.perf_counter() - began) / seeds, 4),
    }


Culprit = frozenset[str]  # one node, or the two ends of a link
Found = tuple[set[Culprit], int]


def _culprits(row: Row, nodes: list[str], chance: random.Random) -> set[Culprit]:
    if row.pair:
        return {frozenset(chance.sample(nodes, 2))}
    if row.rack:
        start = chance.randrange(len(nodes) - row.rack + 1)
        return {frozenset([node]) for node in nodes[start : start + row.rack]}
    return {frozenset([node]) for node in chance.sample(nodes, row.culprits)}


class Oracle:
    """Says whether a test fails, and counts."""

    def __init__(self, culprits: set[Culprit], rate: float, lost: float, chance: random.Random):
        self._culprits, self._rate, self._lost, self._chance = culprits, rate, lost, chance
        self.tests = 0

    def ask(self, group: tuple[str, ...]) -> bool | None:
        """The result of a test; ``None`` if it was lost."""
        self.tests += 1
        if self._chance.random() < self._lost:
            return None
        inside = set(group)
        return any(self._chance.random() < self._rate for culprit in self._culprits if culprit <= inside)

    def __call__(self, group: tuple[str, ...]) -> bool:
        """The result for a planner that knows no lost tests: it passes."""
        return bool(self.ask(group))


def ours(nodes: list[str], fails: Fails, chance: random.Random) -> Found:
    """The planner of airflow_ft, with its defaults: it isn't told how often the fault shows."""
    assert isinstance(fails, Oracle)
    bisect = Bisect(nodes)
    while groups := bisect.next_round():
        for group in groups:
            bisect.report(group, fails.ask(group.nodes))
    result = bisect.result
    culprits = [(node,) for node in result.faulty_nodes]
    return {frozenset(culprit) for culprit in (*culprits, *result.faulty_links)}, result.rounds


def halving(nodes: list[str], fails: Fails, chance: random.Random) -> Found:
    """Plain halving. One pass clears a half."""
    rounds = 1
    if not fails(tuple(nodes)):
        return set(), rounds
    group = list(nodes)
    while len(group) > 1:
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        company = [] if len(first) > 1 else [node for node in nodes if node not in group][:1]
        rounds += 1
        group = first if fails((*first, *company)) else second
    return {frozenset(group)}, rounds


def drop_one(nodes: list[str], fails: Fails, chance: random.Random) -> Found:
    """Halve while a half fails; then drop one node after the other."""
    rounds = 1
    group = tuple(nodes)
    if not fails(group):
        return set(), rounds
    while len(group) > 2:
        halves = (group[: len(group) // 2], group[len(group) // 2 :])
        rounds += 1
        failing = [half for half in halves if fails(half)]
        if not failing:
            break
        group = failing[0]
    company = tuple(node for node in nodes if node not in group)[:1]
    for node in group:
        rounds += 1
        if not fails((*(other for other in group if other != node), *company)):
            return {frozenset([node])}, rounds
    return set(), rounds


def pairs(nodes: list[str], fails: Fails, chance: random.Random) -> Found:
    """Two rounds of pairs: the nodes of failed pairs meet partners from passed ones; who fails again is faulty."""
    first = [tuple(nodes[start : start + 2]) for start in range(0, len(nodes), 2)]
    results = {pair: fails(pair) for pair in first}
    suspects = [node for pair, failed in results.items() if failed for node in pair]
    partners = [node for pair, failed in results.items() if not failed for node in pair]
    again = [(node, partners[number % len(partners)]) for number, node in enumerate(suspects)] if partners else []
    return {frozenset([pair[0]]) for pair in again if fails(pair)}, 2


PLANNERS = {"ours": ours, "halving": halving, "drop-one": drop_one, "pairs": pairs}

if __name__ == "__main__":
    sys.exit(main())
