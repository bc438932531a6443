"""The sentences of a chain: headline, what to do, and the six answers that people come for (mission S12, S14, S15).

Made once, here, for the tab, the page, Markdown and the lists. Say what happened, then the number; what isn't known is
said as "Not known yet". A resubmission is never called a recovery, a class never a cause, a node never the culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from airflow_ft.core.chain import Chain, End
from airflow_ft.core.decisions import Decision
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.story import WAITS, action_words, duration_words
from airflow_ft.views.models import Answer, Texts, Todo
from airflow_ft.views.reckoning import faulty_runs, lost_time, recovery_checks
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import DISRUPTION, Run

GATHER_FROM = 2  # faults, and half of all: one fault gathers nowhere
GATHER_SHARE = 0.5
SHORT = 150
ADVICE = 220


def texts(stored: StoredChain, found: Sequence[Run], now: datetime) -> Texts:
    """Return all sentences at the top of a chain."""
    return Texts(
        headline=headline(stored, found),
        sub=_sub(stored, found, now),
        todo=todo(stored, found),
        answers=(
            _began(found),
            _gather(found),
            _restarts(stored, found),
            _retry(found),
            _recovered(stored, found),
            _cost(stored, found, now),
        ),
    )


# --- headline ----------------------------------------------------------------------------------------------------


def headline(stored: StoredChain, found: Sequence[Run] = ()) -> str:
    """Say in one sentence where the chain stands; ``found`` may be left out where only the head was read."""
    chain, state, number = stored.chain, stored.state, max(0, stored.chain.attempts - 1)
    run = found[-1].label if found else str(number)
    if state == "succeeded":
        return _succeeded(chain)
    if state == "stopped by fault tolerance":
        return _stopped(chain, found)
    if state == "failed":
        return _failed(stored, number)
    if chain.open is None:
        return "No attempt has begun yet." if not chain.attempts else _between(chain)
    if state == "recovered":
        return f"Attempt {run} is training again, past {_old_step(stored, found)}."
    if state == "recovering":
        return _recovering(stored, found, run)
    if stored.live is None or stored.live.step is None:
        return f"Attempt {run} is starting up; no step seen yet."
    faulty = chain.faults or stored.live_incidents or any(run.incident for run in found)
    faults = "running" if faulty else "no fault so far"
    return f"Attempt {run}, {faults}. {_step(stored)}"


def _succeeded(chain: Chain) -> str:
    if chain.concluded is not End.SUCCEEDED:
        return "Marked as a success by a person. Fault tolerance did not decide this."
    step = f" at step {chain.highest_step:,}" if chain.highest_step is not None else ""
    return f"Done{step} after {_count(chain.attempts, 'attempt')}; {_used(chain)}."


def _stopped(chain: Chain, found: Sequence[Run]) -> str:
    reason = chain.decision.reason if chain.decision else ""
    last = next((run for run in reversed(found) if run.incident), None)
    if "budget used up" in reason:
        kind = last.fault_class if last else _last_class(chain)
        node = f" on {last.fault_node}" if last and last.fault_node else ""
        what = f", the last fault: {kind}{node}" if kind else ""
        return f"The budget is used up: {chain.ledger.restarts} of {chain.max_restarts} restarts{what}."
    return _first(reason) or "Stopped."


def _failed(stored: StoredChain, number: int) -> str:
    last = stored.attempts[-1].outcome if stored.attempts else None
    if stored.chain.open is not None:
        return f"Ended by a person or by Airflow while attempt {number} ran. Fault tolerance did not decide this."
    said = f": {_clip(last.text)}" if last and last.text else "."
    return f"Attempt {number} ended{said} Fault tolerance did not decide this."


def _between(chain: Chain) -> str:
    what = action_words(chain.decision) if chain.decision else "the next attempt"
    return f"Attempt {chain.attempts - 1} ended; next: {what}."


def _recovering(stored: StoredChain, found: Sequence[Run], run: str) -> str:
    live, old = stored.live, _old_step(stored, found)
    pending = _pending(found)
    if pending is not None and pending.state in ("from_scratch", "gap") and pending.text:
        return f"Attempt {run} is running, but {_lower(pending.text)}"
    if live is None or live.step is None:
        after = stored.chain.last_checkpoint
        return f"Attempt {run} is starting up{f' from checkpoint {after:,}' if after else ''}; no step seen yet."
    died = pending.died_at_step if pending is not None else None
    if died is not None and live.step > died:
        return f"Attempt {run} is past {old}, but was not seen to continue from the expected checkpoint."
    return f"Attempt {run} is at step {live.step:,}; recovered when it is past {old}."


def _old_step(stored: StoredChain, found: Sequence[Run]) -> str:
    faulty = next((run for run in reversed(found) if run.incident), None)
    if faulty is not None and faulty.progress is not None and faulty.progress.step is not None:
        return f"step {faulty.progress.step:,} where attempt {faulty.label} died"
    progress = stored.live_incidents[-1].progress if stored.live_incidents else None
    step = progress.step if progress else stored.chain.faults[-1].step if stored.chain.faults else None
    return f"step {step:,} where the last one died" if step is not None else "the point where the last one died"


def _step(stored: StoredChain) -> str:
    live = stored.live
    if live is None or live.step is None:
        return ""
    return f"Step {live.step:,}{f' of {live.total:,}' if live.total else ''}."


def _sub(stored: StoredChain, found: Sequence[Run], now: datetime) -> str:
    chain, last = stored.chain, found[-1] if found else None
    ended = now if stored.live_now else (last.ended if last and last.ended else now)
    nodes = len(last.nodes) if last else 0
    parts = [
        _step(stored).rstrip("."),
        f"{_count(chain.attempts, 'attempt')} in {duration_words(ended - chain.created_at)}",
        f"highest step {chain.highest_step:,}" if chain.highest_step is not None and not _step(stored) else "",
        _count(nodes, "node") if nodes else "",
        f"segment {chain.segment}, begun by a person" if chain.segment else "",
    ]
    return " · ".join(part for part in parts if part)


# --- what to do --------------------------------------------------------------------------------------------------


def todo(stored: StoredChain, found: Sequence[Run]) -> Todo:
    """Say what a person has to do now: nothing, something soon, something at once."""
    state = stored.state
    last = next((run for run in reversed(found) if run.incident), None)
    suspects = _suspects(found)
    if state == WAITS:
        return Todo(tone="warn", text="Answer the question in the task's required actions: nothing is done before.")
    if stored.chain.debts:
        debt = stored.chain.debts[-1]
        return Todo(tone="bad", text=f"Stop what is left: job {debt.ref.name} may still run. airflow ft reap does it.")
    if state == "stopped by fault tolerance":
        advice = last.incident.diagnosis.advice if last and last.incident else ""
        return Todo(
            tone="bad",
            text=f"{_clip(advice, ADVICE) or 'Read the fault below.'} Then clear the task; budgets start afresh.",
        )
    if state == "failed":
        return Todo(tone="bad", text="Look who ended it in the audit log; clear the task to go on from its checkpoint.")
    if state == "recovering":
        pending = _pending(found)
        if pending is not None and pending.state in ("from_scratch", "gap"):
            return Todo(tone="warn", text="Look at its log: the checkpoint that was expected was not continued from.")
        return Todo(tone="calm", text="Nothing yet. Look again when it should have passed the old step.")
    if suspects:
        many = f"{suspects[0][0]} ({suspects[0][1]} of {suspects[1]} faults)"
        return Todo(tone="warn" if suspects[0][1] > 1 else "calm", text=f"Nothing tonight. Have {many} checked.")
    return Todo(tone="calm", text="Nothing.")


def _suspects(found: Sequence[Run]) -> tuple[tuple[str, int], int] | None:
    blamed = Counter(node for run in found if run.incident for node in run.incident.diagnosis.suspect_nodes)
    most = blamed.most_common(1)
    return (most[0], len(faulty_runs(found))) if most else None


# --- the six answers ---------------------------------------------------------------------------------------------


def _began(found: Sequence[Run]) -> Answer:
    faulty = faulty_runs(found)
    if not faulty:
        return Answer(key="began", label="Began to fail", value="It has not failed", detail="no fault so far")
    first = faulty[0]
    step = first.progress.step if first.progress else None
    at = first.died_at or first.started
    value = f"Attempt {first.label}, {_when(at, found)}, {f'at step {step:,}' if step is not None else 'before a step'}"
    others = [run.label for run in faulty[1:]]
    more = f"{', '.join(others)} failed too" if 0 < len(others) < 5 else f"then {len(others)} more" if others else ""
    holding = found[-1] if found[-1].incident is None and found[-1].live else None
    detail = " · ".join(part for part in (more, f"{holding.label} holds" if holding else "") if part)
    return Answer(
        key="began",
        label="Began to fail",
        value=value,
        detail=detail or "the only fault",
        fault_class=first.fault_class,
    )


def _gather(found: Sequence[Run]) -> Answer:
    faulty = [run for run in faulty_runs(found) if run.fault_class != DISRUPTION]
    nodes = Counter(run.fault_node for run in faulty if run.fault_node)
    classes = Counter(run.fault_class or "" for run in faulty)
    steps = Counter(run.progress.step for run in faulty if run.progress and run.progress.step is not None)
    where: list[str] = []
    for counts, word in ((nodes, "On {}"), (steps, "On step {:,}"), (classes, "On {}")):
        for name, count in counts.most_common(1):
            if count >= GATHER_FROM and count >= GATHER_SHARE * len(faulty):
                where.append(f"{word.format(name)}: {count} of {len(faulty)} faults")
    detail = f"{_count(len(classes), 'class', 'classes')} · {_count(len(nodes), 'node')}"
    if where:
        return Answer(
            key="gather", label="Faults gather", value=where[0], detail=" · ".join(where[1:]) or detail, tone="warn"
        )
    value = "No fault" if not faulty else "One fault only" if len(faulty) == 1 else "No two on one node or of one class"
    most = [(count, name) for counts in (nodes, classes) for name, count in counts.most_common(1) if count > 1]
    if most:
        value = f"Nowhere in particular; most on {max(most)[1]}: {max(most)[0]} of {len(faulty)}"
    return Answer(key="gather", label="Faults gather", value=value, detail=detail if faulty else "")


def _restarts(stored: StoredChain, found: Sequence[Run]) -> Answer:
    chain = stored.chain
    ledger = found[-1].after.ledger if found and found[-1].after and stored.live_now else chain.ledger
    used, most = ledger.restarts, chain.max_restarts
    mine = [run for run in faulty_runs(found) if run.attempt.segment == chain.segment]
    free = Counter(run.incident.decision.charged for run in mine if run.incident)
    words = {"hang": "hang", "in_place": "in place", "disruption": "disruption", "pod": "pod"}
    not_charged = ", ".join(f"{free[key]} {word}" for key, word in words.items() if free[key])
    left = max(0, most - used)
    stopped = stored.state == "stopped by fault tolerance"
    value = (
        "Switched off" if most == 0 else f"{used} of {most} used, {left} left{' unspent' if stopped and left else ''}"
    )
    by_rule = "stopped by a rule, not by the budget" if stopped and left else ""
    detail = " · ".join(filter(None, (by_rule, f"not charged: {not_charged}" if not_charged else "")))
    return Answer(
        key="restarts",
        label="Restarts",
        value=value,
        detail=detail,
        tone="bad" if most and not left else None,
        used=(used, most),
    )


def _retry(found: Sequence[Run]) -> Answer:
    retries = [(run, before, run.after) for before, run in pairwise(found) if run.after is not None]
    if not retries:
        value = "None; cleared by a person" if len(found) > 1 else "None yet"
        return Answer(key="retry", label="Last retry", value=value)
    run, before, came = retries[-1]
    value = decision_words(came)
    new = [node for node in run.nodes if node not in before.nodes] if run.nodes and before.nodes else None
    if new is None:
        nodes = "nodes not known yet"
    elif new:
        nodes = f"new {'node' if len(new) == 1 else 'nodes'}: {_names(new)}"
    else:
        nodes = "no new nodes"
    out = f" ({_names(came.excluded_nodes)} out)" if came.excluded_nodes else ""
    return Answer(key="retry", label=f"Last retry ({run.label})", value=value, detail=f"{nodes}{out} · same config")


def _recovered(stored: StoredChain, found: Sequence[Run]) -> Answer:
    label = "Really recovered?"
    faulty = faulty_runs(found)
    if not faulty:
        return Answer(key="recovered", label=label, value="Nothing to recover from")
    last = faulty[-1]
    seen = last.recovery
    if seen is None:
        stopped = stored.state in ("stopped by fault tolerance", "failed")
        value = "No, nothing ran after it" if stopped else "Not known yet"
        return Answer(key="recovered", label=label, value=value, tone="bad" if stopped else None, detail=_ratio(faulty))
    checks = recovery_checks(stored, found, last)
    good = sum(check.ok is True for check in checks)
    if seen.state == "recovered":
        value = f"Yes, {good} of {len(checks)} checks" if good == len(checks) else f"Yes; {good} of {len(checks)} seen"
        tone = "ok"
    elif seen.state == "pending" and stored.live_now:
        step = f": waits for step {seen.died_at_step + 1:,}" if seen.died_at_step is not None else ""
        return Answer(key="recovered", label=label, value=f"Not known yet{step}", checks=checks, detail=_ratio(faulty))
    else:
        value, tone = (
            {
                "from_scratch": "No, it began anew",
                "gap": "No, steps were skipped",
                "pending": "It was never seen",
            }.get(seen.state, "No, it did not pass the old step"),
            "bad",
        )
    return Answer(key="recovered", label=label, value=value, tone="ok" if tone == "ok" else "bad", checks=checks)


def _ratio(faulty: Sequence[Run]) -> str:
    before = [run for run in faulty[:-1] if run.recovery is not None]
    if not before:
        return ""
    good = sum(run.recovery is not None and run.recovery.state == "recovered" for run in before)
    return f"{good} of {len(before)} before did"


def _cost(stored: StoredChain, found: Sequence[Run], now: datetime) -> Answer:
    lost, twice = lost_time(stored, found, now)
    end = now if stored.live_now else (found[-1].ended or now if found else now)
    whole = (end - stored.chain.created_at).total_seconds()
    share = f"{100 * lost / whole:.0f} % of {duration_words(timedelta(seconds=whole))}" if whole > 0 else ""
    value = f"{duration_words(timedelta(seconds=lost))} without new steps" if lost >= 1 else "Nothing lost"
    steps = f"{_count(twice, 'step')} done twice" if twice else "no step done twice"
    return Answer(key="cost", label="Cost so far", value=value, detail=" · ".join(filter(None, (share, steps))))


# --- words -------------------------------------------------------------------------------------------------------


def _pending(found: Sequence[Run]) -> Recovery | None:
    faulty = faulty_runs(found)
    return faulty[-1].recovery if faulty else None


def _last_class(chain: Chain) -> str | None:
    return chain.faults[-1].cause[0] if chain.faults else None


def _used(chain: Chain) -> str:
    return f"{chain.ledger.restarts} of {chain.max_restarts} restarts used"


def _when(at: datetime, found: Sequence[Run]) -> str:
    whole = (found[-1].ended or found[-1].started) - found[0].started
    return f"{at:%H:%M}" if whole < timedelta(hours=20) else f"{at.day} {at:%b %H:%M}"


def _count(number: int, word: str, many: str = "") -> str:
    return f"{number:,} {word if number == 1 else many or word + 's'}"


def _names(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _first(text: str) -> str:
    """The first sentence, or as much of it as can be read at a glance."""
    head = text.split(". ")[0]
    return _clip(head)


def _clip(text: str, most: int = SHORT) -> str:
    text = " ".join(text.split())
    cut = text if len(text) <= most else f"{text[: most - 1].rsplit(' ', 1)[0]}…"
    return cut if not cut or cut.endswith((".", "!", "?", "…")) else f"{cut}."


def decision_words(decision: Decision) -> str:
    """Say a decision as the lane and the table do: "Resubmit without n2 after 30 s"."""
    words = action_words(decision)
    delay = f" after {duration_words(timedelta(seconds=decision.delay))}" if decision.delay else ""
    return words[0].upper() + words[1:] + delay
