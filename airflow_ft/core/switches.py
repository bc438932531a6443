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


def answered(
    asked: Decision, answer: str, by: str, policy: FaultTolerancePolicy, now: datetime, *, held: bool = False
) -> Decision:
    """Return the decision that a person's ``answer`` makes of a question.

    A restart in place that is approved while the job is ``held`` costs nothing yet: the question comes back with its
    answer, and who sees the job makes the decision of it (``followed``).

    :param answer: ``approve`` what was proposed, ``resubmit``, or ``stop``.
    :param by: who answered, for the reason.
    """
    if asked.action is not Action.ASK or asked.proposed is None:
        raise ValueError(f"asked: {asked.action.value} is no question. Give a decision to ask.")
    if answer not in (APPROVE, RESUBMIT, STOP):
        raise ValueError(f"answer: {answer!r} is not allowed. Give {APPROVE}, {RESUBMIT} or {STOP}.")
    if answer == APPROVE and asked.proposed.action is Action.RESTART_IN_PLACE:
        approved = asked.but(answer=answer, reason=f"{by} approved: {asked.proposed.text}")
        return approved if held else followed(approved, None, policy, now)
    if answer == APPROVE:
        return _paid(_approved(asked, f"{by} approved: {asked.proposed.text}"), policy, now)
    chosen = asked.but(
        action=Action.RESUBMIT if answer == RESUBMIT else Action.FAIL,
        reason=f"{by} chose to {answer}. Proposed was: {asked.proposed.text}",
        charged="restart" if answer == RESUBMIT else "",
        answer=answer,
    )
    return _paid(chosen, policy, now)


def followed(approved: Decision, generation: int | None, policy: FaultTolerancePolicy, now: datetime) -> Decision:
    """Return the decision that an approved restart in place comes to.

    :param generation: the one that it leads to; ``None`` if the nodes are not held any more: then it is resubmitted.
    """
    decision = _approved(approved, approved.reason)
    if generation is not None:
        return _paid(decision.but(generation=generation), policy, now)
    text = f"{approved.reason} The nodes are not held any more: resubmitting instead."
    return _paid(decision.but(action=Action.RESUBMIT, level="job", charged="restart", reason=text), policy, now)


def _approved(asked: Decision, text: str) -> Decision:
    """Return what was proposed, not paid yet."""
    proposed = asked.proposed
    assert proposed is not None
    return asked.but(
        action=proposed.action,
        reason=text,
        level=proposed.level,
        charged=proposed.charged,
        excluded_nodes=proposed.excluded_nodes,
        soft_nodes=proposed.soft_nodes,
        delay=proposed.delay,
        answer=APPROVE,
    )


def _paid(decision: Decision, policy: FaultTolerancePolicy, now: datetime) -> Decision:
    """Return the decision with its cost; a budget that is used up stops it."""
    charged, text = decision.charged, decision.reason
    if charged in ("restart", "unconditional") and decision.ledger.restarts >= policy.max_restarts:
        decision = decision.but(action=Action.FAIL, charged="")
        charged, text = "", f"{text} Stopping, budget used up."
    after = decision.ledger.charge(charged, now)
    reason = " ".join(one for one in (wording.sentence(text), wording.cost(charged, after, policy)) if one)
    return decision.but(reason=reason, ledger=after)
