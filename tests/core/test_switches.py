"""Notify and ask: what is only told, what a person is asked, and what an answer costs (mission P7)."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.core.decide import decide
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, FaultClass, Suspect
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import SWITCHES, AskSettings, FaultTolerancePolicy
from airflow_ft.core.situation import Situation
from airflow_ft.core.switches import answered, followed

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
POOL = tuple(f"n{number}" for number in range(8))
HELD = (Action.RESTART_IN_PLACE, Action.RESUBMIT, Action.RESUBMIT_EXCLUDING)
HW, UNKNOWN, APP = FaultClass.HW_NODE, FaultClass.UNKNOWN, FaultClass.APP_ERROR
NOTIFY = FaultTolerancePolicy.full(on_fault="notify")
ASK = FaultTolerancePolicy.full(on_fault="ask")


def ask(policy: FaultTolerancePolicy, fault_class: FaultClass, *nodes: str, **more: Any) -> Decision:
    diagnosis = Diagnosis(
        fault_class=fault_class,
        text="It broke.",
        signature="it",
        suspects=tuple(Suspect(kind="node", name=node) for node in nodes),
        disruption=more.pop("disruption", None),
    )
    here = {"can": HELD, "pool_nodes": POOL, "nodes_needed": 2, **more}
    return decide(policy, Situation(diagnosis=diagnosis, **here), NOON)


# --- notify --------------------------------------------------------------------------------------------------------


@pytest.mark.row("P7")
@pytest.mark.parametrize(
    ("fault_class", "nodes", "would", "excluded"),
    [
        (HW, ("n1",), Action.RESUBMIT_EXCLUDING, ("n1",)),
        (UNKNOWN, (), Action.RESTART_IN_PLACE, ()),
        (APP, (), Action.FAIL, ()),
    ],
)
def test_a_rehearsal_does_what_basic_mode_does_and_tells_what_it_would_have_done(
    fault_class: FaultClass, nodes: tuple[str, ...], would: Action, excluded: tuple[str, ...]
) -> None:
    decision = ask(NOTIFY, fault_class, *nodes)
    basic = ask(FaultTolerancePolicy.basic(), fault_class, *nodes)
    assert (decision.action, decision.charged, decision.excluded_nodes) == (basic.action, "restart", ())
    assert decision.ledger.but(blames=()) == basic.ledger
    assert decision.shadow is not None
    assert (decision.shadow.action, decision.shadow.excluded_nodes) == (would, excluded)
    assert "A rehearsal: it would have " in decision.reason


@pytest.mark.row("P7")
def test_a_rehearsal_is_bound_by_the_budget_and_still_tells() -> None:
    decision = ask(NOTIFY, UNKNOWN, ledger=Ledger(restarts=3))
    assert (decision.action, decision.ledger.restarts) == (Action.FAIL, 3)
    assert decision.shadow is not None and decision.shadow.action is Action.RESTART_IN_PLACE


@pytest.mark.row("P7")
def test_a_single_action_can_be_rehearsed_while_the_others_are_done() -> None:
    policy = FaultTolerancePolicy.full(on_exclude="notify")
    told = ask(policy, HW, "n1")
    assert (told.action, told.excluded_nodes, told.soft_nodes) == (Action.RESUBMIT, (), ())
    assert told.shadow is not None
    done = ask(policy, UNKNOWN)
    assert (done.action, done.shadow) == (Action.RESTART_IN_PLACE, None)


def test_a_rehearsal_excludes_no_offender_either() -> None:
    ledger = Ledger().blamed(["n1"], 1, NOON).blamed(["n1"], 1, NOON)
    decision = ask(NOTIFY, UNKNOWN, ledger=ledger)
    assert (decision.excluded_nodes, decision.soft_nodes) == ((), ())


def test_nobody_has_a_choice_about_a_disruption_a_used_up_budget_or_a_policy_that_is_off() -> None:
    for switch in ("notify", "ask"):
        policy = FaultTolerancePolicy.full(on_fault=switch)
        free = ask(policy, UNKNOWN, disruption="drain")
        assert (free.action, free.charged, free.shadow, free.proposed) == (Action.RESUBMIT, "disruption", None, None)
        assert ask(FaultTolerancePolicy.off(on_fault=switch), UNKNOWN).action is Action.FAIL
        assert ask(policy, HW, ledger=Ledger(restarts=3)).action is Action.FAIL


def test_a_hang_is_only_told_in_a_rehearsal() -> None:
    assert FaultTolerancePolicy.full().acts_on_hangs
    assert not NOTIFY.acts_on_hangs and NOTIFY.detects_hangs


BISECTS = (*HELD, Action.BISECT)
BY_SWITCH = {
    "on_restart_in_place": (UNKNOWN, (), {}, Action.RESTART_IN_PLACE),
    "on_resubmit": (UNKNOWN, (), {"can": (Action.RESUBMIT,)}, Action.RESUBMIT),
    "on_exclude": (HW, ("n1",), {}, Action.RESUBMIT_EXCLUDING),
    "on_bisect": (HW, (), {"can": BISECTS}, Action.BISECT),
    "on_stop": (APP, (), {}, Action.FAIL),
}


@pytest.mark.row("P7")
@pytest.mark.parametrize("name", BY_SWITCH)
@pytest.mark.parametrize("switch", ["act", "notify", "ask"])
def test_each_switch_acts_tells_or_asks_about_its_own_action(name: str, switch: str) -> None:
    fault_class, nodes, more, action = BY_SWITCH[name]
    assert SWITCHES[action] == name and {*SWITCHES.values()} == {*BY_SWITCH}
    decision = ask(FaultTolerancePolicy.full(**{name: switch}), fault_class, *nodes, **more)
    done, told, asked = decision.action, decision.shadow, decision.proposed
    if switch == "act":
        assert (done, told, asked) == (action, None, None)
    elif switch == "notify":
        assert (done, asked) == (Action.RESUBMIT, None) and told is not None and told.action is action
    else:
        assert (done, told) == (Action.ASK, None) and asked is not None and asked.action is action
        assert decision.ledger.but(blames=()) == Ledger()


# --- ask -----------------------------------------------------------------------------------------------------------


@pytest.mark.row("S4")
def test_a_question_costs_nothing_and_says_what_is_proposed() -> None:
    decision = ask(ASK, HW, "n1")
    assert (decision.action, decision.charged, decision.ledger.restarts) == (Action.ASK, "", 0)
    assert decision.proposed is not None
    assert (decision.proposed.action, decision.proposed.charged) == (Action.RESUBMIT_EXCLUDING, "restart")
    assert decision.proposed.excluded_nodes == ("n1",)
    assert decision.excluded_nodes == (), "not yet"
    assert decision.reason.endswith("A person is asked whether that is right.")


@pytest.mark.parametrize(
    ("answer", "action", "charged", "excluded"),
    [
        ("approve", Action.RESUBMIT_EXCLUDING, "restart", ("n1",)),
        ("resubmit", Action.RESUBMIT, "restart", ()),
        ("stop", Action.FAIL, "", ()),
    ],
)
def test_an_answer_is_carried_out_and_charged_once(
    answer: str, action: Action, charged: str, excluded: tuple[str, ...]
) -> None:
    asked = ask(ASK, HW, "n1")
    decision = answered(asked, answer, "maria", ASK, NOON)
    assert (decision.action, decision.charged, decision.excluded_nodes) == (action, charged, excluded)
    assert decision.ledger == asked.ledger.charge(charged, NOON)
    assert decision.reason.startswith("maria ")
    assert decision.answer == answer
    with pytest.raises(ValueError, match="is no question"):
        answered(decision, answer, "maria", ASK, NOON)


def test_an_answer_never_exceeds_the_budget() -> None:
    asked = ask(FaultTolerancePolicy.full(on_stop="ask"), APP)
    spent = asked.but(ledger=Ledger(restarts=3))
    assert answered(spent, "resubmit", "maria", ASK, NOON).action is Action.FAIL


def test_a_stop_that_is_asked_about_can_be_overruled() -> None:
    asked = ask(FaultTolerancePolicy.full(on_stop="ask"), APP)
    assert asked.action is Action.ASK and asked.proposed is not None and asked.proposed.action is Action.FAIL
    assert answered(asked, "approve", "maria", ASK, NOON).action is Action.FAIL
    assert answered(asked, "resubmit", "maria", ASK, NOON).action is Action.RESUBMIT


def test_there_is_nothing_to_ask_where_no_restart_is_left() -> None:
    policy = FaultTolerancePolicy.full(on_stop="ask")
    assert ask(policy, APP, ledger=Ledger(restarts=3)).action is Action.FAIL
    assert ask(ASK, HW, ledger=Ledger(restarts=3)).action is Action.FAIL


def test_a_restart_in_place_that_is_approved_is_a_resubmission_where_nobody_holds_the_nodes() -> None:
    asked = ask(ASK, UNKNOWN)
    assert asked.proposed is not None and asked.proposed.action is Action.RESTART_IN_PLACE
    decision = answered(asked, "approve", "maria", ASK, NOON)
    assert (decision.action, decision.charged, decision.ledger.restarts) == (Action.RESUBMIT, "restart", 1)
    assert "The nodes are not held any more: resubmitting instead." in decision.reason


@pytest.mark.parametrize(
    ("generation", "action", "charged"), [(1, Action.RESTART_IN_PLACE, "in_place"), (None, Action.RESUBMIT, "restart")]
)
def test_a_restart_in_place_that_is_approved_of_a_held_job_is_charged_when_it_is_carried_out(
    generation: int | None, action: Action, charged: str
) -> None:
    asked = ask(ASK, UNKNOWN)
    approved = answered(asked, "approve", "maria", ASK, NOON, held=True)
    assert (approved.action, approved.answer, approved.ledger) == (Action.ASK, "approve", asked.ledger)
    assert asked.ends_attempt and not approved.ends_attempt
    decision = followed(approved, generation, ASK, NOON)
    assert (decision.action, decision.charged, decision.generation) == (action, charged, generation or 0)
    assert decision.ledger == asked.ledger.charge(charged, NOON)
    assert decision.reason.startswith("maria approved: ")


def test_a_job_that_is_held_for_a_person_is_held_longer_than_the_question_stands() -> None:
    hold = AskSettings(job="hold", timeout_seconds=3600)
    assert ASK.agents_hold_seconds == ASK.hold_seconds
    assert FaultTolerancePolicy.full(ask=hold).agents_hold_seconds == ASK.hold_seconds, "nobody is ever asked"
    assert FaultTolerancePolicy.full(on_restart_in_place="ask", ask=hold).agents_hold_seconds > 3600


def test_a_rung_that_asks_proposes_to_resubmit() -> None:
    policy = FaultTolerancePolicy.full(ladder={"UNKNOWN": ["ASK"]})
    asked = ask(policy, UNKNOWN, can=(*HELD, Action.ASK))
    assert asked.action is Action.ASK
    assert asked.proposed is not None and asked.proposed.action is Action.RESUBMIT
    assert policy.asks and ASK.asks and not FaultTolerancePolicy.full().asks


def test_an_unknown_answer_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'perhaps' is not allowed\. Give approve, resubmit or stop\."):
        answered(ask(ASK, HW), "perhaps", "maria", ASK, NOON)
