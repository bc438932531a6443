"""Probe jobs that no task answers for: of a task that is over, begun and never removed, because its worker was lost.

What the collector is to attempts (``debts``) it is to these: they hold nodes for nothing, until somebody stops them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_ft.attempts.letting_go import let_go
from airflow_ft.attempts.ports import TASK_ENDED
from airflow_ft.attempts.probe_work import PROBE_KEY, jobs_of, without
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import UnknownBackendError, create_backend
from airflow_ft.core.chain import JobRef
from airflow_ft.views.records import database, locked_row


@dataclass(frozen=True)
class LeftProbe:
    """A probe job, and the task that began it."""

    ref: JobRef
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    why: str


def left_probes(session: Any) -> Iterator[LeftProbe]:
    """Yield every probe job of a task that is over."""
    from airflow.models.task_state_store import TaskStateStoreModel as Stored
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import and_, select

    same = and_(
        TaskInstance.dag_id == Stored.dag_id,
        TaskInstance.run_id == Stored.run_id,
        TaskInstance.task_id == Stored.task_id,
        TaskInstance.map_index == Stored.map_index,
    )
    wanted = (Stored.value, Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index, TaskInstance.state)
    query = select(*wanted).join(TaskInstance, same).where(Stored.key == PROBE_KEY, Stored.value.contains('"jobs": {"'))
    for row in session.execute(query).all():
        state = str(getattr(row.state, "value", row.state))
        for ref in jobs_of(_read(row.value)) if state in TASK_ENDED else ():
            yield LeftProbe(ref, row.dag_id, row.run_id, row.task_id, row.map_index, f"its task is {state}")


def remove_probe(found: LeftProbe) -> str:
    """Stop it and strike it off. Returns what is in the way, in words; empty if it is gone."""
    try:
        asyncio.run(let_go(create_backend(found.ref.backend), found.ref, 0.0, f"stopping {found.ref.name}"))
    except (BackendError, UnknownBackendError) as error:
        return str(error) or type(error).__name__
    with database() as session:
        strike_off_probe(session, found)
    return ""


def strike_off_probe(session: Any, found: LeftProbe) -> None:
    """Note that it is removed."""
    row = locked_row(session, (found.dag_id, found.run_id, found.task_id, found.map_index), PROBE_KEY)
    if row is not None:
        row.value = json.dumps(without(_read(row.value), found.ref))
        session.commit()


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
