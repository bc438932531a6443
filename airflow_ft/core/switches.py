"""Switches: what was decided is done, only told (``notify``), or a person is asked first (``ask``).

*Notify* is a rehearsal: the decision says what it would have done, and does what basic mode does: it resubmits, on any
nodes, as long as there is budget. The rules look back over what was really done, so a rehearsal says of each fault what
would be done *now*, not how a chain would have gone that it has not had. *Ask* puts the decision before a person;
whatever the answer costs is charged with the answer, not with the question.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from airflow_ft.core import wording
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_settings import NOTIFY
from airflow_ft.core.situation import Case
from airflow_ft.core.verdicts import Verdict

DONE = {
    Action.RESTART_IN_PLACE: "restarted in place",
    Action.RESUBMIT: "resubmitted",
    Action.RESUBMIT_EXCLUDING: "resubmitted without the suspects",
    Action.BISECT: "bisected the nodes",
    Action.ASK: "asked a person",
    Action.FAIL: "stopped",
}
APPROVE, RESUBMIT, STOP = "approve", "resubmit", "stop"


def switched(case: Case, verdict: Verdict) -> Verdict | str:
    """Return what the policy's switch makes of ``verdict``, or why nothing."""
    switch = case.policy.switch(verdict.action)
    if verdict.action is Action.ASK:
        proposed = basic_verdict(case, "if nobody says otherwise")
        return replace(verdict, proposed=replace(proposed, shadow=None))
    if switch == "act":
        return "act"
    if switch == NOTIFY:
        would = f"A rehearsal: it would have {DONE[verdict.action]}; resubmitting as basic mode does"
        told = f"{wording.clip(verdict.text)}. {would}"
        return replace(basic_verdict(case), text=told, shadow=verdict)
    if verdict.action is Action.FAIL and case.left == 0:
        return "there is nothing to choose: no restart is left"
    text = f"{wording.clip(verdict.text)}. A person is asked whether that is right"
    return Verdict(Action.ASK, text, proposed=verdict, blames=verdict.blames, kept=verdict.kept, rule=verdict.rule)


def basic_verdict(case: Case, how: str = "as basic mode does") -> Verdict:
    """Return what basic mode does: it resubmits, on any nodes."""
    text = f"{wording.what(case)}; resubmitting, {how}"
    if any(fault.cause == case.cause for fault in case.faults):
        text += ". The same cause as before: running again may not help"
    return Verdict(Action.RESUBMIT, text, "restart", waits=case.restarts_in_a_row(), blind=True)


def answered(asked: Decision, answer: str, by: str, policy: FaultTolerancePolicy, now: datetime) -> Decision:
    """Return the decision that a person's ``answer`` makes of a question.

    :param answer: ``approve`` what was proposed, ``resubmit``, or ``stop``.
    :param by: who answered, for the reason.
    """
    if asked.action is not Action.ASK or asked.proposed is None:
        raise ValueError(f"asked: {asked.action.value} is no question. Give a decision to ask.")
    proposed, ledger = asked.proposed, asked.ledger
    if answer == APPROVE:
        text, action, charged = f"{by} approved: {proposed.text}", proposed.action, proposed.charged
        out, soft, delay = proposed.excluded_nodes, proposed.soft_nodes, proposed.delay
    elif answer in (RESUBMIT, STOP):
        action = Action.RESUBMIT if answer == RESUBMIT else Action.FAIL
        text = f"{by} chose to {answer}. Proposed was: {proposed.text}"
        charged, delay = ("restart" if answer == RESUBMIT else ""), 0.0
        out, soft = asked.excluded_nodes, asked.soft_nodes
    else:
        raise ValueError(f"answer: {answer!r} is not allowed. Give {APPROVE}, {RESUBMIT} or {STOP}.")
    if action is Action.RESTART_IN_PLACE:  # nobody holds the nodes while a person thinks
        action, charged = Action.RESUBMIT, "restart"
    if charged in ("restart", "unconditional") and ledger.restarts >= policy.max_restarts:
        action, charged, text = Action.FAIL, "", f"{text} Stopping, budget used up."
    after = ledger.charge(charged, now)
    reason = " ".join(one for one in (wording.sentence(text), wording.cost(charged, after, policy)) if one)
    return Decision(
        action=action,
        reason=reason,
        excluded_nodes=out,
        soft_nodes=soft,
        delay=delay,
        charged=charged,
        ledger=after,
        proposed=proposed,
        answer=answer,
        rule=asked.rule,
    )
