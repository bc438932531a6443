"""What nobody answers for: jobs whose cancel is owed, and jobs of tasks that are over. Found, noted, struck off.

Two kinds are found: debts in a chain (a cancel that could not be carried out), and the open attempt of a task that is
over (a person ended it while nobody watched). A job of a task that may still go on is never among them.

Beside ``attempts.store``, whose writes a try makes, this is the one place that writes a chain: for tasks that have no
try any more. A person may clear such a task in the same moment. So a record is only replaced while it still is what was
read; else nothing is written, and whoever looks next sees how things stand then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ft.attempts.ports import TASK_ENDED
from airflow_ft.attempts.record import DEBT, ENDED_OUTSIDE, NOTICE, NOTIFIED, debt_sentence, ended_outside, with_event
from airflow_ft.attempts.store import CHAIN_KEY, attempt_key, attempt_record, chain_record
from airflow_ft.core.chain import Attempt, Chain, Debt, JobRef
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.books import keep_books
from airflow_ft.views.records import ChainNotFoundError, locked_row, read_chain

WHY_LENGTH = 300


@dataclass(frozen=True)
class Owed:
    """A job that has to be stopped, and the chain that it belongs to."""

    chain: Chain
    ref: JobRef
    why: str
    attempt: Attempt | None = None  # the open one, of a task that is over; ``None``: an older debt of the chain
    written: bool = False  # whether the chain has it among its debts
    over: bool = True  # whether the task is over. If not, its next try pays, and nobody else may write the chain

    @property
    def untold(self) -> bool:
        """Whether nobody was told of it yet, as far as the chain knows: not by the task, not by the installation."""
        debt = next((one for one in self.chain.debts if one.ref.uid == self.ref.uid), None)
        news = any(one.id > self.chain.notified and one.kind == DEBT for one in self.chain.events)
        return debt is not None and not debt.told and news


def owed(session: Any) -> Iterator[Owed]:
    """Yield every job that nobody answers for."""
    keep_books(session)
    for chain in _chains(session):
        try:
            yield from owed_by(session, chain)
        except (ChainNotFoundError, UnreadableRecordError):
            continue


def owed_by(session: Any, chain: Chain) -> Iterator[Owed]:
    """Yield the jobs of one chain. Raises ``ChainNotFoundError`` or ``UnreadableRecordError``."""
    stored = read_chain(session, chain.dag_id, chain.run_id, chain.task_id, chain.map_index)
    chain, over = stored.chain, stored.task_state in TASK_ENDED
    left = stored.abandoned_job
    debts = {debt.ref.uid: debt for debt in chain.debts}
    if left is not None:
        attempt = next(one for one in stored.attempts if one.number == chain.open)
        debt = debts.pop(left.uid, None)
        why = f"its task is {stored.task_state}"
        yield Owed(chain, left, _since(debt) if debt else why, attempt, written=debt is not None)
    for debt in (one for one in debts.values() if over or not one.held):
        yield Owed(chain, debt.ref, _since(debt), written=True, over=over)


def write_down(session: Any, found: Owed, why: str, now: datetime) -> Owed | None:
    """Note in the chain that a job could not be stopped. ``None`` if the chain is not what it was any more."""
    debt = Debt(ref=found.ref, since=now, why=why[:WHY_LENGTH])
    chain = with_event(found.chain, now, DEBT, debt_sentence(debt), found.ref.attempt).but(
        debts=(*found.chain.debts, debt)
    )
    return _replaced(session, found, chain, written=True)


def strike_off(session: Any, found: Owed, progress: Progress | None, now: datetime) -> Chain | None:
    """Note that a job is stopped, and how far it had come. ``None`` if the chain is not what it was any more."""
    chain = found.chain.but(debts=tuple(debt for debt in found.chain.debts if debt.ref.uid != found.ref.uid))
    if found.written:
        chain = with_event(chain, now, NOTICE, f"{found.ref.name}, whose cancel was owed, is stopped.")
    if found.attempt is not None:
        attempt, chain = ended_outside(chain, found.attempt, ENDED_OUTSIDE, progress, now)
        if not _replace(session, chain, attempt_key(attempt.number), found.attempt, attempt_record(attempt)):
            return None
    elif not found.written:
        return chain
    return _kept(_replaced(session, found, chain))


def begin_telling(session: Any, found: Owed) -> tuple[Owed, int, bool] | None:
    """Note that somebody is being told. Returns the event, and whether that may have been done before."""
    event = next(one for one in found.chain.events if one.id > found.chain.notified and one.kind == DEBT)
    again = found.chain.sending == event.id
    noted = _replaced(session, found, found.chain.but(sending=event.id), written=True)
    return None if noted is None else (noted, event.id, again)


def told(session: Any, found: Owed, event: int) -> Owed | None:
    """Note that the installation was told. The task has not to tell it as well, unless older news waits for it."""
    chain = found.chain
    due = any(chain.notified < one.id < event and one.kind in NOTIFIED for one in chain.events)
    debts = tuple(one.but(told=True) if one.ref.uid == found.ref.uid else one for one in chain.debts)
    return _replaced(session, found, chain.but(debts=debts, notified=chain.notified if due else event), written=True)


# --- rows --------------------------------------------------------------------------------------------------------


def _chains(session: Any) -> Iterator[Chain]:
    """Every chain that has an open attempt or a debt: what holds its default is not in a record."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import or_, select

    query = select(Stored.value).where(
        Stored.key == CHAIN_KEY, or_(Stored.value.contains('"open"'), Stored.value.contains('"debts"'))
    )
    for value in session.scalars(query).all():
        try:
            yield Chain.from_record(json.loads(value))
        except (UnreadableRecordError, ValueError):
            continue


def chains_of_run(session: Any, dag_id: str, run_id: str) -> list[tuple[str, int]]:
    """Return task id and map index of every chain of a run."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    query = select(Stored.task_id, Stored.map_index).where(
        Stored.dag_id == dag_id, Stored.run_id == run_id, Stored.key == CHAIN_KEY
    )
    return [(row.task_id, row.map_index) for row in session.execute(query)]


def _replaced(session: Any, found: Owed, chain: Chain, *, written: bool = False) -> Owed | None:
    if not _replace(session, chain, CHAIN_KEY, found.chain, chain_record(chain)):
        return None
    return Owed(chain, found.ref, found.why, found.attempt, written)


def _replace(session: Any, chain: Chain, key: str, old: Chain | Attempt, new: Any) -> bool:
    row = locked_row(session, (chain.dag_id, chain.run_id, chain.task_id, chain.map_index), key)
    if row is None or old.from_record(json.loads(row.value)) != old:
        return False
    row.value = json.dumps(new)
    session.commit()
    return True


def _kept(found: Owed | None) -> Chain | None:
    return found.chain if found is not None else None


def _since(debt: Debt) -> str:
    return f"cancel owed since {debt.since:%Y-%m-%d %H:%M:%S}: {debt.why}"
