"""The worker's desk: log and XComs of a task that runs, and the chain's store."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import Any

from pydantic import JsonValue

from airflow_ft.attempts.deadlines import quiet_seconds
from airflow_ft.attempts.ports import TryInfo

CLEARED = "restarting"  # a person has cleared it while a worker was at work
DELETED = "deleted"
UNKNOWN = "unknown"


class WorkerDesk:
    """Where a watch inside the worker (``deferrable=False``) writes."""

    def __init__(self, log: Any, ti: Any) -> None:
        self._log, self._ti = log, ti

    def say(self, text: str, *, warning: bool = False) -> None:
        """Write one line into the try's log."""
        self._log.log(logging.WARNING if warning else logging.INFO, "%s", text)

    async def publish(self, key: str, value: JsonValue) -> None:
        """Store a value in the try's XComs."""
        self._ti.xcom_push(key=key, value=value)

    async def recall(self, key: str) -> JsonValue:
        """Return a value from the try's XComs, or ``None``."""
        value: JsonValue = self._ti.xcom_pull(key=key, task_ids=self._ti.task_id, map_indexes=self._ti.map_index)
        return value

    def now(self) -> datetime:
        """Return the time in UTC."""
        return now()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class TaskStateStore:
    """Airflow's task state store as the chain's home: what is written there never expires."""

    def __init__(self, accessor: Any) -> None:
        self._accessor = accessor

    def get(self, key: str) -> JsonValue:
        """Return the stored value, or ``None``."""
        value: JsonValue = self._accessor.get(key, default=None)
        return value

    def set(self, key: str, value: JsonValue) -> None:
        """Store the value."""
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        self._accessor.set(key, value, retention=NEVER_EXPIRE)


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


def quiet() -> float:
    """Return how long a task has to stay deferred at least."""
    from airflow.sdk.configuration import conf

    return quiet_seconds(conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0))


def map_index_of(ti: Any) -> int:
    """Return a task instance's map index; -1 for one that isn't mapped."""
    return ti.map_index if ti.map_index is not None else -1


def try_info(context: Any) -> TryInfo:
    """Return which try this is, as plain values."""
    ti = context["ti"]
    return TryInfo(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=map_index_of(ti),
        try_number=ti.try_number,
        max_tries=ti.max_tries,
        ti_id=str(ti.id),
    )


def task_state(info: TryInfo) -> str:
    """Ask Airflow for the task's state. ``DELETED`` with its run, ``UNKNOWN`` if Airflow doesn't answer."""
    try:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        states = RuntimeTaskInstance.get_task_states(
            dag_id=info.dag_id, task_ids=[info.task_id], run_ids=[info.run_id], map_index=info.map_index
        ).get(info.run_id)
    except Exception:  # noqa: BLE001 - the border to Airflow, in a process that is being ended: no answer is no order
        return UNKNOWN
    return next((str(getattr(state, "value", state)) for state in (states or {}).values()), DELETED)
