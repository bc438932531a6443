"""Climbing the ladder: which rung applies, is not used up and is possible now (``ladder`` has the theory)."""

from __future__ import annotations

from dataclasses import replace

from airflow_ft.core import wording
from airflow_ft.core.decisions import Action, Considered
from airflow_ft.core.ladder import CONDITIONS, Rung
from airflow_ft.core.situation import HOLDS, Case
from airflow_ft.core.verdicts import Verdict, capped

NO_ROOM = "the pool is too small to spare a suspect"


def climb(case: Case) -> Verdict:
    """Return what the first rung wants that can be taken; past the last one it stops."""
    rungs = case.rungs
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


def _not_applicable(case: Case, rung: Rung) -> str:
    for condition in rung.when:
        if not HOLDS[condition](case):
            return CONDITIONS[condition]
    if rung.times is None:
        return ""
    span = case.streak if rung.per == "streak" else case.faults
    action, name = rung.action.value, case.diagnosis.fault_class.value
    taken = sum(fault.action == action and fault.cause[0] == name for fault in span)
    if taken >= rung.times:
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
    if case.policy.exclusion.kind == "soft":
        return ""  # a preference never makes a retry unschedulable
    return "" if set(targets) & set(capped(case, targets, ()).excluded) else NO_ROOM


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
        soft = case.policy.exclusion.kind == "soft"
        spared = set(targets if soft else capped(case, targets, ()).excluded)
        out = tuple(node for node in targets if node in spared)
        how = "rather without" if soft else "without"
        text = f"{wording.suspected(targets)}; resubmitting {how} {wording.them(out, targets)}"
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
