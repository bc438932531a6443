"""Bisect: the culprits are found, nobody else is blamed, and what can't be known is said to be unknown."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from airflow_ft.core.bisect import Bisect, BisectError, BisectResult, Group, default_max_tests

pytestmark = [pytest.mark.row("P6"), pytest.mark.row("S4")]


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def run(bisect: Bisect, fails: Callable[[Group], bool | None]) -> BisectResult:
    while groups := bisect.next_round():
        met: set[str] = set()
        for group in groups:
            assert len(group.nodes) >= bisect.group_min
            assert not met & set(group.nodes), "groups of a round share no node"
            met |= set(group.nodes)
        for group in groups:
            bisect.report(group, fails(group), "it failed")
    return bisect.result


def flaky(
    bad: set[str], chance: random.Random, rate: float = 1.0, pair: tuple[str, ...] = ()
) -> Callable[[Group], bool | None]:
    def fails(group: Group) -> bool:
        hits = [node for node in bad if node in group.nodes]
        hits += [pair[0]] if pair and set(pair) <= set(group.nodes) else []
        return any(chance.random() < rate for _ in hits)

    return fails


def partitioned(bisect: Bisect, result: BisectResult) -> bool:
    told = [*result.faulty_nodes, *result.cleared_nodes, *result.inconclusive]
    return sorted(told) == sorted(bisect.nodes)


@pytest.mark.parametrize("size", [3, 4, 5, 7, 16, 33, 64, 100, 256, 1024])
def test_a_node_that_always_fails_is_found_and_no_other_is_blamed(size: int) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        bad = {chance.choice(names(size))}
        bisect = Bisect(names(size))
        result = run(bisect, flaky(bad, chance))
        assert set(result.faulty_nodes) == bad
        assert not result.faulty_links
        assert not result.inconclusive
        assert partitioned(bisect, result)


def test_256_nodes_take_at_most_16_tests_and_10_rounds_when_the_fault_always_shows() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        result = run(Bisect(names(256)), flaky({chance.choice(names(256))}, chance))
        assert result.tests <= 16
        assert result.rounds <= 10


@pytest.mark.parametrize(("rate", "recall", "tests"), [(0.8, 0.95, 48), (0.5, 0.90, 96)])
@pytest.mark.parametrize("told", [False, True])
def test_a_flaky_fault_is_found_without_blaming_a_healthy_node(
    rate: float, recall: float, tests: int, told: bool
) -> None:
    found = spent = wrong = 0
    for seed in range(60):
        chance = random.Random(seed)
        bad = {chance.choice(names(256))}
        result = run(Bisect(names(256), detection_probability=rate if told else None), flaky(bad, chance, rate))
        found += bad == set(result.faulty_nodes)
        wrong += bool(set(result.faulty_nodes) - bad)
        spent += result.tests
    assert found / 60 >= recall - 0.03  # 60 runs instead of the benchmark's 300
    assert wrong == 0
    assert spent / 60 <= tests


def test_four_flaky_nodes_of_1024_take_far_fewer_tests_than_a_quarter_of_the_nodes() -> None:
    for seed in range(6):
        chance = random.Random(seed)
        bad = set(chance.sample(names(1024), 4))
        result = run(Bisect(names(1024), detection_probability=0.8), flaky(bad, chance, 0.8))
        assert set(result.faulty_nodes) == bad
        assert result.tests <= 256


@pytest.mark.parametrize("rate", [1.0, 0.8])
def test_a_bad_link_is_named_and_neither_end_is_blamed(rate: float) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        one, other = sorted(chance.sample(range(64), 2))
        result = run(Bisect(names(64)), flaky(set(), chance, rate, pair=(f"n{one}", f"n{other}")))
        assert result.faulty_links == ((f"n{one}", f"n{other}"),)
        assert not result.faulty_nodes


def test_nothing_wrong_is_said_with_a_confidence_and_blames_nobody() -> None:
    bisect = Bisect(names(256))
    result = run(bisect, lambda group: False)
    assert result.tests <= 16
    assert not result.faulty_nodes
    assert not result.faulty_links
    assert not result.inconclusive
    assert result.nothing_wrong >= 0.99
    assert str(result).startswith("nothing found, confidence 99")


def test_one_clean_pass_exonerates_nobody() -> None:
    bisect = Bisect(names(16))
    (everyone,) = bisect.next_round()
    bisect.report(everyone, False)
    assert bisect.next_round(), "a flaky fault could have passed that"
    assert set(bisect.result.inconclusive) | set(bisect.result.cleared_nodes) == set(names(16))


def test_a_whole_rack_is_found() -> None:
    chance = random.Random(3)
    bad = set(names(256)[48:64])
    result = run(Bisect(names(256)), flaky(bad, chance))
    assert set(result.faulty_nodes) == bad


def test_a_lost_test_says_nothing_and_is_counted() -> None:
    chance = random.Random(5)
    fails = flaky({"n9"}, chance)
    result = run(Bisect(names(32)), lambda group: None if chance.random() < 0.3 else fails(group))
    assert result.faulty_nodes == ("n9",)
    assert result.lost > 0


def test_when_every_test_is_lost_it_ends_and_knows_nothing() -> None:
    result = run(Bisect(names(8), max_tests=5), lambda group: None)
    assert result.tests == 5
    assert result.inconclusive == tuple(names(8))


def test_two_nodes_that_only_run_together_are_inconclusive() -> None:
    result = run(Bisect(["a", "b"]), lambda group: True)
    assert result.inconclusive == ("a", "b")
    assert not result.faulty_nodes
    assert "inconclusive" in str(result)


@pytest.mark.parametrize("group_min", [1, 2, 3, 5, 8])
def test_groups_never_fall_below_the_fewest_nodes_a_test_can_run_on(group_min: int) -> None:
    chance = random.Random(group_min)
    result = run(Bisect(names(33), group_min=group_min), flaky({"n17"}, chance))
    assert result.faulty_nodes == ("n17",)


def test_the_budget_of_tests_is_kept_and_what_is_left_open_is_inconclusive() -> None:
    bisect = Bisect(names(64), max_tests=4)
    result = run(bisect, flaky({"n40"}, random.Random(1)))
    assert result.tests <= 4
    assert "n40" in result.inconclusive
    assert partitioned(bisect, result)


def test_reports_of_a_round_may_come_in_any_order() -> None:
    results = []
    for turn in (1, -1):
        bisect = Bisect(names(64))
        while groups := bisect.next_round():
            for group in groups[::turn]:
                bisect.report(group, "n50" in group.nodes)
        results.append(bisect.result)
    assert results[0] == results[1]


def test_the_same_seed_gives_the_same_plan_and_another_seed_another_one() -> None:
    def plan(seed: int) -> list[tuple[str, ...]]:
        bisect, issued = Bisect(names(32), seed=seed), []
        while groups := bisect.next_round():
            for group in groups:
                issued.append(group.nodes)
                bisect.report(group, "n3" in group.nodes)
        return issued

    assert plan(0) == plan(0)
    assert plan(7) == plan(7)
    assert plan(7) != plan(0)


def test_a_report_that_does_not_fit_is_an_error_that_says_what_does() -> None:
    bisect = Bisect(names(8))
    (group,) = bisect.next_round()
    with pytest.raises(BisectError, match=r"was not issued by this bisect. Waiting for a report: 0"):
        bisect.report(Group(7, 1, ("n0", "n1"), "search"), True)
    with pytest.raises(BisectError, match="was not issued"):
        bisect.report(Group(0, 1, ("n0", "n1"), "screen"), True)
    with pytest.raises(BisectError, match="group 0 of round 1 has no report yet"):
        bisect.next_round()
    with pytest.raises(BisectError, match="Give True, False, or None"):
        bisect.report(group, "yes")  # type: ignore[arg-type]
    bisect.report(group, True, "NCCL timeout")
    with pytest.raises(BisectError, match="0 was reported already"):
        bisect.report(group, True)
    assert bisect.result.details == {0: "NCCL timeout"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": ["a"]}, "nodes: 1 given, a test needs 2"),
        ({"nodes": ["a", "b", "a"]}, "nodes: a given more than once"),
        ({"nodes": "abc"}, "nodes: 'abc' is not allowed"),
        ({"group_min": 0}, "group_min: 0 is not allowed"),
        ({"detection_probability": 0}, "detection_probability: 0 is not allowed"),
        ({"detection_probability": 1.2}, "detection_probability: 1.2 is not allowed"),
        ({"max_tests": 0}, "max_tests: 0 is not allowed"),
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(BisectError, match=says):
        Bisect(**{"nodes": names(4), **wrong})  # type: ignore[arg-type]


def test_confidence_is_a_probability_for_every_node_at_every_moment() -> None:
    chance = random.Random(2)
    bisect = Bisect(names(40))
    fails = flaky({"n7", "n33"}, chance, 0.8)
    while groups := bisect.next_round():
        for group in groups:
            bisect.report(group, fails(group))
        result = bisect.result
        assert list(result.confidence) == names(40)
        assert all(0 <= sure <= 1 for sure in result.confidence.values())
        assert partitioned(bisect, result)
        assert result.tests <= default_max_tests(40)
