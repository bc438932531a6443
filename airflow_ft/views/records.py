"""Chains, as they stand in Airflow's database. The one place with ORM reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_ft.attempts.conclude import INCIDENTS_KEY, ORDER_KEY
from airflow_ft.attempts.ports import TASK_ENDED
from airflow_ft.attempts.reports import PROGRESS_KEY
from airflow_ft.attempts.store import CHAIN_KEY
from airflow_ft.core.chain import Attempt, Chain, Incident, JobRef
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.core.story import state_word

EXTERNAL_REFERENCE = "__airflow_state_ref__"


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
        return "failed" if self.task_ended and state in ("recovering", "starting") else state

    @property
    def live_now(self) -> bool:
        """Whether the story goes on by itself."""
        return self.state in ("starting", "running", "recovering", "recovered")

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
    """Open a session of Airflow's database."""
    from airflow.utils.session import create_session

    with create_session() as session:
        yield session


def read_chain(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> StoredChain:
    """Return the chain of one task instance. Raises ``ChainNotFoundError``."""
    values = _stored(session, dag_id, run_id, task_id, map_index)
    if CHAIN_KEY not in values:
        what = f"{dag_id}.{task_id}" + (f"[{map_index}]" if map_index >= 0 else "")
        raise ChainNotFoundError(
            f"No retry chain of {what} in run {run_id!r}. Either the task has not begun, or it is no "
            "FaultTolerantTrainingOperator, or its state store was cleared."
        )
    chain = Chain.from_record(values[CHAIN_KEY])
    attempts, unreadable = [], []
    for number in range(chain.attempts):
        try:
            attempts.append(Attempt.from_record(values[f"ft/attempt/{number:04d}"]))
        except (KeyError, UnreadableRecordError):
            unreadable.append(f"attempt {number}")
    live = _xcom(session, dag_id, run_id, task_id, map_index, PROGRESS_KEY) if chain.open is not None else None
    mine = isinstance(live, dict) and live.get("attempt") == chain.open
    return StoredChain(
        chain=chain,
        attempts=tuple(attempts),
        live=Progress.from_record(live["progress"]) if mine and live else None,
        live_generation=live.get("generation") if mine and live else None,
        live_recovery=live.get("recovery") if mine and live else None,
        live_nodes=_names(live.get("nodes")) if mine and live else (),
        live_incidents=_live_incidents(session, chain),
        task_state=_task_state(session, dag_id, run_id, task_id, map_index),
        unreadable=tuple(unreadable),
    )


def all_chains(session: Any) -> Iterator[tuple[Chain, str | None]]:
    """Yield the head of every chain with the state of its task instance."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from sqlalchemy import select

    for row in session.scalars(select(TaskStateStoreModel).where(TaskStateStoreModel.key == CHAIN_KEY)):
        try:
            chain = Chain.from_record(_value(row.value))
        except UnreadableRecordError:
            continue
        yield chain, _task_state(session, chain.dag_id, chain.run_id, chain.task_id, chain.map_index)


def _stored(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int) -> dict[str, Any]:
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from sqlalchemy import select

    query = select(Stored).where(
        Stored.dag_id == dag_id,
        Stored.run_id == run_id,
        Stored.task_id == task_id,
        Stored.map_index == map_index,
        Stored.key.like("ft/%"),
    )
    return {row.key: _value(row.value) for row in session.scalars(query)}


def _value(stored: Any) -> Any:
    value = json.loads(stored) if isinstance(stored, str) else stored
    if isinstance(value, dict) and EXTERNAL_REFERENCE in value:
        raise UnreadableRecordError(
            "the state store keeps its values outside the database ([workers] state_store_backend)"
        )
    return value


def _xcom(session: Any, dag_id: str, run_id: str, task_id: str, map_index: int, key: str) -> Any:
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    query = select(XComModel.value).where(
        XComModel.dag_id == dag_id,
        XComModel.run_id == run_id,
        XComModel.task_id == task_id,
        XComModel.map_index == map_index,
        XComModel.key == key,
    )
    value = session.scalars(query).first()
    return json.loads(value) if isinstance(value, str) else value


def _incident(order: Any) -> Incident | None:
    try:
        return None if order is None else Incident.from_record(order)
    except UnreadableRecordError:
        return None


def _live_incidents(session: Any, chain: Chain) -> tuple[Incident, ...]:
    if chain.open is None:
        return ()
    task = chain.dag_id, chain.run_id, chain.task_id, chain.map_index
    restarts = _xcom(session, *task, INCIDENTS_KEY)
    records = restarts.get("incidents") if isinstance(restarts, dict) else None
    return live_incidents(records if isinstance(records, list) else [], _xcom(session, *task, ORDER_KEY), chain.open)


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
