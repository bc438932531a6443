"""Many chains: which there are, page by page, in the DAGs that a reader may read; and what people said of them.

Queries are bounded, whatever the database holds. A chain of 128 attempts has 129 rows in the state store, so a list
reads heads only, and walks the one index that needs no row for it: (dag_run_id, task_id, map_index, key), from the
newest run back. Chains that go on are found from the task instances instead, which are few. DAGs are filtered in the
query, before any page is cut: neither a page's length nor its end tells of a DAG that the reader may not read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from airflow_ft.attempts.store import CHAIN_KEY
from airflow_ft.core.chain import Attempt, Chain
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.records import FEEDBACK_KEY, PUBLISHED, StoredChain, read_attempt, read_value, with_published

# The states in which a task instance goes on by itself.
GOING_ON = (
    "scheduled",
    "queued",
    "running",
    "restarting",
    "deferred",
    "up_for_retry",
    "up_for_reschedule",
    "awaiting_input",
)
Place = tuple[int, str, int]  # dag_run_id, task_id, map_index: where a list goes on


@dataclass(frozen=True)
class Head:
    """The head of a chain, and where it stands in the list."""

    stored: StoredChain
    place: Place
    updated: datetime


@dataclass(frozen=True)
class Batch:
    """Some chains in their order: those that may fit, how many were read, and where the list goes on."""

    heads: tuple[Head, ...]
    read: int
    last: Place | None
    full: bool  # there may be more


@dataclass(frozen=True)
class Filter:
    """What is looked for. Classes and nodes stand in the text of a head, where no index finds them."""

    dag_ids: Collection[str]
    run_id: str | None = None
    fault_class: str | None = None
    node: str | None = None
    since: datetime | None = None


def heads(session: Any, wanted: Filter, *, going_on: bool, after: Place | None, limit: int) -> Batch:
    """Return the next chains of one of the two kinds, the newest run first: those that go on, or those that don't.

    The database isn't asked to search in texts: PostgreSQL then reads every attempt of every chain (8 s, measured).
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance as Task
    from sqlalchemy import and_, or_, select, tuple_

    if going_on:  # from the few task instances to the one row of each
        place: tuple[Any, ...] = DagRun.id, Task.task_id, Task.map_index
        tables = (
            select(Stored.value, Stored.updated_at, *place, Task.state)
            .join_from(Task, DagRun, and_(DagRun.dag_id == Task.dag_id, DagRun.run_id == Task.run_id))
            .join(Stored, tuple_(Stored.dag_run_id, Stored.task_id, Stored.map_index) == tuple_(*place))
            .where(Task.state.in_(GOING_ON), Task.dag_id.in_(wanted.dag_ids))
        )
    else:
        place = Stored.dag_run_id, Stored.task_id, Stored.map_index
        same = and_(
            *(getattr(Task, name) == getattr(Stored, name) for name in ("dag_id", "run_id", "task_id", "map_index"))
        )
        # "|| ''": the index of dag_id would find all attempts of all chains, only to sort them
        mine = (Stored.dag_id if wanted.run_id is not None else Stored.dag_id.concat("")).in_(wanted.dag_ids)
        tables = (
            select(Stored.value, Stored.updated_at, *place, Task.state)
            .join_from(Stored, Task, same, isouter=True)
            .where(or_(Task.state.is_(None), Task.state.not_in(GOING_ON)), mine)
        )
    query = tables.where(Stored.key == CHAIN_KEY).order_by(*(column.desc() for column in place)).limit(limit)
    if wanted.run_id is not None:
        query = query.where((Task if going_on else Stored).run_id == wanted.run_id)
    if wanted.since is not None:
        query = query.where(Stored.updated_at >= wanted.since)
    if after is not None:
        query = query.where(tuple_(*place) < tuple_(*after))
    rows = session.execute(query).all()
    words = [json.dumps(text) for text in (wanted.fault_class, wanted.node) if text]
    last = tuple(rows[-1][2:5]) if rows else None
    if going_on:
        words = []  # what a run that goes on has published stands elsewhere; they are few
    return Batch(tuple(_read(rows, words)), len(rows), last, len(rows) == limit)


def _read(rows: Sequence[Any], words: Sequence[str]) -> Iterator[Head]:
    for value, updated, run, task_id, map_index, state in rows:
        if not all(word in value for word in words):
            continue  # a look at the text is much cheaper than reading it
        try:
            chain = Chain.from_record(read_value(value))
        except UnreadableRecordError:
            continue  # its own page says what is wrong with it
        task_state = None if state is None else str(getattr(state, "value", state))
        yield Head(StoredChain(chain=chain, attempts=(), task_state=task_state), (run, task_id, map_index), updated)


def with_published_of(session: Any, found: Sequence[Head]) -> list[Head]:
    """Add what the running ones have published, faults too: one query for the whole page."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import Text, cast, select, tuple_

    places = [head.place for head in found if head.stored.chain.open is not None]
    if not places:
        return list(found)
    place = XComModel.dag_run_id, XComModel.task_id, XComModel.map_index
    query = select(*place, XComModel.key, cast(XComModel.value, Text)).where(
        XComModel.key.in_(PUBLISHED), tuple_(*place).in_(places)
    )
    published: dict[Place, dict[str, str]] = defaultdict(dict)
    for run, task_id, map_index, key, text in session.execute(query):
        published[run, task_id, map_index][key] = text
    return [replace(head, stored=with_published(head.stored, published.get(head.place, {}))) for head in found]


@dataclass(frozen=True)
class PastAttempt:
    """An attempt of some chain, and who it belongs to."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    attempt: Attempt


def attempts_since(session: Any, dag_ids: Collection[str], since: datetime, limit: int) -> list[PastAttempt]:
    """Return the newest attempts that were written since then, at most ``limit``."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    query = (
        select(Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index, Stored.value)
        .where(Stored.key.like("ft/attempt/%"), Stored.updated_at >= since, Stored.dag_id.concat("").in_(dag_ids))
        .order_by(Stored.id.desc())
        .limit(limit)
    )
    made = []
    for dag_id, run_id, task_id, map_index, value in session.execute(query):
        try:
            made.append(PastAttempt(dag_id, run_id, task_id, map_index, read_attempt(value)))
        except UnreadableRecordError:
            continue
    return made


# --- what people said of diagnoses -------------------------------------------------------------------------------


Judged = tuple[str, str, str, int, str, Any]  # dag_id, run_id, task_id, map_index, run, what was said


def all_feedback(session: Any, limit: int) -> list[Judged]:
    """Return what people said of diagnoses, the newest first. Reads the whole table: for the command line."""
    return _feedback(session, None, limit)


def feedback_of(session: Any, tasks: Collection[tuple[str, str, str, int]], limit: int) -> list[Judged]:
    """Return what people said of the diagnoses of these tasks."""
    return _feedback(session, tasks, limit) if tasks else []


def _feedback(session: Any, tasks: Collection[tuple[str, str, str, int]] | None, limit: int) -> list[Judged]:
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    task = Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index
    query = select(*task, Stored.key, Stored.value).where(Stored.key.like(f"{FEEDBACK_KEY}%"))
    if tasks is None:
        query = query.order_by(Stored.id.desc())
    else:  # by columns of an index, not as tuples: SQLite finds no index for those; nor with an order by id
        dags, of_dags = {one[0] for one in tasks}, {one[1] for one in tasks}
        query = query.where(Stored.dag_id.in_(dags), Stored.run_id.in_(of_dags))
    rows = [
        (*who, key.removeprefix(FEEDBACK_KEY), read_value(value))
        for *who, key, value in session.execute(query.limit(limit))
    ]
    return [row for row in rows if tasks is None or row[:4] in tasks]


def write_feedback(
    session: Any, dag_id: str, run_id: str, task_id: str, map_index: int, run: str, said: dict[str, Any]
) -> None:
    """Store what a person said of a run's diagnosis: beside its chain, with which it ends."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    of_task = (
        Stored.dag_id == dag_id,
        Stored.run_id == run_id,
        Stored.task_id == task_id,
        Stored.map_index == map_index,
    )
    key = f"{FEEDBACK_KEY}{run}"
    now, value = datetime.now(timezone.utc), json.dumps(said)
    old = session.scalars(select(Stored).where(*of_task, Stored.key == key)).first()
    if old is not None:
        old.value, old.updated_at = value, now
        return
    head = session.scalars(select(Stored).where(*of_task, Stored.key == CHAIN_KEY)).one()
    session.add(
        Stored(
            dag_run_id=head.dag_run_id,
            dag_id=dag_id,
            run_id=run_id,
            task_id=task_id,
            map_index=map_index,
            key=key,
            value=value,
            updated_at=now,
            expires_at=head.expires_at,
        )
    )
