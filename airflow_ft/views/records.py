"""One chain, as it stands in Airflow's database. Beside ``listing``, the one place that knows the ORM."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from airflow_ft.attempts.conclude import INCIDENTS_KEY, ORDER_KEY
from airflow_ft.attempts.handing_on import OWN_BOOK, Book
from airflow_ft.attempts.ports import TASK_ENDED
from airflow_ft.attempts.reports import PROGRESS_KEY
from airflow_ft.attempts.store import CHAIN_KEY, attempt_key
from airflow_ft.core.chain import Attempt, Chain, Incident, JobRef
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.core.story import WAITS, state_word

EXTERNAL_REFERENCE = "__airflow_state_ref__"
FEEDBACK_KEY = "ft/feedback/"
PUBLISHED = (PROGRESS_KEY, INCIDENTS_KEY, ORDER_KEY)  # XComs of the try that watches the open attempt
# The states in which a chain goes on: by itself, or as soon as a person has answered.
LIVE_STATES = ("starting", "running", "recovering", "recovered", WAITS)


@dataclass(frozen=True)
class StoredChain:
    """A chain with its attempts, and what its live try has published (``None`` when it isn't running)."""

    chain: Chain
    attempts: tuple[Attempt, ...]
    live: Progress | None = None
    live_generation: int | None = None
    live_incidents: tuple[Incident, ...] = ()  # restarts in place of the open attempt, and what is being done now
    live_recovery: str | None = None  # the state of the newest recovery of the open attempt
    live_nodes: tuple[str, ...] = ()  # where the open attempt runs: its record has its nodes only when it has ended
    task_state: str | None = None
    unreadable: tuple[str, ...] = ()
    feedback: dict[str, Any] = field(default_factory=dict)  # what people said of its diagnoses, by run

    @property
    def task_ended(self) -> bool:
        """Whether Airflow has ended the task: nobody watches it any more, whatever the chain says."""
        return self.task_state in TASK_ENDED

    @property
    def state(self) -> str:
        """The badge: ``core.story.state_word``, unless a person ended the task while an attempt was open."""
        if self.chain.open is not None and self.task_ended:
            return "succeeded" if self.task_state == "success" else "failed"
        state = state_word(self.chain, self.live_recovery)
        return "failed" if self.task_ended and state in ("recovering", "starting", WAITS) else state

    @property
    def live_now(self) -> bool:
        """Whether the story goes on by itself, or when a person has answered."""
        return self.state in LIVE_STATES

    @property
    def abandoned_job(self) -> JobRef | None:
        """The job of a task that has ended although its chain is open: nobody answers for it."""
        if not self.task_ended or self.chain.open is None:
            return None
        return next((a.ref for a in self.attempts if a.number == self.chain.open and not a.fenced), None)


class ChainNotFoundError(LookupError):
    """No chain there. The message says what was looked for."""


@contextmanager
def database() -> Iterator[Any]:
    """Open a session of Airflow's database, of nobody else.

    Airflow's default is one for each thread: an api-server's requests take turns on its threads, and met in one.
    """
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        yield session


@dataclass(frozen=True)
class StoredRows:
    """What the database holds of one task instance, as text. ``mark`` changes whenever anything of it does."""

    what: str
    store: dict[str, str]
    xcoms: dict[str, str]
    task_state: str | None

    @property
    def mark(self) -> str:
        """A fingerprint: two equal ones say that a reader has seen this already."""
        digest = hashlib.sha256(str(self.task_state).encode())
        for key, text in sorted([*self.store.items(), *self.xcoms.items()]):
            digest.update(f"\0{key}\0{text}".encode(errors="replace"))
        return digest.hexdigest()[:32]


def read_rows(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> StoredRows:
    """Return the rows of one task instance, in one query: a page that is polled may not cost more."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from sqlalchemy import Text, cast, literal, select, union_all

    def of_task(model: Any) -> tuple[Any, ...]:
        key = model.dag_id == dag_id, model.run_id == run_id, model.task_id == task_id, model.map_index == map_index
        return tuple(key)

    found = session.execute(
        union_all(
            select(literal("store"), Stored.key, Stored.value).where(*of_task(Stored), Stored.key.like("ft/%")),
            select(literal("xcom"), XComModel.key, cast(XComModel.value, Text)).where(
                *of_task(XComModel), XComModel.key.in_(PUBLISHED)
            ),
            select(literal("task"), literal("state"), cast(TaskInstance.state, Text)).where(*of_task(TaskInstance)),
        )
    ).all()
    by_kind: dict[str, dict[str, str]] = {"store": {}, "xcom": {}, "task": {}}
    for kind, key, text in found:
        by_kind[kind][key] = text
    what = f"{dag_id}.{task_id}" + (f"[{map_index}]" if map_index >= 0 else "") + f" in run {run_id!r}"
    return StoredRows(what, by_kind["store"], by_kind["xcom"], by_kind["task"].get("state"))


def read_chain(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> StoredChain:
    """Return the chain of one task instance. Raises ``ChainNotFoundError``."""
    return assembled(read_rows(session, dag_id, run_id, task_id, map_index))


def locked_row(session: Any, task: tuple[str, str, str, int], key: str) -> Any:
    """Return a row of a task's state store, locked until the session ends its transaction; ``None`` if there is none.

    :param task: DAG id, run id, task id, map index.
    """
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    columns = (Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index)
    of_task = [column == value for column, value in zip(columns, task, strict=True)]
    return session.scalars(select(Stored).where(*of_task, Stored.key == key).with_for_update()).first()


def assembled(rows: StoredRows) -> StoredChain:
    """Put a chain together from its rows. Raises ``ChainNotFoundError``, ``UnreadableRecordError``."""
    rows = with_book(rows)
    if CHAIN_KEY not in rows.store:
        stage = OWN_BOOK in rows.store
        raise ChainNotFoundError(
            f"The stage {rows.what} is over, and the chain went on: it is at the stage that runs, in the end at the "
            "group's task `result`."
            if stage
            else f"No retry chain of {rows.what}. Either the task has not begun, or it is no "
            "FaultTolerantTrainingOperator, or its state store was cleared."
        )
    chain = Chain.from_record(read_value(rows.store[CHAIN_KEY]))
    attempts, unreadable = [], []
    for number in range(chain.attempts):
        try:
            attempts.append(read_attempt(rows.store[attempt_key(number)]))
        except (KeyError, UnreadableRecordError):
            unreadable.append(f"attempt {number}")
    stored = StoredChain(
        chain=chain,
        attempts=tuple(attempts),
        task_state=rows.task_state,
        unreadable=tuple(unreadable),
        feedback={
            key.removeprefix(FEEDBACK_KEY): read_value(text)
            for key, text in rows.store.items()
            if key.startswith(FEEDBACK_KEY)
        },
    )
    return with_published(stored, rows.xcoms)


def with_book(rows: StoredRows) -> StoredRows:
    """Open the book of a stage of the explicit form that is at work: until the end, the chain is in there."""
    if CHAIN_KEY in rows.store or OWN_BOOK not in rows.store or rows.task_state in TASK_ENDED:
        return rows
    book = Book(read_value(rows.store[OWN_BOOK]), lambda record: None)
    return replace(rows, store={**rows.store, **{key: json.dumps(value) for key, value in book.records().items()}})


def with_published(stored: StoredChain, xcoms: Mapping[str, str]) -> StoredChain:
    """Add what the try of the open attempt has published, by the keys of its XComs. What can't be read is left out."""
    attempt = stored.chain.open
    if attempt is None:
        return stored
    published = {key: read_value(text) for key, text in xcoms.items()}
    restarts = published.get(INCIDENTS_KEY)
    records = restarts.get("incidents") if isinstance(restarts, dict) else None
    incidents = live_incidents(records if isinstance(records, list) else [], published.get(ORDER_KEY), attempt)
    stored = replace(stored, live_incidents=incidents)
    live = published.get(PROGRESS_KEY)
    if not isinstance(live, dict) or live.get("attempt") != attempt:
        return stored
    try:
        progress = Progress.from_record(live.get("progress") or {})
    except UnreadableRecordError:
        return stored
    return replace(
        stored,
        live=progress,
        live_generation=live.get("generation"),
        live_recovery=live.get("recovery"),
        live_nodes=_names(live.get("nodes")),
    )


@lru_cache(maxsize=2048)  # attempts that are over never change, and a page asks for them every few seconds
def read_attempt(text: str) -> Attempt:
    """Read an attempt's record. Raises ``UnreadableRecordError``."""
    return Attempt.from_record(read_value(text))


def all_chains(session: Any) -> Iterator[tuple[Chain, str | None]]:
    """Yield the head of every chain with the state of its task instance."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from sqlalchemy import select

    for row in session.scalars(select(TaskStateStoreModel).where(TaskStateStoreModel.key == CHAIN_KEY)):
        try:
            chain = Chain.from_record(read_value(row.value))
        except UnreadableRecordError:
            continue
        yield chain, _task_state(session, chain.dag_id, chain.run_id, chain.task_id, chain.map_index)


def read_value(stored: Any) -> Any:
    """Read a value. An XCom's JSON may itself be a string of JSON: who wrote it has serialised it."""
    value = json.loads(stored) if isinstance(stored, str) else stored
    value = json.loads(value) if isinstance(value, str) and value[:1] in "{[" else value
    if isinstance(value, dict) and EXTERNAL_REFERENCE in value:
        raise UnreadableRecordError(
            "the state store keeps its values outside the database ([workers] state_store_backend)"
        )
    return value


def _incident(order: Any) -> Incident | None:
    try:
        return None if order is None else Incident.from_record(order)
    except UnreadableRecordError:
        return None


def live_incidents(restarts: list[Any], order: Any, attempt: int) -> tuple[Incident, ...]:
    """Put together what the try of the open attempt has published: its restarts in place, and the newest decision."""
    found = [one for one in map(_incident, [*restarts, order]) if one is not None and one.attempt == attempt]
    by_generation = {one.generation: one for one in reversed(found)}  # the first telling of each is the whole one
    return tuple(by_generation[generation] for generation in sorted(by_generation))


def _names(nodes: Any) -> tuple[str, ...]:
    return tuple(str(node) for node in nodes) if isinstance(nodes, list) else ()


def _task_state(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    query = select(TaskInstance.state).where(
        TaskInstance.dag_id == dag_id,
        TaskInstance.run_id == run_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == map_index,
    )
    state = session.scalars(query).first()
    return None if state is None else str(getattr(state, "value", state))
