"""A person is asked what is done next, in Airflow's own page for required actions.

Subject and options are the same for every question of a chain: Airflow keeps one question a task instance, and a second
one shows the first one's words (airflow-notes §11.6). What it is about stands in the chain. The task is parked without
a worker or a trigger, whether the job is held meanwhile or not: agents hold it by themselves, longer than the question
stands. At the deadline the scheduler writes the default as the answer.

An answer within seconds of the question can cost the try that would take it (§11.1: the resume is misjudged as a dead
task). It is not lost: Airflow keeps it with the question. A worker can't read it, so the next try defers for a moment
to a trigger that does (``triggers.answers``); only if there is none the person is asked once more.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from airflow_ft.attempts.crash_points import current_run, reach
from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.ports import Started, TryInfo
from airflow_ft.attempts.record import answer_question
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Chain
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.switches import APPROVE, RESUBMIT, STOP
from airflow_ft.operators.desk import TaskStateStore, now, try_info
from airflow_ft.operators.settings import job_from
from airflow_ft.triggers.answers import NOT_ANSWERED, AnswerTrigger

OPTIONS = {"Approve what is proposed": APPROVE, "Resubmit": RESUBMIT, "Stop": STOP}
SUBJECT = "Fault-tolerant training: what is done next?"
BODY = "The retry chain of this task says what happened and what is proposed. Without an answer the default holds."
METHOD = "person_answered"
SHORTEST = timedelta(seconds=30)  # a question that is asked once more is given at least so long


class AsksPeople:
    """What the operator needs to ask, and to take an answer. Its own attributes are the operator's."""

    policy: FaultTolerancePolicy
    job: Any
    log: Any
    deferrable: bool
    _try: TryInfo | None
    _live: Any

    def _ask(self, context: Any, store: ChainStore) -> None:
        """Ask, and park the task."""
        chain = store.load()
        if chain is not None and is_open(chain.decision):
            ask_person(context["ti"], chain, self.policy, asked_at(chain, store), self.log)

    def _ask_again(self, context: Any, store: ChainStore, info: TryInfo, quiet_seconds: float) -> None:
        """Look whether the question, which an earlier try has asked, was answered; else ask once more."""
        chain = store.load()
        if chain is None or not is_open(chain.decision):
            return
        if not self.deferrable:
            self._ask(context, store)  # there may be no triggerer
        look_for_answer(info, asked_at(chain, store), quiet_seconds, self.log)

    def person_answered(self, context: Any, event: Any = None) -> Any:
        """Take a person's answer (or the default, at the deadline): record first, act second."""
        try:
            return self._person_answered(context, event)
        finally:
            self._leave()

    def _person_answered(self, context: Any, event: Any) -> Any:
        current_run.set(context["ti"].run_id)
        reach("answer.begin")
        store = ChainStore(TaskStateStore(context["task_state_store"]))
        chain = store.load()
        if chain is None or not is_open(chain.decision):
            self.log.warning("The answer is to no open question; looking at the job instead.")
            return self.execute(context)
        if not_answered(event):
            self._ask(context, store)
        return self._take_answer(context, store, chain, event)

    def _take_answer(self, context: Any, store: ChainStore, chain: Chain, event: Any) -> Any:
        answer, by = understood(event, self.policy)
        chain = answer_question(store, chain, answer, by, self.policy, now())
        if chain.open is not None:
            return self._follow(context, store, chain)
        assert chain.decision is not None
        self.log.warning("%s", chain.decision.reason)
        self._tell(context, store, chain)
        if chain.decision.action is Action.FAIL and chain.debts:
            backend = create_backend(job_from(self.job).backend)
            asyncio.run(pay_debts(backend, chain, store, self.policy.grace_seconds))
        raise TrainingFault(chain.decision) from None

    def _follow(self, context: Any, store: ChainStore, chain: Chain) -> Any:
        """Watch the job that was held: the watch restarts it in place, or finds that it is held no more."""
        self.log.warning("%s", chain.events[-1].text)
        chain = self._tell(context, store, chain)
        attempt = store.load_attempt(chain.open if chain.open is not None else -1)
        if attempt is None:
            return self.execute(context)
        job, self._try = job_from(self.job), try_info(context)
        self._live = (create_backend(job.backend), job, attempt.name, chain.chain_id)
        return self._watch(context, store, chain, Started(attempt=attempt, adopted=True), self._try)

    def execute(self, context: Any) -> Any:
        """Begin or go on (the operator's)."""
        raise NotImplementedError

    def _watch(self, context: Any, store: ChainStore, chain: Chain, started: Started, info: TryInfo) -> Any:
        raise NotImplementedError

    def _leave(self) -> None:
        raise NotImplementedError

    def _tell(self, context: Any, store: ChainStore, chain: Chain) -> Chain:
        raise NotImplementedError


def ask_person(ti: Any, chain: Chain, policy: FaultTolerancePolicy, asked_at: datetime, log: Any) -> None:
    """Park the task until a person has answered. Raises ``TaskAwaitingInput``, always."""
    from airflow.sdk.exceptions import TaskAwaitingInput
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    left = max(SHORTEST, asked_at + timedelta(seconds=policy.ask.timeout_seconds) - now())
    proposed = chain.decision.proposed if chain.decision is not None else None
    log.warning("A person is asked. Proposed: %s", proposed.text if proposed is not None else "nothing")
    log.info("Answer in Airflow's page of required actions within %s; then: %s.", left, policy.ask.default)
    reach("ask.before_detail")
    upsert_hitl_detail(
        ti_id=ti.id,
        options=list(OPTIONS),
        subject=SUBJECT,
        body=BODY,
        defaults=[_option(policy.ask.default)],
        multiple=False,
        params={},
        assigned_users=None,
    )
    reach("ask.before_park")
    raise TaskAwaitingInput(method_name=METHOD, timeout=left)


def look_for_answer(info: TryInfo, asked: datetime, quiet_seconds: float, log: Any) -> None:
    """Defer to a trigger that reads what was answered to the question of ``asked``. Raises ``TaskDeferred``, always."""
    from airflow.sdk.exceptions import TaskDeferred

    log.info("A person was asked already; looking for the answer.")
    raise TaskDeferred(trigger=AnswerTrigger(info.to_record(), asked.isoformat(), quiet_seconds), method_name=METHOD)


def not_answered(event: Any) -> bool:
    """Whether an event says that nobody has answered yet: then the question is asked (once more)."""
    return isinstance(event, dict) and bool(event.get(NOT_ANSWERED))


def understood(event: Any, policy: FaultTolerancePolicy) -> tuple[str, str]:
    """Return the answer, and who gave it."""
    told = event if isinstance(event, dict) else {}
    chosen = told.get("chosen_options")
    known = [OPTIONS[one] for one in chosen if one in OPTIONS] if isinstance(chosen, list) else []
    if told.get("timedout") or len(known) != 1:
        return policy.ask.default, "Nobody answered in time; the default"
    user = told.get("responded_by_user")
    name = user.get("name") if isinstance(user, dict) else getattr(user, "name", None)
    return known[0], str(name or "A person")[:80]


def is_open(decision: Decision | None) -> bool:
    """Whether a decision is a question that nobody has answered."""
    return decision is not None and decision.action is Action.ASK


def asked_at(chain: Chain, store: ChainStore) -> datetime:
    """Return when the question that stands in the chain arose."""
    attempt = store.load_attempt(chain.attempts - 1)
    return attempt.ended_at if attempt is not None and attempt.ended_at is not None else now()


def _option(answer: str) -> str:
    return next(option for option, meant in OPTIONS.items() if meant == answer)
