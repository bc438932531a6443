"""The decision about one fault: a pure function of policy, situation and time.

First the ledger sees the run that failed (progress that lasts begins the consecutive counts anew). Then the rules of
``RULES`` are looked at from top to bottom, and the verdict that stands after the last one becomes the decision. Each
row says which verdict its rule wants to see:

- NONE: no rule has spoken yet;
- STOP: a stop that the user may override. Only ``unconditional`` does, so it can never count a restart that another
  rule would have made;
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
from airflow_ft.core.decisions import Action, Considered, Decision
from airflow_ft.core.exclusions import Exclusion, exclude
from airflow_ft.core.faults import FaultClass, Trust
from airflow_ft.core.ladder import CONDITIONS, Rung
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import HOLDS, Case, Situation

__all__ = ["RULES", "Situation", "decide", "past_fault"]

# So many different nodes blamed by separate faults of one cause make the job the suspect (DESIGN §4).
BLAMED_NODES = 3
# Losses that the platform confirms so soon after a charged restart, before a first step, are the same incident
# (DESIGN §4): it may take a cluster that long to notice all nodes of a rack that lost power.
SAME_INCIDENT_SECONDS = 900.0
# A record of a fault keeps so many of its suspects (DESIGN §3: at most 16 node reports).
MAX_PAST_NODES = 16


@dataclass(frozen=True)
class Verdict:
    """What one rule wants. ``text`` is the reason without the budget, ``targets`` are the nodes to exclude."""

    action: Action
    text: str
    charged: str = ""
    level: str = "job"
    targets: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # suspects that a rung wanted out and the cap forbade
    waits: int = 0  # how many times the backoff has grown
    final: bool = True  # a stop that isn't final may be overridden by ``unconditional``
    lifts: bool = False  # all exclusions are lifted
    rungs: tuple[Considered, ...] = ()

    @property
    def paid(self) -> bool:
        """Whether ``max_restarts`` has to have something left: for itself, or for the restart after a bisect."""
        return self.charged in ("restart", "unconditional") or self.action is Action.BISECT


def decide(policy: FaultTolerancePolicy, situation: Situation, now: datetime) -> Decision:
    """Decide what is done about a fault. The same values give the same decision, always."""
    if now.tzinfo is None:
        raise ValueError(f"now: {now!r} is not allowed. Give a time with a time zone.")
    case = Case.of(policy, situation, now)
    verdict: Verdict | None = None
    considered: list[Considered] = []
    for rule in RULES:
        if not rule.wants.sees(verdict):
            continue
        answer = rule.look(case, verdict)
        if isinstance(answer, str):
            considered.append(Considered(rule=rule.name, why=answer))
            continue
        verdict = answer
        considered += [*answer.rungs, Considered(rule=rule.name, applied=True, why=answer.action.value)]
    assert verdict is not None  # the ladder always answers
    return _decision(case, verdict, tuple(considered))


def past_fault(situation: Situation, decision: Decision) -> PastFault:
    """What the next decisions need to know of this one: append it to the chain's ``faults``."""
    before, run = situation.ledger, situation.run
    return PastFault(
        cause=situation.diagnosis.cause(),
        step=situation.step,
        action=decision.action.value,
        nodes=situation.diagnosis.suspect_nodes[:MAX_PAST_NODES],
        gained=run.gained(before.highest_step),
        lasted=before.lasting(run),
        charged=decision.charged,
    )


def _decision(case: Case, verdict: Verdict, considered: tuple[Considered, ...]) -> Decision:
    exclusion = _exclusion(case, verdict)
    ledger = case.ledger.charge(verdict.charged, case.now)
    kept = dict.fromkeys((*verdict.kept, *exclusion.kept))
    sentences = (
        wording.sentence(verdict.text),
        wording.cost(verdict.charged, ledger, case.policy),
        wording.kept(tuple(kept), bool(case.situation.pool_nodes)),
    )
    in_place = verdict.action is Action.RESTART_IN_PLACE
    return Decision(
        action=verdict.action,
        reason=" ".join(sentence for sentence in sentences if sentence),
        level=verdict.level,
        generation=case.situation.generation + 1 if in_place else 0,
        excluded_nodes=exclusion.excluded,
        delay=case.policy.backoff.delay(verdict.waits),
        charged=verdict.charged,
        considered=considered,
        ledger=ledger,
    )


def _exclusion(case: Case, verdict: Verdict) -> Exclusion:
    earlier = case.situation.excluded_nodes
    if verdict.lifts:
        return Exclusion(())
    if verdict.action in (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING):
        return _capped(case, verdict.targets, earlier)
    return Exclusion(earlier)


def _capped(case: Case, targets: tuple[str, ...], earlier: tuple[str, ...]) -> Exclusion:
    return exclude(case.policy.exclusion, targets, earlier, case.pool, case.situation.nodes_needed)


# --- the rules -----------------------------------------------------------------------------------------------------
# Each returns a verdict, or why it doesn't apply.


def _off(case: Case, _: Verdict | None) -> Verdict | str:
    if case.policy.enabled:
        return "fault tolerance is on"
    return Verdict(Action.FAIL, f"Fault tolerance is off; stopping: {wording.clip(case.diagnosis.text)}")


def _disruption(case: Case, _: Verdict | None) -> Verdict | str:
    what = case.diagnosis.disruption
    if not what:
        return "nobody planned this end"
    text = f"A disruption, nobody's fault ({wording.clip(what)}); resubmitting"
    return Verdict(Action.RESUBMIT, text, "disruption", waits=case.ledger.disruptions)


def _basic(case: Case, _: Verdict | None) -> Verdict | str:
    if case.policy.mode != "basic":
        return f"the mode is {case.policy.mode}"
    text = f"{wording.what(case)}; resubmitting, as basic mode always does"
    if any(fault.cause == case.cause for fault in case.faults):
        text += ". The same cause as before: running again may not help"
    return Verdict(Action.RESUBMIT, text, "restart", waits=case.restarts_in_a_row())


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
    return Verdict(action, text, targets=case.suspects if excluding else ())


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


def _ladder(case: Case, _: Verdict | None) -> Verdict | str:
    rungs = case.policy.rungs(case.ladder_class)
    looked: list[Considered] = []
    kept: tuple[str, ...] = ()
    for number, rung in enumerate(rungs, start=1):
        name = f"{case.ladder_class.value} {number}: {rung.action.value}"
        why_not = _not_applicable(case, rung)
        if not why_not:
            why_not = _not_possible(case, rung, rungs[number:])
            if why_not and rung.action is Action.RESTART_IN_PLACE and not _no_pods(case):
                looked += [Considered(rule=name, why=why_not), Considered(rule=f"{name}, one pod", applied=True)]
                return replace(_pod(case), rungs=tuple(looked))
        if not why_not:
            looked.append(Considered(rule=name, applied=True))
            return replace(_take(case, rung), rungs=tuple(looked), kept=kept)
        looked.append(Considered(rule=name, why=why_not))
        if why_not == NO_ROOM:
            kept = _targets(case, rung)
    return replace(_stop(case), rungs=tuple(looked))


def _unconditional(case: Case, verdict: Verdict | None) -> Verdict | str:
    streak = case.ledger.unconditional_streak
    if not case.policy.unconditional:
        return "unconditional restarts are off"
    if streak >= case.policy.max_unconditional_streak:
        return f"{streak} consecutive unconditional restarts without lasting progress"
    text = f"{wording.what(case)}; running again may not help, restarting all the same: unconditional restarts are on"
    return Verdict(Action.RESUBMIT, text, "unconditional", waits=case.restarts_in_a_row())


def _budget(case: Case, verdict: Verdict | None) -> Verdict | str:
    if case.left > 0:
        return f"{case.left} of {case.policy.max_restarts} restarts left"
    text = (
        f"{wording.what(case)}; stopping, budget used up: {case.used}. "
        f"The last fault: {wording.clip(case.diagnosis.text)}{wording.advice(case)}"
    )
    return Verdict(Action.FAIL, text)


class Wants(Enum):
    """Which standing verdict a rule wants to see."""

    NONE = "none"
    STOP = "stop"
    CHARGED = "charged"

    def sees(self, verdict: Verdict | None) -> bool:
        """Whether ``verdict`` is of that kind."""
        if self is Wants.NONE or verdict is None:
            return self is Wants.NONE and verdict is None
        return verdict.paid if self is Wants.CHARGED else verdict.action is Action.FAIL and not verdict.final


@dataclass(frozen=True)
class Rule:
    """One row of the table."""

    name: str
    wants: Wants
    look: Callable[[Case, Verdict | None], Verdict | str]


RULES = (
    Rule("off", Wants.NONE, _off),
    Rule("disruption", Wants.NONE, _disruption),
    Rule("basic mode", Wants.NONE, _basic),
    Rule("same incident", Wants.NONE, _same_incident),
    Rule("three nodes blamed", Wants.NONE, _three_nodes),
    Rule("same cause, same step", Wants.NONE, _deterministic),
    Rule("ladder", Wants.NONE, _ladder),
    Rule("unconditional", Wants.STOP, _unconditional),
    Rule("budget", Wants.CHARGED, _budget),
)


# --- the ladder's rungs --------------------------------------------------------------------------------------------

NO_ROOM = "the pool is too small to spare a suspect"


def _not_applicable(case: Case, rung: Rung) -> str:
    for condition in rung.when:
        if not HOLDS[condition](case):
            return CONDITIONS[condition]
    span = case.streak if rung.per == "streak" else case.faults
    taken = sum(fault.action == rung.action.value and fault.cause[0] == case.diagnosis.fault_class for fault in span)
    if rung.times is not None and taken >= rung.times:
        return f"done {taken} times {'without lasting progress' if rung.per == 'streak' else 'in this segment'}"
    return ""


def _not_possible(case: Case, rung: Rung, below: tuple[Rung, ...]) -> str:
    if rung.action is Action.RESTART_IN_PLACE:
        possible = case.can(Action.RESTART_IN_PLACE)
        return case.free_limit if possible else "no agent holds the nodes, or the backend can't"
    if rung.action is Action.RESUBMIT_EXCLUDING:
        return _not_excludable(case, rung)
    if rung.action is Action.BISECT:
        if HOLDS["after_bisect"](case):
            return "a bisect came right before"  # it is free: without this, an overridden ladder could do it for ever
        return "" if case.can_bisect else "not available"
    if rung.action is Action.RESUBMIT:
        if rung.stands_in and case.hang:
            return case.free_limit
        return "the last restart is kept for after the bisect" if _reserved(case, below) else ""
    return "" if case.can(rung.action) else "not available"


def _not_excludable(case: Case, rung: Rung) -> str:
    if not case.suspects:
        return "no suspects"
    if not case.can(Action.RESUBMIT_EXCLUDING):
        return "the backend can't exclude nodes"
    targets = _targets(case, rung)
    return "" if set(targets) & set(_capped(case, targets, ()).excluded) else NO_ROOM


def _reserved(case: Case, below: tuple[Rung, ...]) -> bool:
    if case.left != 1 or case.suspects or not case.can_bisect:
        return False
    return any(rung.action is Action.BISECT and not _not_applicable(case, rung) for rung in below)


def _no_pods(case: Case) -> str:
    if not case.situation.replaces_pods:
        return "the backend can't replace single pods"
    spent, budget = case.ledger.pod_restarts, case.policy.pod_restarts
    return "" if spent < budget else f"{spent} of {budget} pod restarts used"


def _targets(case: Case, rung: Rung) -> tuple[str, ...]:
    return case.seen_twice if "seen_twice" in rung.when else case.suspects


def _take(case: Case, rung: Rung) -> Verdict:
    what = wording.what(case)
    if rung.action is Action.RESTART_IN_PLACE:
        charged = "hang" if case.hang else "in_place"
        return Verdict(rung.action, f"{what}; restarting in place", charged, level="process")
    if rung.action is Action.FAIL:
        return _stop(case)
    if rung.action is Action.BISECT:
        return Verdict(rung.action, f"{what}; searching for the culprit by bisecting the nodes")
    if rung.action is Action.ASK:
        return Verdict(rung.action, f"{what}; asking a person: {wording.clip(case.diagnosis.text)}")
    waits = case.restarts_in_a_row() + rung.backoff
    if rung.action is Action.RESUBMIT_EXCLUDING:
        targets = _targets(case, rung)
        spared = set(_capped(case, targets, ()).excluded)
        out = tuple(node for node in targets if node in spared)
        text = f"{wording.suspected(targets)}; resubmitting without {wording.them(out, targets)}"
        return Verdict(rung.action, text, "restart", targets=targets, waits=waits)
    charged = "hang" if rung.stands_in and case.hang else "restart"
    return Verdict(rung.action, f"{what}; resubmitting", charged, waits=waits)


def _pod(case: Case) -> Verdict:
    return Verdict(Action.RESTART_IN_PLACE, f"{wording.what(case)}; replacing the pods that failed", "pod", level="pod")


def _stop(case: Case) -> Verdict:
    again = any(fault.cause[0] == case.diagnosis.fault_class for fault in case.faults)
    why = "again, after what could be tried" if again else "and running again does not cure that"
    suspects = f". {wording.suspected(case.suspects)}" if case.suspects else ""
    text = f"{wording.CLASSES[case.ladder_class]} {why}; stopping: {wording.clip(case.diagnosis.text)}{suspects}"
    return Verdict(Action.FAIL, text + wording.advice(case), final=False)
