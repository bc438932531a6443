"""The chain in words. Sentences are made here, once, for the log, the terminal, notifications and the UI.

Say what happened, then the number. A resubmission is never called a recovery; a class is never called a cause
("taken for"); a node is never blamed ("suspect").
"""

from __future__ import annotations

from datetime import timedelta

from airflow_ft.core.chain import Attempt, Chain, End, Incident
from airflow_ft.core.decisions import UNTOUCHED, Action, Decision
from airflow_ft.core.recovery import Recovery

ACTION_WORDS = {
    Action.RESTART_IN_PLACE: "restart in place",
    Action.RESUBMIT: "resubmit",
    Action.RESUBMIT_EXCLUDING: "resubmit without {nodes}",
    Action.BISECT: "bisect",
    Action.ASK: "ask a person",
    Action.FAIL: "stop",
}

WAITS = "waits for a person"  # the state of a chain whose question has no answer yet

RECOVERY_WORDS = {
    "pending": "… not known yet",
    "recovered": "✓ recovered",
    "from_scratch": "✗ restarted from the beginning",
    "gap": "✗ steps were skipped",
    "failed": "✗ not recovered",
}


def action_words(decision: Decision) -> str:
    """Say what is done: "restart in place", "resubmit without n2"."""
    if decision.level == UNTOUCHED:
        return "nothing: it is not ours"
    return ACTION_WORDS[decision.action].format(nodes=", ".join(decision.excluded_nodes) or "the suspects")


def fault_sentence(incident: Incident) -> str:
    """Say what happened in one fault, and what was done."""
    step = f" at step {incident.progress.step:,}" if incident.progress and incident.progress.step is not None else ""
    kind = incident.diagnosis.disruption or incident.diagnosis.fault_class.value
    return f"Attempt {incident.attempt}{step}: {kind}: {incident.diagnosis.text} → {action_words(incident.decision)}."


def outcome_sentence(attempt: Attempt) -> str:
    """Say how an attempt ended."""
    if attempt.outcome is None:
        return f"Attempt {attempt.number} is running."
    return f"Attempt {attempt.number} {attempt.outcome.end.value.replace('_', ' ')}: {attempt.outcome.text}"


def recovery_words(recovery: Recovery | None) -> str:
    """Say whether training really recovered."""
    if recovery is None:
        return ""
    word = RECOVERY_WORDS.get(recovery.state, recovery.state)
    return f"{word}. {recovery.text}".strip() if recovery.text else word


def duration_words(span: timedelta) -> str:
    """Say a duration with at most two units: "12 m 47 s"."""
    seconds = max(0, round(span.total_seconds()))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    units = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    said = [f"{count} {unit}" for count, unit in units if count][:2]
    return " ".join(said) or "0 s"


def state_word(chain: Chain, recovery: str | None = None) -> str:
    """Return the chain's state in one word or two: the badge. ``recovery`` is the state of the newest recovery."""
    if chain.open is not None:
        if recovery is None:
            return "recovering" if chain.faults else "running"
        return "recovered" if recovery == "recovered" else "recovering"
    if chain.concluded is End.SUCCEEDED:
        return "succeeded"
    if chain.decision is not None and chain.decision.action is Action.FAIL:
        return "failed" if chain.decision.level == UNTOUCHED else "stopped by fault tolerance"
    if chain.decision is not None and chain.decision.action is Action.ASK:
        return WAITS
    return "recovering" if chain.concluded is not None else "starting"
