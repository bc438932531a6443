"""Record: what one try came to is written into the chain, before anything is raised or returned.

The attempt's own record is the commit (``store`` says why); ``taken`` folds it into the chain's head and is pure, so
that the next try does exactly the same if this one dies in between.
"""

from __future__ import annotations

from datetime import datetime

from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.faults import PersonNeededError, TrainingFault
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import Attempt, AttemptState, Chain, ChainEvent, Debt, End, Outcome
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.progress import Progress
from airflow_ft.core.story import fault_sentence, outcome_sentence
from airflow_ft.core.switches import answered

FAULTS_KEPT = 64
EVENTS_KEPT = 40

# The kinds of chain events. Those in NOTIFIED are worth a person's attention; the others are only history.
TRY_LOST, ADOPTED, CLEARED, FAULT, STOPPED, SUCCEEDED, DEBT, NOTICE = (
    "try_lost",
    "adopted",
    "cleared",
    "fault",
    "stopped",
    "succeeded",
    "cancel_owed",
    "notice",
)
ANSWERED = "answered"
ENDED_OUTSIDE = "The task was ended from outside."  # how an attempt ends that no try has seen to its end
NOTIFIED = frozenset({FAULT, STOPPED, SUCCEEDED, DEBT, "hang_notice"})


def with_event(chain: Chain, at: datetime, kind: str, text: str, attempt: int | None = None) -> Chain:
    """Return the chain with one more event."""
    event = ChainEvent(id=chain.next_event, at=at, kind=kind, text=text, attempt=attempt, try_number=chain.try_number)
    return chain.but(events=(*chain.events, event)[-EVENTS_KEPT:], next_event=chain.next_event + 1)


def write_conclusion(store: ChainStore, chain: Chain, attempt: Attempt, conclusion: Conclusion) -> Chain:
    """Write the end of the open attempt. Returns the chain's new head; writing the same twice changes nothing."""
    concluded = attempt.but(
        state=AttemptState.CONCLUDED,
        ended_at=conclusion.ended_at,
        progress=conclusion.progress,
        incidents=conclusion.incidents,
        recovery=conclusion.recovery,
        outcome=conclusion.outcome,
        nodes=conclusion.nodes or attempt.nodes,
        fenced=conclusion.stopped,
        log_path=conclusion.log_path or attempt.log_path,
        debts=conclusion.debts,
        notices=conclusion.notices,
    )
    reach("record.before_attempt")
    store.save_attempt(concluded)
    reach("record.between")
    chain = taken(chain, concluded)
    store.save(chain)
    reach("record.after")
    return chain


def write_interim(store: ChainStore, chain: Chain, attempt: Attempt, so_far: Conclusion) -> tuple[Chain, Attempt]:
    """Write what a watch has handed over of an attempt that goes on: its incidents and notices become events."""
    attempt = attempt.but(incidents=so_far.incidents, notices=so_far.notices, progress=so_far.progress)
    attempt = attempt.but(nodes=so_far.nodes or attempt.nodes, recovery=so_far.recovery)
    reach("interim.before_attempt")
    store.save_attempt(attempt)
    reach("interim.between")
    chain = _with_news(chain, attempt)
    store.save(chain)
    return chain, attempt


def _with_news(chain: Chain, attempt: Attempt) -> Chain:
    """Return the chain with an event for each notice and incident of the open attempt that it doesn't have yet."""
    heard, told = chain.told_notice_at, chain.told_generation
    for notice in attempt.notices:
        if heard is None or notice.at > heard:
            chain = with_event(chain, notice.at, notice.kind, notice.text, attempt.number)
    for incident in attempt.incidents:
        if incident.generation > told:
            kind = NOTICE if incident.again else STOPPED if incident.decision.action is Action.FAIL else FAULT
            chain = with_event(chain, incident.detected_at, kind, fault_sentence(incident), attempt.number)
    return chain.but(
        told_notice_at=max([one.at for one in attempt.notices], default=heard),
        told_generation=max([told, *(one.generation for one in attempt.incidents)]),
    )


def ended_outside(
    chain: Chain, attempt: Attempt, text: str, progress: Progress | None, at: datetime
) -> tuple[Attempt, Chain]:
    """Close the open attempt, of which nothing is left, because a person ended or cleared its task."""
    attempt = attempt.but(
        state=AttemptState.CONCLUDED,
        outcome=Outcome(end=End.CANCELLED, text=text),
        progress=progress or attempt.progress,
        ended_at=at,
        fenced=True,
    )
    return attempt, taken(chain, attempt)


def taken(chain: Chain, attempt: Attempt) -> Chain:
    """Fold a concluded attempt into the chain's head."""
    decision, outcome = attempt.decision, attempt.outcome
    last = attempt.incidents[-1].decision if attempt.incidents else None  # a restart in place costs, too
    at = attempt.ended_at or attempt.created_at
    chain = _with_news(chain, attempt)
    if outcome is not None and outcome.end is End.SUCCEEDED:
        chain = with_event(chain, at, SUCCEEDED, outcome_sentence(attempt), attempt.number)
    for debt in attempt.debts:
        kind, text = (NOTICE, f"{debt.ref.name} is {debt.why}.") if debt.held else (DEBT, debt_sentence(debt))
        chain = with_event(chain, debt.since, kind, text, attempt.number)
    seen = [p for p in (attempt.progress, *(i.progress for i in attempt.incidents)) if p is not None]
    past = tuple(i.past for i in attempt.incidents if i.past is not None)
    saved = [(chain.last_checkpoint, chain.last_checkpoint_path), *((p.checkpoint, p.checkpoint_path) for p in seen)]
    last_checkpoint = _highest([checkpoint for checkpoint, _ in saved])
    return chain.but(
        open=None,
        told_generation=-1,
        told_notice_at=None,
        debts=(*chain.debts, *attempt.debts),
        concluded=outcome.end if outcome else End.UNKNOWN,
        decision=decision,
        ledger=last.ledger if last else chain.ledger,
        excluded_nodes=last.excluded_nodes if last else chain.excluded_nodes,
        soft_nodes=last.soft_nodes if last else chain.soft_nodes,
        faults=(*chain.faults, *past)[-FAULTS_KEPT:],
        good=attempt.ref if any(p.step is not None for p in seen) else chain.good,
        highest_step=_highest([chain.highest_step, *(p.step for p in seen)]),
        last_checkpoint=last_checkpoint,
        last_checkpoint_path=next((path for at, path in reversed(saved) if path and at == last_checkpoint), None),
    )


def answer_question(
    store: ChainStore, chain: Chain, answer: str, by: str, policy: FaultTolerancePolicy, now: datetime
) -> Chain:
    """Write what a person's answer makes of the question that stands in the chain. Returns the chain's new head.

    Its cost is charged here, once; but a job that is held, and whose restart in place is approved, is open again
    afterwards: its watch carries that out, and charges it. The head is the commit: it holds the question or the answer.
    A crash before it asks the person once more.
    """
    number = chain.attempts - 1
    attempt, asked = store.load_attempt(number), chain.decision
    assert asked is not None
    held = attempt is not None and any(debt.ref == attempt.ref for debt in chain.debts)
    decision = answered(asked, answer, by, policy, now, held=held)
    if attempt is not None and decision.action is Action.ASK:
        return _reopened(store, chain, attempt, decision, now)
    if attempt is not None and attempt.incidents:
        *before, last = attempt.incidents
        store.save_attempt(attempt.but(incidents=(*before, last.decided(decision))))
    reach("answer.between")
    faults = chain.faults
    if faults:
        faults = (*faults[:-1], faults[-1].but(action=decision.action.value, charged=decision.charged))
    chain = with_event(chain, now, ANSWERED, decision.reason, number).but(
        decision=decision,
        ledger=decision.ledger,
        excluded_nodes=decision.excluded_nodes,
        soft_nodes=decision.soft_nodes,
        faults=faults,
    )
    store.save(chain)
    reach("answer.after")
    return chain


def _reopened(store: ChainStore, chain: Chain, attempt: Attempt, approved: Decision, now: datetime) -> Chain:
    """Take an attempt that was held for a person out of what is over: what ``taken`` folded into the head goes."""
    incidents = (*attempt.incidents[:-1], attempt.incidents[-1].but(decision=approved))
    folded = sum(one.past is not None for one in incidents)
    store.save_attempt(
        attempt.but(
            state=AttemptState.SUBMITTED, outcome=None, ended_at=None, fenced=False, debts=(), incidents=incidents
        )
    )
    reach("answer.between")
    chain = with_event(chain, now, ANSWERED, approved.reason, attempt.number).but(
        open=attempt.number,
        concluded=None,
        decision=None,
        faults=chain.faults[: len(chain.faults) - folded],
        debts=tuple(debt for debt in chain.debts if debt.ref != attempt.ref),
        told_generation=max(one.generation for one in incidents),
        told_notice_at=max((one.at for one in attempt.notices), default=None),
    )
    store.save(chain)
    reach("answer.after")
    return chain


def debt_sentence(debt: Debt) -> str:
    """Say that a job could not be stopped."""
    return f"Cancel owed: {debt.ref.name}: {debt.why.rstrip('. ')}."


def _highest(steps: list[int | None]) -> int | None:
    return max((step for step in steps if step is not None), default=None)


def replay(chain: Chain) -> bool:
    """Do again what was decided about the last attempt. Returns whether training has succeeded already.

    Airflow can lose the result of a correct ``execute_complete`` and run the try again; the decision stands in the
    chain. Raises ``TrainingFault`` for a decision to stop, ``PersonNeededError`` for a question without an answer.
    Returns ``False`` when the next attempt is due.
    """
    if chain.open is not None or chain.concluded is None:
        return False
    if chain.concluded is End.SUCCEEDED:
        return True
    if chain.decision is not None and chain.decision.action is Action.FAIL:
        raise TrainingFault(chain.decision)
    if chain.decision is not None and chain.decision.action is Action.ASK:
        raise PersonNeededError(chain.decision)
    return False
