"""Each rule of DESIGN §4 as values: a situation goes in, a decision comes out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.core.chain import PastFault
from airflow_ft.core.decide import RULES, Situation, Wants, decide, past_fault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Retry, Suspect, Trust
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
FULL = FaultTolerancePolicy.full()
TEN = FaultTolerancePolicy.full(max_restarts=10)
POOL = tuple(f"n{number}" for number in range(8))
HELD = (Action.RESTART_IN_PLACE, Action.RESUBMIT, Action.RESUBMIT_EXCLUDING)
BISECTING = (*HELD, Action.BISECT)
LASTING = Run(last_step=10**6, new_checkpoint=10**6)


def broken(fault_class: FaultClass, *nodes: str, signature: str | None = "it", **more: Any) -> Diagnosis:
    suspects = tuple(Suspect(kind="node", name=node) for node in nodes)
    return Diagnosis(
        fault_class=fault_class, **{"text": "It broke.", "signature": signature, "suspects": suspects, **more}
    )


def situation(diagnosis: Diagnosis, **more: Any) -> Situation:
    return Situation(diagnosis=diagnosis, **{"pool_nodes": POOL, "nodes_needed": 2, "can": HELD, **more})


def ask(policy: FaultTolerancePolicy, diagnosis: Diagnosis, now: datetime = NOON, **more: Any) -> Decision:
    return decide(policy, situation(diagnosis, **more), now)


class Chain:
    """Plays faults one after the other, and keeps what a chain keeps."""

    def __init__(self, policy: FaultTolerancePolicy, now: datetime = NOON, pause: timedelta = timedelta(hours=7)):
        self.policy, self.now, self.pause = policy, now, pause
        self.ledger = Ledger()
        self.faults: tuple[PastFault, ...] = ()
        self.excluded: tuple[str, ...] = ()

    def fault(self, diagnosis: Diagnosis, **more: Any) -> Decision:
        self.now += self.pause
        kept = {"ledger": self.ledger, "faults": self.faults, "excluded_nodes": self.excluded}
        here = situation(diagnosis, **{**kept, **more})
        decision = decide(self.policy, here, self.now)
        self.faults = (*self.faults, past_fault(here, decision))
        self.ledger, self.excluded = decision.ledger, decision.excluded_nodes
        return decision

    @property
    def left(self) -> int:
        return self.policy.max_restarts - self.ledger.restarts

    def play(self, *diagnoses: Diagnosis, **more: Any) -> list[str]:
        return [self.fault(diagnosis, **more).action.value for diagnosis in diagnoses]


def why(decision: Decision, rule: str) -> str:
    return next(one.why for one in decision.considered if one.rule == rule)


# --- the worked examples -------------------------------------------------------------------------------------------


@pytest.mark.row("M3")
def test_three_unconditional_restarts_leave_seven_of_ten_and_the_rule_no_longer_fires() -> None:
    chain = Chain(FaultTolerancePolicy.full(max_restarts=10, unconditional=True))
    for left in (9, 8, 7):
        decision = chain.fault(broken(FaultClass.APP_ERROR))
        assert (decision.action, decision.charged, chain.left) == (Action.RESUBMIT, "unconditional", left)
    decision = chain.fault(broken(FaultClass.APP_ERROR))
    assert (decision.action, decision.charged, chain.left) == (Action.FAIL, "", 7)
    assert why(decision, "unconditional") == "3 consecutive unconditional restarts without lasting progress"


@pytest.mark.row("M4")
@pytest.mark.parametrize(
    ("can", "action"), [(HELD, Action.RESTART_IN_PLACE), ((Action.RESUBMIT,), Action.RESUBMIT)], ids=["agents", "none"]
)
@pytest.mark.parametrize("step", [None, 500])
@pytest.mark.parametrize("fault_class", [FaultClass.COMM_HANG, FaultClass.UNKNOWN])
def test_three_hangs_leave_ten_of_ten_and_the_rule_no_longer_fires(
    can: tuple[Action, ...], action: Action, step: int | None, fault_class: FaultClass
) -> None:
    chain = Chain(TEN)
    for streak in (1, 2, 3):
        decision = chain.fault(broken(fault_class), hang=True, can=can, step=step, run=Run(last_step=step))
        assert (decision.action, decision.charged, chain.left) == (action, "hang", 10)
        assert decision.ledger.hang_streak == streak
    decision = chain.fault(broken(fault_class), hang=True, can=can, step=step, run=Run(last_step=step))
    assert (decision.charged, chain.left) == ("restart", 9)


@pytest.mark.row("M3")
def test_only_progress_that_lasts_lets_the_unconditional_rule_fire_again() -> None:
    chain = Chain(FaultTolerancePolicy.full(max_restarts=10, unconditional=True))
    chain.play(*[broken(FaultClass.APP_ERROR)] * 4)
    assert chain.fault(broken(FaultClass.APP_ERROR), run=LASTING).charged == "unconditional"
    assert chain.left == 6


@pytest.mark.row("M3")
def test_a_restart_that_another_rule_makes_is_never_unconditional() -> None:
    policy = FaultTolerancePolicy.full(unconditional=True)
    assert ask(policy, broken(FaultClass.UNKNOWN), can=()).charged == "restart"
    assert ask(policy, broken(FaultClass.UNKNOWN)).charged == "in_place"
    assert ask(policy, broken(FaultClass.UNKNOWN, disruption="drain")).charged == "disruption"


# --- off, disruptions, basic ---------------------------------------------------------------------------------------


@pytest.mark.row("M2")
@pytest.mark.parametrize(
    "policy", [FaultTolerancePolicy.off(), FaultTolerancePolicy(max_restarts=0, unconditional=True)]
)
@pytest.mark.parametrize("diagnosis", [broken(FaultClass.UNKNOWN), broken(FaultClass.HW_NODE, disruption="drain")])
def test_off_restarts_nothing_not_even_in_place(policy: FaultTolerancePolicy, diagnosis: Diagnosis) -> None:
    decision = ask(policy, diagnosis)
    assert (decision.action, decision.charged) == (Action.FAIL, "")
    assert decision.reason == "Fault tolerance is off; stopping: It broke."


@pytest.mark.story("EXC-04")
def test_disruptions_are_free_back_off_and_become_worth_a_message_after_five_without_a_step() -> None:
    chain = Chain(FULL)
    decisions = [chain.fault(broken(FaultClass.UNKNOWN, disruption="spot preemption")) for _ in range(6)]
    assert {(one.action, one.charged) for one in decisions} == {(Action.RESUBMIT, "disruption")}
    assert [one.delay for one in decisions] == [0, 30, 60, 120, 240, 480]
    assert chain.left == 3
    assert chain.ledger.free_at == ()
    assert decisions[3].reason == "A disruption, nobody's fault (spot preemption); resubmitting. Not charged."
    assert decisions[4].reason.endswith("Not charged, but 5 disruptions without a new step.")


def test_disruptions_count_in_no_other_rule() -> None:
    chain = Chain(FULL)
    chain.play(*[broken(FaultClass.UNKNOWN, disruption="drain")] * 5, step=7, can=())
    assert chain.play(*[broken(FaultClass.UNKNOWN)] * 3, can=()) == ["RESUBMIT", "RESUBMIT", "FAIL"]


@pytest.mark.row("S6")
@pytest.mark.story("CLS-07")
def test_basic_mode_resubmits_whatever_it_is_until_the_budget_is_used_up_and_warns_at_the_second_identical_cause() -> (
    None
):
    chain = Chain(FaultTolerancePolicy.basic())
    missing = broken(FaultClass.APP_ERROR, text="ModuleNotFoundError: no module named 'x'", at_start=True)
    decisions = [chain.fault(missing, step=0, run=Run(last_step=0)) for _ in range(4)]
    assert [one.action.value for one in decisions] == ["RESUBMIT"] * 3 + ["FAIL"]
    assert ["may not help" in one.reason for one in decisions] == [False, True, True, False]
    assert "budget used up: 3 of 3 restarts" in decisions[-1].reason


@pytest.mark.row("S10")
@pytest.mark.story("CLS-07")
@pytest.mark.parametrize("policy", [FULL, FaultTolerancePolicy.advanced()])
@pytest.mark.parametrize("fault_class", [FaultClass.APP_ERROR, FaultClass.ENV_ERROR, FaultClass.OOM_GPU])
def test_a_fault_that_running_again_does_not_cure_fails_at_once_with_the_advice(
    policy: FaultTolerancePolicy, fault_class: FaultClass
) -> None:
    decision = ask(policy, broken(fault_class, text="No module named 'x'.", advice="Install x.", at_start=True))
    assert (decision.action, decision.ledger.restarts) == (Action.FAIL, 0)
    assert decision.reason.endswith("stopping: No module named 'x'. Install x.")


# --- the ladder, class by class ------------------------------------------------------------------------------------

HW, NET, HANG = FaultClass.HW_NODE, FaultClass.NET_FABRIC, FaultClass.COMM_HANG
EXCLUDING, IN_PLACE = "RESUBMIT_EXCLUDING", "RESTART_IN_PLACE"
USEFUL = {"retry": Retry.USEFUL}

LADDERS: dict[str, tuple[list[Diagnosis], dict[str, Any], list[str]]] = {
    "hardware with a suspect": ([broken(HW, "n2")], {}, [EXCLUDING]),
    "hardware recurs, no bisect": ([broken(HW, "n2"), broken(HW, "n3")], {}, [EXCLUDING, EXCLUDING]),
    "hardware without suspects, no bisect": ([broken(HW)] * 4, {}, ["RESUBMIT"] * 3 + ["FAIL"]),
    "hardware without suspects": ([broken(HW)], {"can": BISECTING}, ["BISECT"]),
    "hardware recurs": (
        [broken(HW, "n2"), broken(HW, "n3"), broken(HW, "n4", signature="bisect"), broken(HW, "n5", signature="z")],
        {"can": BISECTING},
        [EXCLUDING, "BISECT", EXCLUDING, "FAIL"],
    ),
    "hardware, bisect inconclusive": ([broken(HW)] * 3, {"can": BISECTING}, ["BISECT", "RESUBMIT", "FAIL"]),
    "hardware, nothing can be excluded": ([broken(HW, "n2")], {"can": (Action.RESUBMIT, Action.BISECT)}, ["RESUBMIT"]),
    "network": ([broken(NET)] * 3, {}, [IN_PLACE, "RESUBMIT", "RESUBMIT"]),
    "network, then bisect": ([broken(NET)] * 3, {"can": BISECTING}, [IN_PLACE, "RESUBMIT", "BISECT"]),
    "network, a node seen twice": (
        [broken(NET, "n1"), broken(NET, "n2"), broken(NET, "n1", "n5")],
        {},
        [IN_PLACE, "RESUBMIT", EXCLUDING],
    ),
    "hang, then the rank's node": ([broken(HANG, "n1")] * 4, {"hang": True}, [IN_PLACE] * 3 + [EXCLUDING]),
    "hang at the same place twice": (
        [broken(HANG, "n1")] * 2,
        {"hang": True, "step": 7, "run": Run(last_step=7)},
        [IN_PLACE, EXCLUDING],
    ),
    "hang, then bisect": ([broken(HANG)] * 4, {"hang": True, "can": BISECTING}, [IN_PLACE] * 3 + ["BISECT"]),
    "a watchdog ended a hang": ([broken(HANG)] * 4, {}, [IN_PLACE] * 3 + ["RESUBMIT"]),
    "a watchdog ended a hang, no agents": ([broken(HANG, "n1")] * 4, {"can": HELD[1:]}, ["RESUBMIT"] * 3 + ["FAIL"]),
    "gpu memory held by others": ([broken(FaultClass.OOM_GPU, "n1", **USEFUL)] * 2, {}, [EXCLUDING, "RESUBMIT"]),
    "environment, transient": ([broken(FaultClass.ENV_ERROR, **USEFUL)] * 4, {}, ["RESUBMIT"] * 3 + ["FAIL"]),
    "unknown": ([broken(FaultClass.UNKNOWN)] * 6, {}, [IN_PLACE] * 3 + ["RESUBMIT", "RESUBMIT", "FAIL"]),
    "unknown, nodes not held": ([broken(FaultClass.UNKNOWN)] * 3, {"can": ()}, ["RESUBMIT", "RESUBMIT", "FAIL"]),
}


@pytest.mark.row("S4")
@pytest.mark.row("M13")
@pytest.mark.parametrize(("diagnoses", "more", "actions"), LADDERS.values(), ids=list(LADDERS))
def test_ladder(diagnoses: list[Diagnosis], more: dict[str, Any], actions: list[str]) -> None:
    assert Chain(FULL).play(*diagnoses, **more) == actions


@pytest.mark.story("CLS-06")
def test_host_memory_running_out_twice_in_a_segment_stops_with_advice_and_is_never_free() -> None:
    chain = Chain(TEN)
    out = broken(FaultClass.OOM_HOST, advice="Give the job more memory.")
    assert chain.fault(out).charged == "restart"
    decision = chain.fault(out, run=LASTING)  # also after weeks of progress
    assert decision.action is Action.FAIL
    assert "Give the job more memory." in decision.reason
    assert (chain.left, chain.ledger.free_at, chain.ledger.unprogressed) == (9, (), 0)


@pytest.mark.row("S4")
def test_a_rung_that_is_not_possible_says_so() -> None:
    decision = ask(FULL, broken(HANG), can=())
    assert why(decision, "COMM_HANG 1: RESTART_IN_PLACE") == "no agent holds the nodes, or the backend can't"
    decision = ask(FULL, broken(HW), can=())
    assert why(decision, "HW_NODE 1: RESUBMIT_EXCLUDING") == "no suspects"
    assert why(decision, "HW_NODE 2: BISECT") == "not available"


def test_a_class_begins_its_ladder_anew_after_progress_that_lasts() -> None:
    chain = Chain(TEN)
    assert chain.play(*[broken(NET)] * 2) == [IN_PLACE, "RESUBMIT"]
    assert chain.play(broken(NET), run=LASTING) == [IN_PLACE]
    assert chain.play(broken(NET)) == ["RESUBMIT"]


def test_an_overridden_ladder_is_climbed() -> None:
    policy = FaultTolerancePolicy(ladder={"APP_ERROR": [{"action": "RESUBMIT", "times": 1}]})
    assert Chain(policy).play(*[broken(FaultClass.APP_ERROR)] * 2) == ["RESUBMIT", "FAIL"]
    asking = FaultTolerancePolicy(ladder={"APP_ERROR": ["ASK", "RESUBMIT"]})
    assert Chain(asking).play(broken(FaultClass.APP_ERROR)) == ["RESUBMIT"]
    assert Chain(asking).play(broken(FaultClass.APP_ERROR), can=(Action.ASK,)) == ["ASK"]


def test_a_bisect_never_follows_a_bisect() -> None:
    policy = FaultTolerancePolicy(ladder={"HW_NODE": ["BISECT"]})
    assert Chain(policy).play(*[broken(HW)] * 2, can=BISECTING) == ["BISECT", "FAIL"]


def test_the_last_restart_is_kept_for_after_the_bisect_when_suspects_are_unknown() -> None:
    spent = Ledger(restarts=2)
    before = (PastFault(cause=("NET_FABRIC", "it"), action=IN_PLACE, charged="in_place"),)
    decision = ask(FULL, broken(NET), can=BISECTING, ledger=spent, faults=before)
    assert (decision.action, decision.charged) == (Action.BISECT, "")
    assert ask(FULL, broken(NET), ledger=spent, faults=before).action is Action.RESUBMIT


def test_no_bisect_when_no_restart_is_left_after_it() -> None:
    decision = ask(FULL, broken(HW), can=BISECTING, ledger=Ledger(restarts=3))
    assert decision.action is Action.FAIL
    assert "budget used up: 3 of 3 restarts" in decision.reason


# --- escalation and limits -----------------------------------------------------------------------------------------


@pytest.mark.row("M1")
def test_escalation_goes_from_process_over_pod_to_job() -> None:
    chain = Chain(FaultTolerancePolicy.full(pod_restarts=2))
    decisions = [chain.fault(broken(FaultClass.UNKNOWN), replaces_pods=True) for _ in range(6)]
    assert [one.level for one in decisions] == ["process"] * 3 + ["pod"] * 2 + ["job"]
    assert [one.charged for one in decisions] == ["in_place"] * 3 + ["pod"] * 2 + ["restart"]


def test_a_restart_in_place_leads_to_the_next_generation() -> None:
    assert ask(FULL, broken(FaultClass.UNKNOWN), generation=4).generation == 5
    assert ask(FULL, broken(FaultClass.UNKNOWN), generation=4, can=()).generation == 0


@pytest.mark.row("M4")
def test_restarts_in_place_and_hang_restarts_share_one_count_of_three() -> None:
    chain = Chain(TEN)
    crash, hang = broken(FaultClass.UNKNOWN), broken(HANG)
    assert [chain.fault(crash).charged, chain.fault(hang, hang=True).charged] == ["in_place", "hang"]
    assert [chain.fault(crash).charged, chain.fault(hang, hang=True).charged] == ["in_place", "restart"]
    assert chain.fault(crash).charged == "restart"


@pytest.mark.row("P1")
def test_one_new_step_and_a_crash_for_ever_comes_to_an_end() -> None:
    chain = Chain(TEN, pause=timedelta(minutes=1))
    actions = [chain.fault(broken(FaultClass.UNKNOWN), run=Run(last_step=step), step=step) for step in range(1, 9)]
    assert [one.action.value for one in actions].count(IN_PLACE) == 3
    assert actions[-1].action is Action.FAIL


@pytest.mark.row("P1")
@pytest.mark.parametrize(("healthy", "in_place"), [(0.0, 3), (3600.0, 6)])
def test_unknown_progress_resets_nothing_but_an_hour_of_healthy_running_stands_in_for_it(
    healthy: float, in_place: int
) -> None:
    chain = Chain(TEN)
    assert chain.play(*[broken(FaultClass.UNKNOWN)] * 6, run=Run(healthy_seconds=healthy)).count(IN_PLACE) == in_place


def test_ten_free_restarts_in_six_hours_are_the_limit_whatever_progress_they_make() -> None:
    chain = Chain(TEN, pause=timedelta(minutes=20))
    decisions = []
    for number in range(1, 13):
        saved = Run(last_step=number * 100, new_checkpoint=number * 100)
        decisions.append(chain.fault(broken(FaultClass.UNKNOWN), run=saved, step=number * 100))
    assert [one.charged for one in decisions] == ["in_place"] * 10 + ["restart"] * 2
    assert why(decisions[-1], "UNKNOWN 1: RESTART_IN_PLACE") == "10 free restarts in 6 h"
    chain.now += timedelta(hours=6)
    assert chain.fault(broken(FaultClass.UNKNOWN), run=Run(last_step=9999, new_checkpoint=9999)).charged == "in_place"


@pytest.mark.story("PRG-05")
def test_restarts_that_others_made_count_for_the_limit_in_place_and_cost_nothing() -> None:
    decision = ask(FULL, broken(FaultClass.UNKNOWN), foreign_restarts=3)
    assert (decision.action, decision.charged) == (Action.RESUBMIT, "restart")
    assert why(decision, "UNKNOWN 1: RESTART_IN_PLACE") == "3 restarts without lasting progress, 3 of them by others"
    assert decision.ledger.unprogressed == 0


@pytest.mark.row("S7")
def test_max_restarts_is_the_job_level_budget_only() -> None:
    used_up = Ledger(restarts=3)
    assert ask(FULL, broken(FaultClass.UNKNOWN), ledger=used_up).action is Action.RESTART_IN_PLACE
    assert ask(FULL, broken(HANG), ledger=used_up, hang=True).action is Action.RESTART_IN_PLACE
    assert ask(FULL, broken(HW, disruption="drain"), ledger=used_up).action is Action.RESUBMIT
    decision = ask(FULL, broken(HW, "n2"), ledger=used_up)
    assert (decision.action, decision.ledger.restarts) == (Action.FAIL, 3)
    assert decision.reason == (
        "A node's hardware failed (n2 suspected); stopping, budget used up: 3 of 3 restarts. The last fault: It broke."
    )


def test_a_budget_that_was_lowered_below_what_was_spent_is_used_up() -> None:
    assert ask(FaultTolerancePolicy(max_restarts=1), broken(HW, "n2"), ledger=Ledger(restarts=3)).action is Action.FAIL


@pytest.mark.row("S6")
def test_without_hang_detection_nothing_is_charged_as_a_hang() -> None:
    assert ask(FaultTolerancePolicy.advanced(), broken(HANG), hang=True).charged == "in_place"


def test_a_hang_with_a_cause_follows_the_ladder_of_the_cause() -> None:
    decision = ask(FULL, broken(HW, "n2"), hang=True)
    assert (decision.action, decision.charged) == (Action.RESUBMIT_EXCLUDING, "restart")


# --- deterministic faults, and the job as the suspect --------------------------------------------------------------

AT_7 = PastFault(cause=("UNKNOWN", "it"), step=7, action="RESUBMIT", charged="restart", gained=True)


@pytest.mark.parametrize(
    ("past", "more", "stops"),
    [
        ((AT_7,), {}, True),
        ((AT_7, AT_7.but(cause=("NET_FABRIC", "x"), gained=False)), {}, True),  # something else in between
        ((), {}, False),
        ((AT_7.but(step=8),), {}, False),
        ((AT_7.but(cause=("UNKNOWN", "other")),), {}, False),
        ((AT_7,), {"step": None}, False),  # an unknown step proves nothing
        ((AT_7,), {"run": Run()}, False),  # unknown progress neither
        ((AT_7,), {"run": Run(last_step=8)}, False),  # a step was gained
        ((AT_7, AT_7.but(step=9, gained=True)), {"ledger": Ledger(highest_step=9)}, False),  # it once went past it
        ((AT_7, AT_7.but(step=9, gained=None)), {"ledger": Ledger(highest_step=9)}, False),  # or it may have
        ((AT_7.but(charged="disruption"),), {}, False),
    ],
)
def test_the_same_cause_at_the_same_step_twice_with_no_step_gained_stops(
    past: tuple[PastFault, ...], more: dict[str, Any], stops: bool
) -> None:
    at: dict[str, Any] = {"step": 7, "run": Run(last_step=7), "ledger": Ledger(highest_step=7), "faults": past, **more}
    decision = ask(FULL, broken(FaultClass.UNKNOWN), **at)
    assert (decision.action is Action.FAIL) is stops
    assert ("deterministic" in decision.reason) is stops
    assert ask(FaultTolerancePolicy.basic(), broken(FaultClass.UNKNOWN), **at).action is Action.RESUBMIT


def test_unconditional_restarts_are_made_even_for_a_deterministic_fault() -> None:
    at: dict[str, Any] = {"step": 7, "run": Run(last_step=7), "ledger": Ledger(highest_step=7), "faults": (AT_7,)}
    decision = ask(FaultTolerancePolicy.full(unconditional=True), broken(FaultClass.UNKNOWN), **at)
    assert (decision.action, decision.charged) == (Action.RESUBMIT, "unconditional")


@pytest.mark.parametrize("unconditional", [False, True])
def test_three_nodes_blamed_for_one_cause_make_the_job_the_suspect_and_lift_its_exclusions(unconditional: bool) -> None:
    chain = Chain(FaultTolerancePolicy.full(max_restarts=10, unconditional=unconditional))
    assert chain.play(broken(HW, "n1"), broken(HW, "n2")) == [EXCLUDING] * 2
    assert chain.excluded == ("n1", "n2")
    decision = chain.fault(broken(HW, "n3"))
    assert (decision.action, decision.excluded_nodes) == (Action.FAIL, ())
    assert "(n1, n2, n3)" in decision.reason
    assert "the job is the suspect" in decision.reason


def test_nodes_blamed_for_different_causes_or_with_progress_in_between_or_at_once_do_not_blame_the_job() -> None:
    causes = [broken(HW, f"n{number}", signature=f"xid{number}") for number in range(3)]
    assert Chain(TEN).play(*causes) == [EXCLUDING] * 3
    weeks = Chain(TEN)
    for number in range(5):
        run = Run(last_step=number * 1000, new_checkpoint=number * 1000)
        assert weeks.fault(broken(HW, f"n{number}"), run=run).action is Action.RESUBMIT_EXCLUDING
    assert Chain(TEN).play(broken(HW, "n1", "n2", "n3")) == [EXCLUDING], "a rack is one incident"


def lost(*nodes: str) -> Diagnosis:
    return broken(HW, *nodes, root=Evidence(source="node", trust=Trust.PLATFORM))


def test_losses_that_the_platform_confirms_one_after_the_other_are_one_incident_and_one_charge() -> None:
    chain = Chain(FULL, pause=timedelta(minutes=4))
    decisions = [chain.fault(lost(node)) for node in ("n1", "n2", "n3")]
    assert [one.charged for one in decisions] == ["restart", "", ""]
    assert {one.action for one in decisions} == {Action.RESUBMIT_EXCLUDING}
    assert chain.excluded == ("n1", "n2", "n3")
    assert chain.fault(lost("n4")).charged == "", "12 minutes after the charge"
    assert chain.fault(lost("n5")).charged == "restart", "16 minutes after the charge"


@pytest.mark.parametrize(
    "second",
    [
        {"diagnosis": broken(HW, "n2")},  # the job's own word
        {"diagnosis": lost("n2"), "run": Run(last_step=3)},  # after a step
    ],
)
def test_other_losses_are_charged(second: dict[str, Any]) -> None:
    chain = Chain(FULL, pause=timedelta(minutes=4))
    chain.fault(lost("n1"))
    assert chain.fault(**second).charged == "restart"


# --- exclusions, delays, words -------------------------------------------------------------------------------------


@pytest.mark.story("LIF-08")
def test_the_next_attempt_avoids_the_suspect_and_all_that_were_avoided_before() -> None:
    decision = ask(FULL, broken(HW, "n2"), excluded_nodes=("n5", "n1"))
    assert decision.excluded_nodes == ("n5", "n1", "n2")
    assert decision.reason == "Node n2 is suspected; resubmitting without it. 1 of 3 restarts used."
    assert ask(FULL, broken(FaultClass.UNKNOWN), excluded_nodes=("n5",), can=()).excluded_nodes == ("n5",)
    assert ask(FULL, broken(FaultClass.UNKNOWN), excluded_nodes=("n5",)).excluded_nodes == ("n5",)


@pytest.mark.story("EXC-01")
@pytest.mark.row("P4")
def test_who_is_wanted_out_but_kept_is_said() -> None:
    decision = ask(FULL, broken(HW, "n1", "n2"), pool_nodes=("n1", "n2", "n3"))
    assert (decision.action, decision.excluded_nodes) == (Action.RESUBMIT_EXCLUDING, ("n1",))
    assert decision.reason == (
        "Nodes n1, n2 are suspected; resubmitting without n1. 1 of 3 restarts used. "
        "n2 wanted out, kept: pool too small."
    )


@pytest.mark.story("EXC-01")
def test_a_pool_that_can_spare_nobody_makes_a_plain_resubmission_that_says_so() -> None:
    decision = ask(FULL, broken(HW, "n2"), pool_nodes=("n1", "n2"))
    assert (decision.action, decision.excluded_nodes) == (Action.RESUBMIT, ())
    assert why(decision, "HW_NODE 1: RESUBMIT_EXCLUDING") == "the pool is too small to spare a suspect"
    assert decision.reason.endswith("n2 wanted out, kept: pool too small.")


def test_the_first_resubmission_waits_for_nothing_and_repeated_ones_back_off() -> None:
    chain = Chain(TEN)
    assert [chain.fault(broken(HW)).delay for _ in range(4)] == [0, 30, 60, 120]
    assert chain.fault(broken(HW), run=LASTING).delay == 0
    assert ask(FULL, broken(FaultClass.UNKNOWN)).delay == 0


def test_a_transient_fault_of_the_environment_waits_from_the_first_time_on() -> None:
    chain = Chain(TEN)
    assert [chain.fault(broken(FaultClass.ENV_ERROR, **USEFUL)).delay for _ in range(3)] == [30, 60, 120]


REASONS = {
    "Training hangs; restarting in place. Hang restart 1 of 3 in a row, not charged.": (HANG, {"hang": True}),
    "Training died of an unknown cause; restarting in place. Restart 1 of 3 without lasting progress, not charged.": (
        FaultClass.UNKNOWN,
        {},
    ),
    "Training died of an unknown cause; resubmitting. 1 of 3 restarts used.": (FaultClass.UNKNOWN, {"can": ()}),
}


@pytest.mark.parametrize(("reason", "case"), REASONS.items())
def test_the_reason_is_what_a_person_would_say(reason: str, case: tuple[FaultClass, dict[str, Any]]) -> None:
    assert ask(FULL, broken(case[0]), **case[1]).reason == reason


def test_every_rule_that_was_looked_at_is_recorded_in_the_order_of_the_table() -> None:
    decision = ask(FaultTolerancePolicy.full(), broken(FaultClass.APP_ERROR))
    names = [one.rule for one in decision.considered if one.rule in {rule.name for rule in RULES}]
    assert names == [rule.name for rule in RULES if rule.wants not in (Wants.RESTART, Wants.CHARGED)]
    assert all(one.why or one.applied for one in decision.considered)


# --- what a pure function promises ---------------------------------------------------------------------------------


def test_a_decision_comes_back_from_its_record_with_the_same_digest() -> None:
    decision = ask(FULL, broken(HW, "n2"))
    again = Decision.from_record(json.loads(json.dumps(decision.to_record())))
    assert again == decision
    assert again.digest() == decision.digest()


def test_a_decision_fits_into_an_order_to_the_agents() -> None:
    times = tuple(NOON + timedelta(minutes=minute) for minute in range(32))
    wordy = broken(FaultClass.UNKNOWN, *POOL, text="x" * 5000, advice="y" * 5000)
    decision = ask(FaultTolerancePolicy.full(max_free_restarts=0), wordy, ledger=Ledger(free_at=times), can=())
    assert len(json.dumps(decision.to_record())) < 4000


@pytest.fixture
def elsewhere() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Marquesas"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def test_a_decision_depends_neither_on_the_zone_of_the_clock_nor_of_the_machine(elsewhere: None) -> None:
    here = situation(broken(FaultClass.UNKNOWN), ledger=Ledger(free_at=(NOON,) * 9))
    zones = [timezone.utc, timezone(timedelta(hours=5, minutes=45)), None]
    assert len({decide(FULL, here, NOON.astimezone(zone)).digest() for zone in zones}) == 1
    with pytest.raises(ValueError, match="time zone"):
        decide(FULL, here, NOON.replace(tzinfo=None))


def test_a_decision_does_not_depend_on_the_order_of_a_dictionary() -> None:
    settings: dict[str, Any] = {
        "max_restarts": 5,
        "ladder": {"UNKNOWN": ["RESUBMIT"], "HW_NODE": ["FAIL"]},
        "unconditional": True,
    }
    turned = {**dict(reversed(settings.items())), "ladder": dict(reversed(settings["ladder"].items()))}
    one, other = FaultTolerancePolicy(**settings), FaultTolerancePolicy(**turned)
    assert ask(one, broken(HW)).digest() == ask(other, broken(HW)).digest()


def test_eight_times_the_chain_and_the_pool_never_cost_eight_times_as_much() -> None:
    """Whatever a decision looks at, it looks at once. How long that takes is measured in ``benchmarks/policy.py``."""
    policy = FaultTolerancePolicy.full(max_restarts=128, hang=HangSettings())
    small, large = _long_story(8), _long_story(64)
    pairs = [(_seconds(policy, small), _seconds(policy, large)) for _ in range(40)]  # by turns: machines have moods
    quick, slow = (min(times) for times in zip(*pairs, strict=True))
    assert (
        slow < 8 * quick
    )  # in proportion it would be 8 times, with the square 64; much costs the same, whatever the size


def _long_story(faults: int) -> Situation:
    pool = tuple(f"node-{number:05d}" for number in range(64 * faults))
    past = tuple(
        PastFault(cause=("HW_NODE", "it"), step=step, action=EXCLUDING, nodes=pool[step : step + 16], gained=False)
        for step in range(faults)
    )
    excluded = pool[: 16 * faults]
    return situation(broken(HW, *pool[-16:]), faults=past, pool_nodes=pool, excluded_nodes=excluded, step=99)


def _seconds(policy: FaultTolerancePolicy, here: Situation) -> float:
    start = time.thread_time()
    decide(policy, here, NOON)
    return time.thread_time() - start


# --- time slices, and ends that are no beginnings -----------------------------------------------------------------

SLICE = broken(FaultClass.UNKNOWN, signature="slurm.time_limit", disruption="time limit")


@pytest.mark.story("CLS-05")
def test_a_time_limit_is_free_until_two_whole_slices_gained_no_step() -> None:
    chain = Chain(TEN)
    assert chain.play(SLICE, SLICE, run=Run(last_step=40)) == [
        "RESUBMIT",
        "RESUBMIT",
    ]  # the second slice made 1..40 again
    stop = chain.fault(SLICE, run=Run(last_step=38))
    assert stop.action is Action.FAIL
    assert "time limit is shorter than start-up + first checkpoint" in stop.reason
    assert chain.left == 10


@pytest.mark.story("CLS-05")
@pytest.mark.parametrize(
    ("between", "run"),
    [
        (SLICE, Run(last_step=41)),  # a step was gained
        (broken(FaultClass.UNKNOWN, signature="slurm.preempted", disruption="preemption"), Run(last_step=3)),
        (broken(HW, "n1"), Run(last_step=3)),
    ],
)
def test_only_two_time_slices_in_a_row_prove_that_the_limit_is_too_short(between: Diagnosis, run: Run) -> None:
    chain = Chain(TEN)
    chain.play(SLICE, SLICE, run=Run(last_step=40))
    chain.fault(between, run=run)
    assert chain.fault(SLICE, run=Run(last_step=40)).action is Action.RESUBMIT


@pytest.mark.story("CLS-05")
def test_preemptions_prove_nothing_however_many() -> None:
    preempted = broken(FaultClass.UNKNOWN, signature="slurm.preempted", disruption="preemption")
    chain = Chain(TEN)
    assert set(chain.play(*[preempted] * 9, run=Run(last_step=40))) == {"RESUBMIT"}


@pytest.mark.story("CLS-05")
def test_where_steps_can_not_be_seen_time_slices_prove_nothing() -> None:
    chain = Chain(TEN)
    assert set(chain.play(*[SLICE] * 5)) == {"RESUBMIT"}
    chain = Chain(TEN)
    chain.fault(SLICE, run=Run(last_step=40))
    assert chain.play(SLICE, SLICE) == ["RESUBMIT", "FAIL"]  # steps were seen once, and then none


@pytest.mark.story("CLS-12")
def test_what_fails_twice_with_nothing_left_to_train_stops() -> None:
    """Resumed at its last step it skips the loop and dies in the final save: it would be resumed without end."""
    chain = Chain(TEN)
    died = broken(FaultClass.UNKNOWN, signature="process.sigkill")
    assert chain.fault(died, step=1000, run=Run(last_step=1000)).action is not Action.FAIL
    assert chain.fault(died, finished=True).action is not Action.FAIL
    stop = chain.fault(died, finished=True)
    assert stop.action is Action.FAIL
    assert stop.reason.startswith("Nothing left to train; fails while saving")
    assert chain.fault(died, finished=False).action is not Action.FAIL
