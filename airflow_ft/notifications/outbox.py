"""The outbox: each chain event that is worth a person's attention is sent once.

The event's id is written before it is sent. If the process dies in between, the next try can't know whether the message
went out; it sends it again and says so, because a page that comes twice is better than one that never comes. Receivers
that can tell duplicates apart have ``context["ft_event"]["key"]``, the same for both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from airflow.sdk.bases.notifier import BaseNotifier

from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.handing_on import told_of
from airflow_ft.attempts.record import NOTIFIED
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import Chain, ChainEvent

TEXT_LENGTH = 400  # what a phone shows of a message without being asked for more; the page has the rest


def send_due(
    notifiers: Sequence[Callable[[Any], Any]], context: Any, store: ChainStore, chain: Chain, log: Any
) -> Chain:
    """Send what hasn't been sent. A notifier that fails is logged: it never changes the task's result.

    Each gets the task's context, with ``ft_event`` (``message``) and ``ft_attempt``, the fields of ``StageAttempt``.
    """
    due = [event for event in chain.events if event.id > chain.notified and event.kind in NOTIFIED]
    for event in due if notifiers else []:
        repeated = chain.sending == event.id
        chain = chain.but(sending=event.id)
        store.save(chain)
        reach("notify.before_send")
        attempt = store.load_attempt(event.attempt) if event.attempt is not None else None
        news = {"ft_event": message(chain, event, repeated), "ft_attempt": told_of(chain, attempt, event).to_xcom()}
        for notifier in notifiers:
            try:
                _fresh(notifier)({**context, **news})
            except Exception:
                log.exception("A notifier failed; the training is not affected.")
        chain = chain.but(notified=event.id)
        store.save(chain)
        reach("notify.after_send")
    return chain


def message(chain: Chain, event: ChainEvent, repeated: bool = False) -> dict[str, Any]:
    """Return what a notifier gets: a text to read on a phone, and the facts."""
    task = f"{chain.dag_id}.{chain.task_id}" + (f"[{chain.map_index}]" if chain.map_index >= 0 else "")
    budget = f"{chain.ledger.restarts} of {chain.max_restarts} restarts used."
    again = " (may have been sent before)" if repeated else ""
    room = TEXT_LENGTH - len(task) - len(budget) - len(again) - 3
    return {
        "key": f"{chain.chain_id}/{event.id}",
        "kind": event.kind,
        "text": f"{task}: {_cut(event.text, max(80, room))} {budget}{again}",
        "at": event.at.isoformat(),
        "attempt": event.attempt,
        "restarts": chain.ledger.restarts,
        "max_restarts": chain.max_restarts,
        "run_id": chain.run_id,
        "map_index": chain.map_index,
    }


def _fresh(notifier: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a copy of an Airflow notifier: it renders its templates into itself, and would say the same for ever."""
    return copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier


def _cut(text: str, room: int) -> str:
    """Cut a text in its middle: it begins with what happened, and ends with what is done."""
    if len(text) <= room:
        return text
    head, arrow, tail = text.rpartition(" → ")
    tail = f"{arrow}{tail}"
    if not arrow or len(tail) > room // 2:
        head, tail = text, ""
    return f"{head[: room - len(tail) - 1].rstrip()}…{tail}"
