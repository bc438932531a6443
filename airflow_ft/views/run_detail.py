"""One run, opened: its fault, the evidence, the judgement, the decision, and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote, urlencode

from airflow_ft.agent.preflight_result import FAILED, parse
from airflow_ft.core.chain import Chain
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, StackPlace
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.preflight import SOURCE as PREFLIGHT
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.story import action_words, recovery_words
from airflow_ft.diagnosis.redaction import redact
from airflow_ft.views.chain_view import run_id
from airflow_ft.views.detail_models import Considered as ConsideredView
from airflow_ft.views.detail_models import (
    DecisionView,
    EvidenceView,
    Feedback,
    LedgerRow,
    Link,
    PreflightItem,
    RecoveryRow,
    RunDetail,
    StackView,
)
from airflow_ft.views.reckoning import loss_in_band, recovery_checks
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import Run, runs

LINE_LENGTH = 2_000  # of one line of a log; the rest is behind the link
PREFIX = "fault-tolerance"


def run_detail(stored: StoredChain, wanted: str, feedback: Feedback | None = None) -> RunDetail | None:
    """Return everything about the run with this id, or ``None`` if the chain has none."""
    found = runs(stored)
    index = next((n for n, run in enumerate(found) if run_id(run) == wanted), None)
    if index is None:
        return None
    run, following = found[index], found[index + 1] if index + 1 < len(found) else None
    links = _links(stored.chain, run)
    if run.incident is None:
        outcome = run.attempt.outcome
        text = outcome.text if outcome and outcome.text else "No fault in this run so far."
        return RunDetail(id=wanted, text=text[:LINE_LENGTH], nodes=run.nodes, facts=_facts(run), links=links)
    diagnosis, decision = run.incident.diagnosis, run.incident.decision
    listed = _ordered(diagnosis)
    return RunDetail(
        id=wanted,
        text=diagnosis.text[:LINE_LENGTH],
        where=diagnosis.root.source if diagnosis.root else "",
        evidence=tuple(_evidence(one) for one in listed if one.source != PREFLIGHT),
        stacks=tuple(_stack(place) for place in diagnosis.stacks),
        preflight=tuple(item for one in listed if one.source == PREFLIGHT for item in _items(one)),
        fault_class=run.fault_class,
        second_class=diagnosis.second_class.value if diagnosis.second_class else None,
        confidence=diagnosis.confidence,
        why=_why(diagnosis),
        suspects=tuple(f"{suspect.kind} {suspect.name}" for suspect in diagnosis.suspects),
        advice=diagnosis.advice,
        decision=_decision(decision, _ledger_before(found, index), stored.chain),
        nodes=run.nodes,
        changes=_changes(run, following),
        recovery=_recovery(stored, found, run, following),
        recovery_line=_loaded_line(following),
        next=_next(decision, run, following),
        links=links,
        facts=_facts(run),
        feedback=feedback,
    )


# --- evidence ----------------------------------------------------------------------------------------------------


def _ordered(diagnosis: Diagnosis) -> list[Evidence]:
    """The root line first, and nothing twice."""
    listed = [*([diagnosis.root] if diagnosis.root else []), *diagnosis.evidence]
    return list({(one.source, one.line, one.text, one.node, one.rank): one for one in reversed(listed)}.values())[::-1]


def _evidence(one: Evidence) -> EvidenceView:
    node = one.node if one.node and not one.source.startswith(one.node) else ""
    where = " · ".join(filter(None, (one.source, node, f"rank {one.rank}" if one.rank is not None else "")))
    return EvidenceView(
        role=one.role.value,
        source=where,
        text=redact(one.text[:LINE_LENGTH]),  # it was, when it was stored; an older version knew fewer kinds of tokens
        cut=len(one.text) > LINE_LENGTH or one.text.endswith("…"),
        at=one.at.timestamp() if one.at else None,
        line=one.line,
    )


def _stack(place: StackPlace) -> StackView:
    frames = tuple(redact(frame) for frame in place.frames)
    return StackView(who=place.who, odd=place.odd, stopped=place.stopped, frames=frames)


def _items(one: Evidence) -> list[PreflightItem]:
    """Return the items that a line of the preflight tells of; a line that was cut is shown as it is."""
    where, text = one.node or "", redact(one.text[:LINE_LENGTH])
    found = [
        PreflightItem(
            item=told.item, where=where, status=told.status, value=told.value, need=told.need, advice=told.advice
        )
        for told in parse(text)
    ]
    return found or [PreflightItem(item=text, where=where, status=FAILED, value="", need="", advice="")]


def _why(diagnosis: Diagnosis) -> tuple[str, ...]:
    said = []
    if diagnosis.signature and diagnosis.root:
        said.append(
            f"Signature {diagnosis.signature}, role {diagnosis.root.role.value}, seen in {diagnosis.root.source}."
        )
    elif diagnosis.root:
        said.append(f"No known signature; the line is the best that was found in {diagnosis.root.source}.")
    if diagnosis.disruption:
        said.append(f"A planned end ({diagnosis.disruption}): nobody's fault, not charged.")
    if diagnosis.at_start:
        said.append("All ranks failed within seconds of the start, before a first step.")
    nodes = diagnosis.suspect_nodes
    if nodes:
        said.append(f"{'Suspect' if len(nodes) == 1 else 'Suspects'}: {', '.join(nodes[:8])}.")
    said.append(
        {"useful": "Running again can help.", "useless": "Running again does not cure it."}.get(
            diagnosis.retry.value, "Whether running again helps is not known."
        )
    )
    return tuple(said)


# --- decision ----------------------------------------------------------------------------------------------------


def _decision(decision: Decision, before: Ledger, chain: Chain) -> DecisionView:
    after = decision.ledger
    rows = (
        ("restarts, charged", before.restarts, after.restarts, chain.max_restarts),
        ("unconditional, in a row", before.unconditional_streak, after.unconditional_streak, None),
        ("hang, in a row, free", before.hang_streak, after.hang_streak, None),
        ("in place and hang without progress, free", before.unprogressed, after.unprogressed, None),
        ("pods", before.pod_restarts, after.pod_restarts, None),
        ("disruptions, free", before.disruptions, after.disruptions, None),
    )
    words = action_words(decision)
    return DecisionView(
        action=decision.action.value,
        level=decision.level,
        text=words[0].upper() + words[1:],
        reason=decision.reason,
        delay=decision.delay,
        charged=decision.charged,
        ledger=tuple(
            LedgerRow(name=name, before=old, after=new, maximum=most)
            for name, old, new, most in rows
            if old or new or most is not None
        ),
        considered=tuple(
            ConsideredView(rule=one.rule, applied=one.applied, why=one.why) for one in decision.considered[:40]
        ),
    )


def _ledger_before(found: Sequence[Run], index: int) -> Ledger:
    """The ledger of the last decision of the same segment."""
    for run in reversed(found[:index]):
        if run.attempt.segment != found[index].attempt.segment:
            break
        if run.incident is not None:
            return run.incident.decision.ledger
    return Ledger()


def _changes(run: Run, following: Run | None) -> tuple[str, ...]:
    if following is None:
        return ("No further run.",)
    if following.attempt.segment != run.attempt.segment:
        return ("A person cleared the task: a new segment with fresh budgets.",)
    said = []
    if following.attempt.number == run.attempt.number:
        said.append("The same job and the same nodes; the command was started again.")
    else:
        said.append(f"Job {following.attempt.name} (was {run.attempt.name}).")
        new, gone = set(following.nodes) - set(run.nodes), set(run.nodes) - set(following.nodes)
        if following.nodes and run.nodes:
            said.append(
                f"Nodes in: {', '.join(sorted(new)[:8]) or 'none'}; out: {', '.join(sorted(gone)[:8]) or 'none'}."
            )
        else:
            said.append("Its nodes are not known yet.")
        if following.attempt.excluded_nodes:
            said.append(f"Avoided: {', '.join(following.attempt.excluded_nodes[:8])}.")
    if following.attempt.number != run.attempt.number and following.attempt.resume_from:
        said.append(f"FT_RESUME_FROM={following.attempt.resume_from}")
    said.append("The command and its settings are the same.")
    return tuple(said)


# --- recovery ----------------------------------------------------------------------------------------------------


def _recovery(stored: StoredChain, found: Sequence[Run], run: Run, following: Run | None) -> tuple[RecoveryRow, ...]:
    seen = run.recovery
    if seen is None:
        return ()
    checks = {check.name: check.ok for check in recovery_checks(stored, found, run)}
    saved = following.progress.checkpoint if following and following.progress else None
    path = following.progress.checkpoint_path if following and following.progress else None
    return (
        RecoveryRow(
            what="Checkpoint",
            before=f"{_n(seen.expected_checkpoint)} expected" if seen.expected_checkpoint else "none yet",
            after=_loaded(seen, checks["loaded"]),
            ok=checks["loaded"],
            note="the expected one" if checks["loaded"] else "",
        ),
        RecoveryRow(
            what="Step",
            before=f"died at {_n(seen.died_at_step)}",
            after=_passed(seen),
            ok=checks["step"],
            note=recovery_words(seen).lstrip("✓✗… "),
        ),
        RecoveryRow(
            what="Loss",
            before=_loss(seen.loss_before),
            after=_loss(seen.loss_after),
            ok=checks["loss"],
            note=_band(seen),
        ),
        RecoveryRow(
            what="New checkpoint",
            before="–",
            after=f"{_n(saved)} saved" if checks["saved"] else "none seen",
            ok=checks["saved"],
            note=path or "",
        ),
    )


def _loaded(seen: Recovery, right: bool | None) -> str:
    if seen.loaded_checkpoint:
        return f"{_n(seen.loaded_checkpoint)} loaded"
    return "from the beginning" if seen.expected_checkpoint == 0 or right is False else "not seen yet"


def _band(seen: Recovery) -> str:
    if seen.loss_before is None or seen.loss_after is None:
        return "not known"
    return "no worse than before" if loss_in_band(seen.loss_before, seen.loss_after) else "out of band"


def _passed(seen: Recovery) -> str:
    if seen.passed_step is None:
        return f"began at {_n(seen.first_step)}" if seen.first_step is not None else "no step yet"
    when = f" at {seen.passed_at:%H:%M:%S}" if seen.passed_at else ""
    return f"passed{when}, now {_n(seen.passed_step)}"


def _loaded_line(following: Run | None) -> str:
    progress = following.progress if following else None
    return progress.loaded_text[:LINE_LENGTH] if progress and progress.loaded_text else ""


def _n(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


# --- where to look next (mission S14) ----------------------------------------------------------------------------


def _next(decision: Decision, run: Run, following: Run | None) -> tuple[str, ...]:
    after = following.label if following else "the next attempt"
    expected = run.progress.checkpoint if run.progress and run.progress.checkpoint else None
    loaded = f"that checkpoint {expected:,} was loaded" if expected else "that it began where it should"
    if decision.action is Action.RESTART_IN_PLACE:
        return (f"Restarted in place: look at the running job's log and events for the restart, and {loaded}.",)
    if decision.action is Action.RESUBMIT:
        return (f"Resubmitted: look at attempt {after}: did it get its resources, and see {loaded}.",)
    if decision.action in (Action.RESUBMIT_EXCLUDING, Action.BISECT):
        out = ", ".join(decision.excluded_nodes[:8]) or "the suspects"
        return (
            f"Resubmitted without {out}: look at attempt {after}: is the suspect left out, does it wait longer for "
            f"nodes, and see {loaded}.",
            f"Then have {out} checked.",
        )
    if decision.action is Action.ASK:
        return ("A person is asked: answer in the task's required actions.",)
    return ("Stopped: read the fault text above and mend that first. Then clear the task; budgets start afresh.",)


def _links(chain: Chain, run: Run) -> tuple[Link, ...]:
    dag, of_run, task = (quote(part, safe="") for part in (chain.dag_id, chain.run_id, chain.task_id))
    mapped = f"/mapped/{chain.map_index}" if chain.map_index >= 0 else ""
    query = urlencode({"run_id": chain.run_id, "task_id": chain.task_id, "map_index": chain.map_index})
    number = run.attempt.number
    asked = run.incident is not None and run.incident.decision.action is Action.ASK
    here = f"dags/{dag}/runs/{of_run}/tasks/{task}{mapped}"
    question = (Link(text="Answer the question", href=f"{here}/required_actions"),) if asked else ()
    return (
        *question,
        Link(
            text=f"Log of try {run.attempt.try_number}",
            href=f"{here}?try_number={run.attempt.try_number}",
        ),
        Link(text=f"Training log of attempt {number}", href=f"{PREFIX}/log/{dag}?{query}&attempt={number}"),
        Link(text=f"Job {run.attempt.name}", href=f"{PREFIX}/job/{dag}?{query}&attempt={number}"),
    )


def _facts(run: Run) -> tuple[tuple[str, str], ...]:
    attempt, ref = run.attempt, run.attempt.ref
    checkpoint = run.progress.checkpoint_path if run.progress else None
    listed: list[tuple[str, str]] = [
        ("job", f"{attempt.name} ({ref.backend})" if ref else f"{attempt.name} (not submitted)"),
        ("submitted", _time(ref.submitted_at) if ref else "–"),
        ("nodes", ", ".join(run.nodes[:16]) + (" …" if len(run.nodes) > 16 else "") or "–"),
        ("checkpoint", checkpoint or "–"),
        ("log", attempt.log_path or "–"),
    ]
    return tuple((name, text[:LINE_LENGTH]) for name, text in listed if text != "–")


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
