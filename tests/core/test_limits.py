"""Limits beyond the plain budget: windows, lost GPU-hours, repeat offenders, expiry, soft exclusion."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ft.core.decide import decide
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.exclusions import exclude, expired, offenders, softened
from airflow_ft.core.faults import Diagnosis, FaultClass, Suspect
from airflow_ft.core.ledger import MAX_BLAMES, MAX_CHARGED_KEPT, Blame, Ledger, Run
from airflow_ft.core.policy import ExclusionSettings, FaultTolerancePolicy
from airflow_ft.core.situation import Situation

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
POOL = tuple(f"n{number}" for number in range(12))
HOUR = timedelta(hours=1)
BOTH = (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING)


def broken(*nodes: str, fault_class: FaultClass = FaultClass.HW_NODE, **more: Any) -> Diagnosis:
    suspects = tuple(Suspect(kind="node", name=node) for node in nodes)
    return Diagnosis(
        fault_class=fault_class, text="It broke.", signature=more.pop("signature", "it"), suspects=suspects, **more
    )


def ask(policy: FaultTolerancePolicy, diagnosis: Diagnosis, now: datetime = NOON, **more: Any) -> Decision:
    return decide(
        policy, Situation(diagnosis=diagnosis, **{"can": BOTH, "pool_nodes": POOL, "nodes_needed": 2, **more}), now
    )


# --- a budget in a time window -------------------------------------------------------------------------------------


@pytest.mark.row("P5")
def test_at_most_so_many_restarts_in_a_window_whatever_the_budget_has_left() -> None:
    policy = FaultTolerancePolicy.full(max_restarts=100, max_restarts_in_window=2, restart_window_seconds=6 * 3600)
    ledger, now = Ledger(), NOON
    for _ in range(2):
        decision = ask(policy, broken("n1"), now, ledger=ledger)
        assert decision.action is not Action.FAIL
        ledger, now = decision.ledger, now + HOUR
    stopped = ask(policy, broken("n1"), now, ledger=ledger)
    assert stopped.action is Action.FAIL
    assert "stopping, 2 restarts in 6 h, the limit is 2" in stopped.reason
    assert ask(policy, broken("n1"), NOON + 6 * HOUR, ledger=ledger).action is not Action.FAIL, "the first one is over"


def test_free_restarts_are_not_in_the_window_of_charged_ones() -> None:
    ledger = Ledger().charge("hang", NOON).charge("in_place", NOON).charge("disruption", NOON).charge("pod", NOON)
    assert ledger.restarts_within(NOON, 3600) == 0
    assert ledger.charge("restart", NOON).charge("unconditional", NOON).restarts_within(NOON, 3600) == 2


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, MAX_CHARGED_KEPT), st.integers(1, 10**6))
def test_the_times_that_are_kept_are_enough_for_every_limit(seconds: list[int], most: int, window: int) -> None:
    ledger = Ledger()
    times = [NOON + timedelta(seconds=second) for second in sorted(seconds)]
    for at in times:
        ledger = ledger.charge("restart", at)
    now = times[-1] if times else NOON
    really = sum((now - at).total_seconds() < window for at in times)
    assert (ledger.restarts_within(now, window) >= most) is (really >= most)


# --- lost GPU-hours ------------------------------------------------------------------------------------------------


@pytest.mark.row("P5")
def test_a_limit_on_lost_gpu_hours_stops_free_restarts_too() -> None:
    policy = FaultTolerancePolicy.full(max_lost_gpu_hours=16)
    lost = Run(lost_seconds=3600)
    first = ask(policy, broken("n1"), run=lost, gpus=8)
    assert first.action is Action.RESUBMIT_EXCLUDING and first.ledger.lost_gpu_hours == 8
    held = (Action.RESTART_IN_PLACE, *BOTH)
    second = ask(policy, broken(fault_class=FaultClass.UNKNOWN), run=lost, gpus=8, ledger=first.ledger, can=held)
    assert second.action is Action.FAIL
    assert "faults have cost 16.0 of 16 GPU-hours" in second.reason


def test_without_the_number_of_gpus_the_limit_can_not_be_kept_and_that_is_said() -> None:
    decision = ask(FaultTolerancePolicy.full(max_lost_gpu_hours=0.1), broken("n1"), run=Run(lost_seconds=9e9))
    assert decision.action is Action.RESUBMIT_EXCLUDING
    why = next(one.why for one in decision.considered if one.rule == "lost GPU-hours")
    assert why == "how many GPUs the job has isn't known"


# --- repeat offenders ----------------------------------------------------------------------------------------------


@pytest.mark.row("P5")
def test_a_node_that_was_suspected_twice_is_avoided_by_every_later_attempt() -> None:
    policy = FaultTolerancePolicy.full(max_restarts=20)
    once = ask(policy, broken("n1"))
    twice = ask(policy, broken("n1"), NOON + HOUR, ledger=once.ledger)
    later = ask(policy, broken(fault_class=FaultClass.UNKNOWN), NOON + 90 * 24 * HOUR, ledger=twice.ledger)
    assert later.action is Action.RESUBMIT and later.excluded_nodes == ("n1",), (
        "a class that excludes nobody, and no expiry"
    )
    assert "n1" not in ask(policy, broken(fault_class=FaultClass.UNKNOWN), ledger=once.ledger).excluded_nodes


def test_who_was_suspected_is_remembered_over_a_clear_and_budgets_are_not() -> None:
    ledger = Ledger(restarts=3, free_at=(NOON,)).blamed(["n1"], 0.9, NOON)
    fresh = ledger.of_next_segment(7)
    assert fresh == Ledger(highest_step=7, blames=ledger.blames)


def test_a_preemption_and_basic_mode_blame_nobody() -> None:
    assert ask(FaultTolerancePolicy.full(), broken("n1", disruption="drain")).ledger.blames == ()
    assert ask(FaultTolerancePolicy.basic(), broken("n1")).ledger.blames == ()


def test_the_blames_that_are_kept_are_bounded_and_offenders_stay_longest() -> None:
    ledger = Ledger().blamed(["bad"], 0.5, NOON).blamed(["bad"], 0.9, NOON)
    for number in range(100):
        ledger = ledger.blamed([f"n{number}"], 0.5, NOON + number * HOUR)
    assert len(ledger.blames) == MAX_BLAMES
    assert ledger.blames[0] == Blame(node="bad", at=NOON, times=2, confidence=0.9)
    assert ledger.blames[-1].node == "n99"
    for number in range(100):
        ledger = ledger.blamed([f"n{number}"], 0.5, NOON).blamed([f"n{number}"], 0.5, NOON)
    assert len(ledger.blames) == MAX_BLAMES


# --- expiry, soft, softening ---------------------------------------------------------------------------------------


@pytest.mark.row("P4")
def test_an_exclusion_ends_when_its_node_was_suspected_too_long_ago_and_that_is_said() -> None:
    policy = FaultTolerancePolicy.full(exclusion=ExclusionSettings(expiry_seconds=2 * 3600))
    first = ask(policy, broken("n1"))
    soon = ask(policy, broken("n2"), NOON + HOUR, ledger=first.ledger, excluded_nodes=first.excluded_nodes)
    assert soon.excluded_nodes == ("n1", "n2")
    late = ask(policy, broken("n2"), NOON + 2 * HOUR, ledger=first.ledger, excluded_nodes=first.excluded_nodes)
    assert late.excluded_nodes == ("n2",)
    assert late.reason.endswith("n1 may be used again: the exclusion has expired.")


def test_without_expiry_an_exclusion_stays() -> None:
    assert (
        expired(ExclusionSettings(expiry_seconds=None), ["n1"], Ledger().blamed(["n1"], 1, NOON), NOON + 9999 * HOUR)
        == ()
    )


@pytest.mark.row("P4")
@pytest.mark.story("EXC-01")
def test_who_is_over_the_cap_is_avoided_where_others_are_free() -> None:
    decision = ask(FaultTolerancePolicy.full(), broken("n1", "n2"), pool_nodes=("n1", "n2", "n3"))
    assert (decision.excluded_nodes, decision.soft_nodes) == (("n1",), ("n2",))
    assert "n2 wanted out, kept: pool too small." in decision.reason


@pytest.mark.row("P4")
def test_soft_exclusion_forbids_nothing_and_never_makes_a_retry_unschedulable() -> None:
    policy = FaultTolerancePolicy.full(max_restarts=20, exclusion=ExclusionSettings(kind="soft"))
    decision = ask(policy, broken("n1", "n2"), pool_nodes=("n1", "n2"))
    assert (decision.action, decision.excluded_nodes) == (Action.RESUBMIT_EXCLUDING, ())
    assert set(decision.soft_nodes) == {"n1", "n2"}
    assert decision.reason.startswith("Nodes n1, n2 are suspected; resubmitting rather without them.")
    later = ask(policy, broken(fault_class=FaultClass.UNKNOWN), ledger=decision.ledger, soft_nodes=decision.soft_nodes)
    assert set(later.soft_nodes) == {"n1", "n2"}


def test_an_absolute_cap_holds_beside_the_share() -> None:
    settings = ExclusionSettings(max_nodes=1)
    assert exclude(settings, ["n1", "n2"], [], POOL, 2).excluded == ("n1",)
    assert exclude(settings, ["n1", "n2"], [], [], 2).excluded == ("n1",), "a pool that can't be seen"


def test_the_least_sure_exclusion_is_softened_first_and_offenders_last() -> None:
    ledger = Ledger().blamed(["twice"], 0.3, NOON).blamed(["twice"], 0.3, NOON)
    ledger = ledger.blamed(["sure"], 0.9, NOON).blamed(["unsure"], 0.4, NOON)
    left, order = ["sure", "twice", "unsure", "unknown"], []
    while (node := softened(left, ledger)) is not None:
        order.append(node)
        left.remove(node)
    assert order == ["unknown", "unsure", "sure", "twice"]


def test_when_the_job_is_the_suspect_nobody_is_blamed_any_more() -> None:
    policy, ledger = FaultTolerancePolicy.full(max_restarts=20), Ledger()
    from airflow_ft.core.decide import past_fault

    faults: tuple[Any, ...] = ()
    for node in ("n1", "n2", "n3"):
        here = Situation(
            diagnosis=broken(node), ledger=ledger, faults=faults, can=BOTH, pool_nodes=POOL, nodes_needed=2
        )
        decision = decide(policy, here, NOON)
        ledger, faults = decision.ledger, (*faults, past_fault(here, decision))
    assert (decision.action, decision.ledger.blames, decision.excluded_nodes) == (Action.FAIL, (), ())
    assert offenders(policy.exclusion, decision.ledger) == ()


# --- what is recorded is enough ------------------------------------------------------------------------------------


@given(
    suspects=st.lists(st.sampled_from(POOL), unique=True, max_size=4),
    earlier=st.lists(st.sampled_from([*POOL, "gone"]), unique=True, max_size=4),
    pool=st.lists(st.sampled_from(POOL), unique=True),
    needed=st.integers(0, 12),
    kind=st.sampled_from(["hard", "soft"]),
)
def test_a_compact_situation_leads_to_the_same_decision(  # type: ignore[no-untyped-def]
    suspects, earlier, pool, needed, kind
) -> None:
    policy = FaultTolerancePolicy.full(exclusion=ExclusionSettings(kind=kind))
    whole = Situation(
        diagnosis=broken(*suspects),
        ledger=Ledger().blamed(["n3"], 0.5, NOON),
        can=BOTH,
        pool_nodes=tuple(pool),
        nodes_needed=needed,
        excluded_nodes=tuple(earlier),
    )
    assert decide(policy, whole.compact(), NOON) == decide(policy, whole, NOON)


# --- jitter --------------------------------------------------------------------------------------------------------


def test_jitter_spreads_chains_apart_and_gives_one_chain_the_same_delay_each_time() -> None:
    backoff = FaultTolerancePolicy().backoff
    delays = {backoff.delay(3, f"chain-{number}") for number in range(50)}
    assert len(delays) > 25
    assert all(120 <= delay <= 144 for delay in delays)
    assert backoff.delay(3, "chain-1") == backoff.delay(3, "chain-1")
    assert backoff.delay(3) == 120
    assert backoff.delay(0, "chain-1") == 0
