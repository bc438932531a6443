"""A person is asked what is done next, in Airflow's own page for required actions.

Subject and options are the same for every question of a chain: Airflow keeps one question a task instance, and a second
one shows the first one's words (airflow-notes §11.6). What it is about stands in the chain. The task is parked without
a worker or a trigger; at the deadline the scheduler writes the default as the answer.

An answer within seconds of the question can be lost by Airflow (§11.1: the resume is misjudged as a dead task). A
worker can't read it, so the person is asked once more: nothing is done, and nothing charged, without an answer that
arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_ft.attempts.crash_points import current_run, reach
from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.record import write_answer
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Chain
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.switches import APPROVE, RESUBMIT, STOP, answered
from airflow_ft.operators.desk import TaskStateStore
from airflow_ft.operators.settings import job_from

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

    def _ask(self, context: Any, store: ChainStore) -> None:
        """Ask, and park the task."""
        chain = store.load()
        if chain is None or not is_open(chain.decision):
            return
        attempt = store.load_attempt(chain.attempts - 1)
        asked_at = attempt.ended_at if attempt is not None and attempt.ended_at is not None else _now()
        ask_person(context["ti"], chain, self.policy, asked_at, self.log)

    def person_answered(self, context: Any, event: Any = None) -> Any:
        """Take a person's answer (or the default, at the deadline): record first, raise second."""
        current_run.set(context["ti"].run_id)
        reach("answer.begin")
        store = ChainStore(TaskStateStore(context["task_state_store"]))
        chain = store.load()
        if chain is None or not is_open(chain.decision):
            self.log.warning("The answer is to no open question; looking at the job instead.")
            return self.execute(context)
        return self._take_answer(context, store, chain, event)

    def _take_answer(self, context: Any, store: ChainStore, chain: Chain, event: Any) -> Any:
        chain = record_answer(store, chain, event, self.policy, _now)
        assert chain.decision is not None
        self.log.warning("%s", chain.decision.reason)
        self._tell(context, store, chain)
        if chain.decision.action is Action.FAIL and chain.debts:
            backend = create_backend(job_from(self.job).backend)
            asyncio.run(pay_debts(backend, chain, store, self.policy.grace_seconds))
        raise TrainingFault(chain.decision) from None

    def execute(self, context: Any) -> Any:
        """Begin or go on (the operator's)."""
        raise NotImplementedError

    def _tell(self, context: Any, store: ChainStore, chain: Chain) -> Chain:
        raise NotImplementedError


def ask_person(ti: Any, chain: Chain, policy: FaultTolerancePolicy, asked_at: datetime, log: Any) -> None:
    """Park the task until a person has answered. Raises ``TaskAwaitingInput``, always."""
    from airflow.sdk.exceptions import TaskAwaitingInput
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    left = max(SHORTEST, asked_at + timedelta(seconds=policy.ask.timeout_seconds) - _now())
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


def record_answer(
    store: ChainStore, chain: Chain, event: Any, policy: FaultTolerancePolicy, now: Callable[[], datetime]
) -> Chain:
    """Write what an answer makes of the question in the chain. What can't be understood is the policy's default."""
    asked = chain.decision
    assert asked is not None
    answer, by = understood(event, policy)
    decision = answered(asked, answer, by, policy, now())
    return write_answer(store, chain, decision, now())


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


def _option(answer: str) -> str:
    return next(option for option, meant in OPTIONS.items() if meant == answer)


def _now() -> datetime:
    return datetime.now(timezone.utc)
