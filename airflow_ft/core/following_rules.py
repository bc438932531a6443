"""Following the user's rules: the first one whose pattern was seen says what is done, before the ladder."""

from __future__ import annotations

from airflow_ft.core import wording
from airflow_ft.core.decisions import Action
from airflow_ft.core.situation import Case
from airflow_ft.core.user_rules import RuleHit, UserRule
from airflow_ft.core.verdicts import Verdict, capped

LINE_KEPT = 160


def follow(case: Case) -> Verdict | str:
    """Return what the first rule wants that was set off, or why none holds."""
    rules = case.policy.rules
    if not rules:
        return "there are none"
    why = "none of their patterns was seen"
    for hit in case.situation.rule_hits:
        if hit.rule >= len(rules):
            continue
        answer = _one(case, rules[hit.rule], hit)
        if isinstance(answer, Verdict):
            return answer
        why = answer
    return why


def name_of(rule: UserRule, number: int) -> str:
    """Return what a rule is called. ``number`` is its place in the policy, from 0."""
    return rule.name or f"rule {number + 1}"


def _one(case: Case, rule: UserRule, hit: RuleHit) -> Verdict | str:
    name = name_of(rule, hit.rule)
    taken = sum(fault.rule == name for fault in case.faults)
    if rule.times is None or taken < rule.times:
        why_not = _impossible(case, rule.action, hit)
        if not why_not:
            return _verdict(case, rule.action, name, hit)
    else:
        why_not = f"done {taken} times in this segment"
    if rule.then != "ladder" and not _impossible(case, rule.then, hit):
        return _verdict(case, rule.then, name, hit)
    return f"{name}: {why_not}; the ladder follows"


def _impossible(case: Case, action: str, hit: RuleHit) -> str:
    if action == "exclude_node":
        targets = _targets(case, hit)
        if not targets:
            return "the line names no node, and there are no suspects"
        if not case.can(Action.RESUBMIT_EXCLUDING):
            return "the backend can't exclude nodes"
        soft = case.policy.exclusion.kind == "soft"
        return "" if soft or set(targets) & set(capped(case, targets, ()).excluded) else "the pool is too small"
    if action == "restart_in_place":
        return case.free_limit if case.can(Action.RESTART_IN_PLACE) else "a restart in place is not possible"
    if action == "bisect":
        return "" if case.can_bisect else "a bisect is not possible"
    return ""


def _targets(case: Case, hit: RuleHit) -> tuple[str, ...]:
    return (hit.node,) if hit.node else case.suspects


def _verdict(case: Case, action: str, name: str, hit: RuleHit) -> Verdict:
    line = wording.clip(hit.text)
    where = f"{hit.source}: " if hit.source else ""
    seen = f'Your {name} was set off by "{where}{line if len(line) <= LINE_KEPT else line[:LINE_KEPT] + "…"}"'
    waits = case.restarts_in_a_row()
    if action == "stop":
        return Verdict(Action.FAIL, f"{seen}; stopping{wording.advice(case)}", rule=name)
    if action == "ask":
        return Verdict(Action.ASK, f"{seen}; asking a person", rule=name)
    if action == "bisect":
        return Verdict(Action.BISECT, f"{seen}; searching for the culprit by bisecting the nodes", rule=name)
    if action == "restart_in_place":
        charged = "hang" if case.hang else "in_place"
        text = f"{seen}; restarting in place"
        return Verdict(Action.RESTART_IN_PLACE, text, charged, level="process", rule=name)
    if action == "exclude_node":
        targets = _targets(case, hit)
        text = f"{seen}; resubmitting without {wording.names(targets)}"
        return Verdict(Action.RESUBMIT_EXCLUDING, text, "restart", targets=targets, waits=waits, rule=name)
    return Verdict(Action.RESUBMIT, f"{seen}; resubmitting", "restart", waits=waits, rule=name)
