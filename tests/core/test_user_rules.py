"""The user's own rules: what matches, what must not, and what is done then (mission P3)."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.core.chain import PastFault
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, FaultClass, Suspect
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import Situation
from airflow_ft.core.user_rules import RuleHit, RuleMatcher, UserRule

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
POOL = tuple(f"n{number}" for number in range(8))
EVERYTHING = (Action.RESTART_IN_PLACE, Action.RESUBMIT, Action.RESUBMIT_EXCLUDING, Action.BISECT)


def hits(pattern: str, *lines: str) -> list[str]:
    found = RuleMatcher([UserRule(match=pattern, action="stop")]).hits((line, "log", 1, "n1") for line in lines)
    return [hit.text for hit in found]


# --- what matches --------------------------------------------------------------------------------------------------


@pytest.mark.row("P3")
def test_the_first_line_that_matches_is_kept_with_its_place() -> None:
    matcher = RuleMatcher(
        [UserRule(match="never", action="stop"), UserRule(match="shard .* is corrupt", action="stop")]
    )
    lines = [("all well", "a", 1, "n1"), ("shard 7 is corrupt", "a", 2, "n1"), ("shard 8 is corrupt", "b", 3, "n2")]
    (hit,) = matcher.hits(lines)
    assert hit == RuleHit(rule=1, text="shard 7 is corrupt", source="a", line=2, node="n1")


def test_a_group_names_the_node() -> None:
    matcher = RuleMatcher([UserRule(match=r"retrained on (?P<node>\S+)", action="exclude_node")])
    (hit,) = matcher.hits([("PCIe link retrained on n5 (x8)", "kernel", 4, "n1")])
    assert hit.node == "n5"


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    ("pattern", "echo"),
    [
        ("Xid.*79", "  - match: Xid.*79"),
        ("Xid.*79", "policy: {'rules': [{'match': 'Xid.*79', 'action': 'exclude_node'}]}"),
        ("Xid.*79", "UserRule(match=\"Xid.*79\", action='stop')"),
        ("Xid.*79", "env FT_RULE=Xid.*79 python train.py"),
        (r"rank \d+ diverged|d\+ diverged", json.dumps({"match": r"rank \d+ diverged|d\+ diverged"})),
        (r"rank \d+ diverged|d\+ diverged", json.dumps(json.dumps({"match": r"rank \d+ diverged|d\+ diverged"}))),
        ("loader gave up", "  - match: loader gave up"),
        ("loader gave up", '{"match": "loader gave up", "action": "stop"}'),
        ("loader gave up", "UserRule(match='loader gave up')"),
    ],
)
def test_a_pattern_never_matches_the_echo_of_its_own_configuration(pattern: str, echo: str) -> None:
    assert hits(pattern, echo) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("loader gave up", "E 12:00 loader gave up after 3 tries"),
        ("torch.cuda.OutOfMemoryError", "torch.cuda.OutOfMemoryError: CUDA out of memory"),
        ("Xid.*79", "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus"),
        ("no match", "regex has no match: giving up"),
    ],
)
def test_a_real_line_matches_also_where_it_reads_like_the_pattern(pattern: str, line: str) -> None:
    assert hits(pattern, line) == [line]


def test_a_pattern_that_would_hang_other_engines_is_harmless() -> None:
    assert hits("(a+)+b", "a" * 4000) == []


def test_a_long_line_is_kept_around_its_match() -> None:
    (text,) = hits("needle", "x" * 3000 + " needle " + "y" * 3000)
    assert "needle" in text and len(text) <= 300


def test_no_rules_match_nothing() -> None:
    assert RuleMatcher([]).hits([("anything", "log", 1, None)]) == ()


# --- what is done --------------------------------------------------------------------------------------------------


def ask(rules: list[dict[str, Any]], *hit: RuleHit, suspects: tuple[str, ...] = (), **more: Any) -> Decision:
    diagnosis = Diagnosis(
        fault_class=more.pop("fault_class", FaultClass.APP_ERROR),
        text="It broke.",
        signature="it",
        suspects=tuple(Suspect(kind="node", name=node) for node in suspects),
    )
    policy = FaultTolerancePolicy(**{"rules": rules, "max_restarts": 10, **more.pop("policy", {})})
    here = {"can": EVERYTHING, "pool_nodes": POOL, "nodes_needed": 2, "rule_hits": hit, **more}
    return decide(policy, Situation(diagnosis=diagnosis, **here), NOON)


SEEN = RuleHit(rule=0, text="shard 7 is corrupt", source="n1/log", line=3, node="n3")


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    ("action", "done", "charged", "excluded"),
    [
        ("stop", Action.FAIL, "", ()),
        ("resubmit", Action.RESUBMIT, "restart", ()),
        ("exclude_node", Action.RESUBMIT_EXCLUDING, "restart", ("n3",)),
        ("restart_in_place", Action.RESTART_IN_PLACE, "in_place", ()),
        ("bisect", Action.BISECT, "", ()),
        ("ask", Action.ASK, "", ()),
    ],
)
def test_each_action_of_a_rule(action: str, done: Action, charged: str, excluded: tuple[str, ...]) -> None:
    decision = ask([{"match": "x", "action": action, "name": "my rule"}], SEEN)
    assert (decision.action, decision.charged, decision.excluded_nodes) == (done, charged, excluded)
    assert decision.reason.startswith('Your my rule was set off by "n1/log: shard 7 is corrupt"; ')
    assert decision.rule == "my rule"


def test_rules_hold_before_the_ladder_in_their_order_and_only_when_set_off() -> None:
    rules = [{"match": "x", "action": "resubmit"}, {"match": "y", "action": "bisect"}]
    assert ask(rules).action is Action.FAIL
    assert ask(rules, SEEN.but(rule=1)).action is Action.BISECT
    assert ask(rules, SEEN, SEEN.but(rule=1)).action is Action.RESUBMIT


def test_rules_hold_in_basic_mode_and_not_when_it_is_off() -> None:
    stop = [{"match": "x", "action": "stop"}]
    assert ask(stop, SEEN, policy={"mode": "basic"}).reason.startswith("Your rule 1 was set off")
    assert ask(stop, SEEN, policy={"mode": "off"}).reason.startswith("Fault tolerance is off")


def test_a_rule_is_charged_and_stops_with_the_budget() -> None:
    again = [{"match": "x", "action": "resubmit"}]
    assert ask(again, SEEN, ledger=Ledger(restarts=9)).ledger.restarts == 10
    stopped = ask(again, SEEN, ledger=Ledger(restarts=10))
    assert (stopped.action, stopped.ledger.restarts) == (Action.FAIL, 10)


def test_after_so_many_times_comes_what_then_says() -> None:
    rule = {"match": "x", "action": "exclude_node", "times": 2, "then": "stop", "name": "shards"}
    taken: tuple[PastFault, ...] = ()
    done = []
    for _ in range(3):
        decision = ask([rule], SEEN, faults=taken)
        done.append(decision.action)
        taken = (*taken, past_fault(Situation(diagnosis=Diagnosis(fault_class=FaultClass.UNKNOWN, text="")), decision))
    assert done == [Action.RESUBMIT_EXCLUDING, Action.RESUBMIT_EXCLUDING, Action.FAIL]


def test_what_is_not_possible_falls_to_then_and_to_the_ladder_and_is_said() -> None:
    rule = {"match": "x", "action": "exclude_node", "then": "resubmit"}
    assert ask([rule], SEEN.but(node=None)).action is Action.RESUBMIT
    decision = ask([{"match": "x", "action": "exclude_node"}], SEEN.but(node=None))
    assert decision.action is Action.FAIL, "the ladder of APP_ERROR"
    why = next(one.why for one in decision.considered if one.rule == "your rules")
    assert why == "rule 1: the line names no node, and there are no suspects; the ladder follows"


def test_a_rule_may_exclude_whom_the_diagnosis_suspects() -> None:
    decision = ask([{"match": "x", "action": "exclude_node"}], SEEN.but(node=None), suspects=("n6",))
    assert decision.excluded_nodes == ("n6",)


def test_a_rule_never_excludes_more_than_the_pool_can_spare() -> None:
    decision = ask([{"match": "x", "action": "exclude_node"}], SEEN, pool_nodes=("n3", "n4"))
    assert (decision.action, decision.excluded_nodes) == (Action.FAIL, ())


def test_free_restarts_by_a_rule_have_the_limits_of_all_free_restarts() -> None:
    rule = [{"match": "x", "action": "restart_in_place", "then": "resubmit"}]
    decision = ask(rule, SEEN, ledger=Ledger(unprogressed=3))
    assert (decision.action, decision.charged) == (Action.RESUBMIT, "restart")
