"""The outbox: each chain event that is worth a person's attention is sent once.

The event's id is written before it is sent. If the process dies in between, the next try can't know whether the message
went out; it sends it again and says so, because a page that comes twice is better than one that never comes. Receivers
that can tell duplicates apart have ``context["ft_event"]["key"]``, the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.record import NOTIFIED
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import Chain, ChainEvent


def send_due(notify: Sequence[Callable[[Any], Any]], context: Any, store: ChainStore, chain: Chain, log: Any) -> Chain:
    """Send what hasn't been sent. A notifier that fails is logged: it never changes the task's result."""
    due = [event for event in chain.events if event.id > chain.notified and event.kind in NOTIFIED]
    for event in due if notify else []:
        repeated = chain.sending == event.id
        chain = chain.but(sending=event.id)
        store.save(chain)
        reach("notify.before_send")
        for notifier in notify:
            try:
                notifier({**context, "ft_event": message(chain, event, repeated)})
            except Exception:
                log.exception("A notifier failed; the training is not affected.")
        chain = chain.but(notified=event.id)
        store.save(chain)
        reach("notify.after_send")
    return chain


def message(chain: Chain, event: ChainEvent, repeated: bool = False) -> dict[str, Any]:
    """Return what a notifier gets: a text to read on a phone, and the facts."""
    budget = f"{chain.ledger.restarts} of {chain.max_restarts} restarts used."
    again = " (may have been sent before)" if repeated else ""
    return {
        "key": f"{chain.chain_id}/{event.id}",
        "kind": event.kind,
        "text": f"{chain.dag_id}.{chain.task_id}: {event.text} {budget}{again}",
        "at": event.at.isoformat(),
        "attempt": event.attempt,
        "restarts": chain.ledger.restarts,
        "max_restarts": chain.max_restarts,
        "run_id": chain.run_id,
        "map_index": chain.map_index,
    }
