"""Chains of the explicit form that never came to the last task of their group: found in the books of its stages, kept.

Until its end such a chain is in the book of the stage that works (``attempts.handing_on``), and ``result`` or
``clean_up`` keep it. A run that times out as a whole skips both of them. Then its newest book becomes the records of
``result``: there all pages and commands look, and the collector, which stops a job that is left. Only of runs that have
ended: no stage writes any more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_ft.attempts.handing_on import OWN_BOOK, Book
from airflow_ft.attempts.store import CHAIN_KEY
from airflow_ft.core.chain import Chain
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.records import StoredChain, StoredRows, assembled, read_value

RUN_ENDED = ("success", "failed")

Place = tuple[int, int]  # id of the run, map index


@dataclass(frozen=True)
class FoundBook:
    """The newest book of a chain, and when it was written."""

    place: Place
    book: Book
    chain: Chain
    written_at: datetime

    def stored(self) -> StoredChain:
        """Return the chain as it is read from a database. Raises ``UnreadableRecordError``."""
        rows = {key: json.dumps(value) for key, value in self.book.records().items()}
        return assembled(StoredRows(f"{self.chain.dag_id}.{self.chain.task_id}", rows, {}, None))


def keep_books(session: Any, run: tuple[str, str] | None = None) -> None:
    """Keep the chains that no last task has kept, of runs that have ended.

    :param run: DAG id and run id; ``None``: of all runs.
    """
    for found in lost_books(session, run, only_ended=True):
        _keep(session, found)


def lost_books(session: Any, run: tuple[str, str] | None = None, *, only_ended: bool = False) -> list[FoundBook]:
    """Return the newest book of each chain that no last task has kept since."""
    rows = _light_rows(session, run, only_ended)
    kept = [row for row in rows if row.key == CHAIN_KEY]
    lost: dict[Place, list[str]] = defaultdict(list)
    for row in rows:
        if row.key == OWN_BOOK and not any(_covers(chain, row) for chain in kept):
            lost[row.dag_run_id, row.map_index].append(row.task_id)
    found = [one for place, task_ids in lost.items() for one in _newest(session, place, task_ids)]
    return [one for one in found if not _is_kept(session, one)]


def run_exists(session: Any, dag_id: str, run_id: str) -> bool:
    """Whether Airflow still has this run."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    found = session.scalars(select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).first()
    return found is not None


# --- rows --------------------------------------------------------------------------------------------------------


def _light_rows(session: Any, run: tuple[str, str] | None, only_ended: bool) -> list[Any]:
    """Where books and chains are, without what is in them: a book has 16 kB and more for each attempt."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    query = (
        select(Stored.dag_run_id, Stored.map_index, Stored.task_id, Stored.key, Stored.updated_at)
        .join(DagRun, DagRun.id == Stored.dag_run_id)
        .where(Stored.key.in_((OWN_BOOK, CHAIN_KEY)))
    )
    if run is not None:
        query = query.where(Stored.dag_id == run[0], Stored.run_id == run[1])
    if only_ended:
        query = query.where(DagRun.state.in_(RUN_ENDED))
    return list(session.execute(query))


def _covers(chain: Any, book: Any) -> bool:
    """Whether a chain that was kept later, by a task of the same group, makes a book an old one."""
    group = chain.task_id.rpartition(".")[0]
    same = (chain.dag_run_id, chain.map_index) == (book.dag_run_id, book.map_index)
    return same and bool(group) and book.task_id.startswith(f"{group}.") and chain.updated_at >= book.updated_at


def _newest(session: Any, place: Place, task_ids: Iterable[str]) -> list[FoundBook]:
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    of_place = Stored.dag_run_id == place[0], Stored.map_index == place[1], Stored.key == OWN_BOOK
    newest: dict[str, FoundBook] = {}
    for value, at in session.execute(
        select(Stored.value, Stored.updated_at).where(*of_place, Stored.task_id.in_(task_ids))
    ):
        try:
            book = Book(read_value(value), lambda record: None)
            chain = book.chain.load()
        except (UnreadableRecordError, ValueError):
            continue
        known = newest.get(chain.chain_id) if chain is not None else None
        if chain is not None and (known is None or known.book.serial < book.serial):
            newest[chain.chain_id] = FoundBook(place, book, chain, at)
    return list(newest.values())


def _is_kept(session: Any, found: FoundBook) -> bool:
    """Whether some task keeps this chain as it is in the book, or newer: also one that stands in no group."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    of_place = Stored.dag_run_id == found.place[0], Stored.map_index == found.place[1], Stored.key == CHAIN_KEY
    newer = Stored.updated_at >= found.written_at, Stored.value.contains(found.chain.chain_id)
    return session.scalars(select(Stored.id).where(*of_place, *newer)).first() is not None


def _keep(session: Any, found: FoundBook) -> None:
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    chain, now = found.chain, datetime.now(timezone.utc)
    of_task = {"dag_run_id": found.place[0], "task_id": chain.task_id, "map_index": found.place[1]}
    known = {row.key: row for row in session.scalars(select(Stored).filter_by(**of_task))}
    for key, value in found.book.records().items():
        row = known.get(key) or Stored(**of_task, dag_id=chain.dag_id, run_id=chain.run_id, key=key)
        row.value, row.updated_at = json.dumps(value), now
        session.add(row)
    try:
        session.commit()
    except IntegrityError:
        session.rollback()  # another process has kept it in the same moment
