"""The triggerer's desk: the try's log and XComs, through the triggerer's supervisor."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from typing import Any

from pydantic import JsonValue

from airflow_ft.attempts.ports import TryInfo


class TriggerDesk:
    """Where a watch inside a trigger writes. ``log`` is the trigger's own: its lines appear live in the try's log."""

    def __init__(self, log: Any, info: TryInfo) -> None:
        self._log, self._info = log, info

    def say(self, text: str, *, warning: bool = False) -> None:
        """Write one line into the try's log."""
        self._log.log(logging.WARNING if warning else logging.INFO, "%s", text)

    async def publish(self, key: str, value: JsonValue) -> None:
        """Store a value in the try's XComs."""
        from airflow.sdk.execution_time.comms import SetXCom

        await self._ask(SetXCom(key=key, value=value, **self._where()))

    async def recall(self, key: str) -> JsonValue:
        """Return a value from the try's XComs, or ``None``."""
        from airflow.sdk.execution_time.comms import GetXCom, XComResult

        answer = await self._ask(GetXCom(key=key, **self._where()))
        return answer.value if isinstance(answer, XComResult) else None

    async def task_state(self) -> str | None:
        """Return the state of the task instance, or ``None`` if it does not exist any more."""
        from airflow.sdk.execution_time.comms import GetTaskStates

        info = self._info
        question = GetTaskStates(
            dag_id=info.dag_id, task_ids=[info.task_id], run_ids=[info.run_id], map_index=info.map_index
        )
        states = (await self._ask(question)).task_states.get(info.run_id) or {}
        return next((str(getattr(state, "value", state)) for state in states.values()), None)

    async def answer(self) -> Any:
        """Return what Airflow keeps of the answer to the question of this task instance; ``None`` if there is none."""
        from uuid import UUID

        from airflow.sdk.execution_time.comms import ErrorResponse, GetHITLDetailResponse

        found = await self._ask(GetHITLDetailResponse(ti_id=UUID(self._info.ti_id)))
        return None if isinstance(found, ErrorResponse) else found

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def _where(self) -> dict[str, Any]:
        info = self._info
        return {"dag_id": info.dag_id, "run_id": info.run_id, "task_id": info.task_id, "map_index": info.map_index}

    async def _ask(self, question: Any) -> Any:
        from airflow.sdk.execution_time import task_runner

        supervisor = task_runner.SUPERVISOR_COMMS
        if hasattr(supervisor, "asend"):
            return await supervisor.asend(question)
        return await asyncio.to_thread(supervisor.send, question)  # ``dag.test()`` runs triggers within one process
