"""The decision about one fault: a pure function of policy, situation and time.

First the ledger sees the run that failed (progress that lasts begins the consecutive counts anew). Then the rules of
``RULES`` are looked at from top to bottom, and the verdict that stands after the last one becomes the decision. Each
row says which verdict its rule wants to see:

- NONE: no rule has spoken yet;
- STOP: a stop that the user may override. Only ``unconditional`` does, so it can never count a restart that another
  rule would have made;
- ANY: the ``switches`` (act, notify, ask) look at every verdict but those that nobody has a choice about;
- RESTART: training would run again, on whatever budget;
- CHARGED: something that the budget ``max_restarts`` has to pay for.

Every rule that was looked at is in ``Decision.considered``, with what it said. The ladder (``ladder``) is one of the
rules; each of its rungs is in there, too. Doubt restarts, certainty stops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from airflow_ft.core import wording
from airflow_ft.core.chain import PastFault
from airflow_ft.core.decisions import UNTOUCHED, Action, Considered, Decision
from airflow_ft.core.faults import FaultClass, Trust
from airflow_ft.core.following_rules import follow
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.rungs import climb
from airflow_ft.core.situation import Case, Situation
from airflow_ft.core.switches import DONE, basic_verdict, switched
from airflow_ft.core.verdicts import Verdict, decision_of

__all__ = ["RULES", "Situation", "decide", "past_fault"]

# So many different nodes blamed by separate faults of one cause make the job the suspect (DESIGN §4).
BLAMED_NODES = 3
# Losses that the platform confirms so soon after a charged restart, before a first step, are the same incident
# (DESIGN §4): it may take a cluster that long to notice all nodes of a rack that lost power.
SAME_INCIDENT_SECONDS = 900.0
# What the signatures of schedulers call the end of a time slice.
TIME_LIMIT = "time limit"
# A record of a fault keeps so many of its suspects (DESIGN §3: at most 16 node reports).
MAX_PAST_NODES = 16


def decide(policy: FaultTolerancePolicy, situation: Situation, now: datetime) -> Decision:
    """Decide what is done about a fault. The same values give the same decision, always."""
    if now.tzinfo is None:
        raise ValueError(f"now: {now!r} is not allowed. Give a time with a time zone.")
    case = Case.of(policy, situation, now)
    verdict: Verdict | None = None
    considered: list[Considered] = []
    for rule in (*RULES, *((NOT_OURS,) if situation.foreign else ())):
        if not rule.wants.sees(verdict):
            continue
        answer = rule.look(case, verdict)
        if isinstance(answer, str):
            considered.append(Considered(rule=rule.name, why=answer))
            continue
        verdict = answer
        considered += [*answer.rungs, Considered(rule=rule.name, applied=True, why=answer.action.value)]
    assert verdict is not None  # the ladder always answers
    return decision_of(case, verdict, tuple(considered))


def past_fault(situation: Situation, decision: Decision) -> PastFault:
    """What the next decisions need to know of this one: append it to the chain's ``faults``."""
    before, run = situation.ledger, situation.run
    return PastFault(
        cause=situation.diagnosis.cause(),
        step=situation.step,
        finished=situation.finished,
        action=decision.action.value,
        nodes=situation.diagnosis.suspect_nodes[:MAX_PAST_NODES],
        gained=run.gained(before.highest_step),
        lasted=before.lasting(run),
        charged=decision.charged,
        rule=decision.rule,
    )


# --- the rules -----------------------------------------------------------------------------------------------------
# Each returns a verdict, or why it doesn't apply.


def _off(case: Case, _: Verdict | None) -> Verdict | str:
    if case.policy.enabled:
        return "fault tolerance is on"
    text = f"Fault tolerance is off; stopping: {wording.clip(case.diagnosis.text)}"
    return Verdict(Action.FAIL, text, switched=False)


def _time_limit(case: Case, _: Verdict | None) -> Verdict | str:
    """A time slice that ends before a new step, twice: the next one ends there, too, free of charge and for ever."""
    if TIME_LIMIT not in (case.diagnosis.disruption or ""):
        return "no time limit ended it"
    if not case.stood_still:
        return "a step was gained, or steps can't be seen"
    last = case.situation.faults[-1] if case.situation.faults else None
    if last is None or last.cause != case.cause or last.gained:
        return "the first time slice without a new step"
    text = (
        "The time limit is shorter than start-up + first checkpoint: two whole time slices gained no step, stopping. "
        "Raise the limit, or save checkpoints more often"
    )
    return Verdict(Action.FAIL, text, final=False)


def _disruption(case: Case, _: Verdict | None) -> Verdict | str:
    what = case.diagnosis.disruption
    if not what:
        return "nobody planned this end"
    text = f"A disruption, nobody's fault ({wording.clip(what)}); resubmitting"
    return Verdict(Action.RESUBMIT, text, "disruption", waits=case.ledger.disruptions, switched=False)


def _basic(case: Case, _: Verdict | None) -> Verdict | str:
    if case.policy.mode != "basic":
        return f"the mode is {case.policy.mode}"
    return basic_verdict(case, "as basic mode always does")


def _user_rules(case: Case, _: Verdict | None) -> Verdict | str:
    return follow(case)


def _same_incident(case: Case, _: Verdict | None) -> Verdict | str:
    root, at = case.diagnosis.root, case.ledger.restarted_at
    if case.diagnosis.fault_class is not FaultClass.HW_NODE or root is None or root.trust is not Trust.PLATFORM:
        return "not a loss that the platform confirms"
    if not case.faults or case.faults[-1].cause[0] != FaultClass.HW_NODE.value or at is None:
        return "no charged loss came right before"
    if case.situation.run.reached() is not None:
        return "a step was made since the last loss"
    if abs((case.now - at).total_seconds()) >= SAME_INCIDENT_SECONDS:
        return f"the last charged restart is {SAME_INCIDENT_SECONDS / 60:g} minutes ago or more"
    text = f"{wording.what(case)}; the same incident as before, not charged again, resubmitting"
    excluding = bool(case.suspects) and case.can(Action.RESUBMIT_EXCLUDING)
    action = Action.RESUBMIT_EXCLUDING if excluding else Action.RESUBMIT
    return Verdict(action, text, targets=case.suspects if excluding else (), blames=False)


def _three_nodes(case: Case, _: Verdict | None) -> Verdict | str:
    if not case.blames_nodes:
        return "this class blames no nodes"
    blamed: dict[str, None] = {}
    times = 0  # a rack is one incident, and a node that is blamed again is no new one: those faults are not counted
    before = [(fault.nodes, bool(fault.charged)) for fault in case.streak if fault.cause == case.cause]
    for nodes, counts in (*before, (case.suspects, True)):
        times += counts and bool(nodes) and blamed.keys().isdisjoint(nodes)
        blamed |= dict.fromkeys(nodes)
    if times < BLAMED_NODES:
        return f"{times} faults of this cause blamed different nodes, not {BLAMED_NODES}"
    text = (
        f"Different nodes ({wording.names(tuple(blamed))}) were blamed for the same cause {times} times, so the job is "
        f"the suspect; its exclusions are lifted, stopping: {wording.clip(case.diagnosis.text)}"
    )
    return Verdict(Action.FAIL, text, lifts=True)


def _deterministic(case: Case, _: Verdict | None) -> Verdict | str:
    if case.situation.hang or case.ladder_class is FaultClass.COMM_HANG:
        return "for a hang at the same place the ladder has an answer of its own"
    if case.situation.step is None or case.gained is None:
        return "the step isn't known, which proves nothing"
    if not case.same_place:
        return "not the same cause at the same step, or steps were gained"
    text = (
        f"The same cause at the same step ({case.situation.step}) twice, with no step gained: it is deterministic, "
        f"stopping: {wording.clip(case.diagnosis.text)}{wording.advice(case)}"
    )
    return Verdict(Action.FAIL, text, final=False)


def _nothing_left(case: Case, _: Verdict | None) -> Verdict | str:
    """The success path that crashes: resumed at the last step, it skips its loop, and fails in what comes after it."""
    if not case.situation.finished or case.situation.hang:
        return "it had not loaded the last step"
    if not case.situation.faults or not case.situation.faults[-1].finished:
        return "the first time that it failed with nothing left to train"
    text = (
        "Nothing left to train; fails while saving: it has loaded its last step twice and died before a further one, "
        f"stopping: {wording.clip(case.diagnosis.text)}"
    )
    return Verdict(Action.FAIL, text, final=False)


def _ladder(case: Case, _: Verdict | None) -> Verdict | str:
    return climb(case)


def _unconditional(case: Case, verdict: Verdict | None) -> Verdict | str:
    streak = case.ledger.unconditional_streak
    if not case.policy.unconditional:
        return "unconditional restarts are off"
    if streak >= case.policy.max_unconditional_streak:
        return f"{streak} consecutive unconditional restarts without lasting progress"
    text = f"{wording.what(case)}; running again may not help, restarting all the same: unconditional restarts are on"
    return Verdict(Action.RESUBMIT, text, "unconditional", waits=case.restarts_in_a_row())


def _switches(case: Case, verdict: Verdict | None) -> Verdict | str:
    assert verdict is not None
    return "nobody's choice" if not verdict.switched else switched(case, verdict)


def _lost_time(case: Case, verdict: Verdict | None) -> Verdict | str:
    limit, lost = case.policy.max_lost_gpu_hours, case.ledger.lost_gpu_hours
    if limit is None:
        return "no limit on lost GPU-hours"
    if not case.situation.gpus:
        return "how many GPUs the job has isn't known"
    if lost < limit:
        return f"{lost:.1f} of {limit:g} GPU-hours lost"
    return _limit(case, verdict, f"faults have cost {lost:.1f} of {limit:g} GPU-hours")


def _window(case: Case, verdict: Verdict | None) -> Verdict | str:
    most, seconds = case.policy.max_restarts_in_window, case.policy.restart_window_seconds
    if most is None:
        return "no budget in a time window"
    within = case.ledger.restarts_within(case.now, seconds)
    if within < most:
        return f"{within} of {most} restarts in {seconds / 3600:g} h"
    return _limit(case, verdict, f"{within} restarts in {seconds / 3600:g} h, the limit is {most}")


def _budget(case: Case, verdict: Verdict | None) -> Verdict | str:
    if case.left > 0:
        return f"{case.left} of {case.policy.max_restarts} restarts left"
    return _limit(case, verdict, f"budget used up: {case.used}")


def _not_ours(case: Case, verdict: Verdict | None) -> Verdict:
    """A job that somebody else has submitted is watched and judged; what would be done is told, and not done."""
    assert verdict is not None
    if verdict.action is Action.FAIL:
        return replace(verdict, level=UNTOUCHED)
    text = (
        f"{wording.what(case)}: {wording.clip(case.diagnosis.text)}{wording.advice(case)}. Nothing is done to "
        f"{case.situation.foreign}, which is not ours. A job of ours would have been treated so: "
        f"{DONE[verdict.action]}"
    )
    return Verdict(Action.FAIL, text, level=UNTOUCHED, switched=False, shadow=verdict.shadow or verdict)


def _limit(case: Case, verdict: Verdict | None, why: str) -> Verdict:
    text = (
        f"{wording.what(case)}; stopping, {why}. The last fault: {wording.clip(case.diagnosis.text)}"
        f"{wording.advice(case)}"
    )
    shadow = verdict.shadow if verdict is not None else None
    return Verdict(Action.FAIL, text, switched=False, shadow=shadow)


class Wants(Enum):
    """Which standing verdict a rule wants to see."""

    NONE = "none"
    STOP = "stop"
    ANY = "any"
    RESTART = "restart"
    CHARGED = "charged"

    def sees(self, verdict: Verdict | None) -> bool:
        """Whether ``verdict`` is of that kind."""
        if self is Wants.NONE or verdict is None:
            return self is Wants.NONE and verdict is None
        if self is Wants.ANY:
            return True
        if self is Wants.RESTART:
            return verdict.action is not Action.FAIL and verdict.charged != "disruption"
        return verdict.paid if self is Wants.CHARGED else verdict.action is Action.FAIL and not verdict.final


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    wants: Wants
    look: Callable[[Case, Verdict | None], Verdict | str]


RULES = (
    Rule("off", Wants.NONE, _off),
    Rule("time limit without a step", Wants.NONE, _time_limit),
    Rule("disruption", Wants.NONE, _disruption),
    Rule("your rules", Wants.NONE, _user_rules),
    Rule("basic mode", Wants.NONE, _basic),
    Rule("same incident", Wants.NONE, _same_incident),
    Rule("three nodes blamed", Wants.NONE, _three_nodes),
    Rule("same cause, same step", Wants.NONE, _deterministic),
    Rule("nothing left to train", Wants.NONE, _nothing_left),
    Rule("ladder", Wants.NONE, _ladder),
    Rule("unconditional", Wants.STOP, _unconditional),
    Rule("switches", Wants.ANY, _switches),
    Rule("lost GPU-hours", Wants.RESTART, _lost_time),
    Rule("restarts in a window", Wants.CHARGED, _window),
    Rule("budget", Wants.CHARGED, _budget),
)
# The last word on a job that somebody else has submitted. On others it has nothing to say, so it isn't looked at.
NOT_OURS = Rule("not ours", Wants.ANY, _not_ours)
