"""Letting go of a job: it is stopped if it is ours. What somebody else has submitted is left alone, and that is said.

Every cancel of the supervisor comes through here: a try that ends, a person's clear, a debt, the collector.
"""

from __future__ import annotations

from airflow_ft.attempts.deadlines import CANCEL_MARGIN_SECONDS, limited
from airflow_ft.attempts.ports import Desk, WatchOrder
from airflow_ft.backends.base import Backend, BackendError, ForeignJobError
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import JobRef
from airflow_ft.core.policy_record import read_policy

CANCEL_TRIES = 5
CANCEL_PAUSE_SECONDS = 10.0


async def let_go(backend: Backend, ref: JobRef, grace: float, what: str) -> str:
    """Stop a job. Returns why it is left alone instead, in words; empty if nothing of it is left.

    Raises ``CancelIncompleteError`` or ``UnreachableError``: then the cancel is owed.
    """
    if ref.not_ours:
        return ref.not_ours
    try:
        await limited(backend.cancel(ref, grace), grace + CANCEL_MARGIN_SECONDS, what)
    except ForeignJobError as error:  # under the name is something else by now: there is nothing of ours to stop
        return str(error)
    return ""


async def cancel_for_person(order: WatchOrder, desk: Desk) -> None:
    """Stop the job because a person ended or cleared the task while it was deferred. Tries until it is gone."""
    backend, grace = create_backend(order.ref.backend), read_policy(order.policy).grace_seconds
    if order.ref.not_ours:
        desk.say(f"The task was ended or cleared; {order.ref.name} is left as it is: {order.ref.not_ours}.")
        return
    desk.say(f"The task was ended or cleared; stopping {order.ref.name}.")
    for left in reversed(range(CANCEL_TRIES)):
        try:
            alone = await let_go(backend, order.ref, grace, "stopping the job")
        except BackendError as error:
            desk.say(f"{order.ref.name} could not be stopped: {error} {left} tries left.", warning=True)
            await desk.sleep(CANCEL_PAUSE_SECONDS)
        else:
            desk.say(f"{order.ref.name} is left as it is: {alone}." if alone else f"{order.ref.name} is stopped.")
            return
    desk.say(f"Cancel owed: {order.ref.name} may still run. `airflow ft reap` collects it.", warning=True)
