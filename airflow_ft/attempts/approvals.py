"""Approvals: a restart in place that a person has approved while the job was held.

The answer is recorded by the worker, in the incident that the question is about (``record.answer_question``); the watch
that takes the job up again finds it there and carries it out, with the same orders as any restart in place. Only then
is it known whether the nodes are still held, so only then is it charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_ft.core.chain import Incident
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.switches import followed


def approved_question(known: Sequence[Incident], generation: int, step: int | None = None) -> Incident | None:
    """Return the question about a generation whose approval is to be carried out.

    :param step: where training is now. If it made further steps by itself since, it is another fault: none is returned.
    """
    for one in known:
        if one.generation == generation and one.decision.action is Action.ASK and one.decision.answer:
            then = one.progress.step if one.progress else None
            return None if step is not None and then is not None and step > then else one
    return None


def carried_out(approved: Incident, policy: FaultTolerancePolicy, now: datetime, *, possible: bool) -> Incident:
    """Return the incident with the decision that its approval comes to.

    :param possible: whether the nodes are still held, so that training can be restarted in place.
    """
    return approved.decided(followed(approved.decision, approved.generation + 1 if possible else None, policy, now))
