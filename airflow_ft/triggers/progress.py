"""The trigger of ``TrainingProgressSensor``: one ``LookoutOrder`` in, one ``LookoutResult`` out.

The event is never fired earlier than 15 s after the deferral (airflow-notes §11.1). There is no ``on_kill``: what is
watched belongs to somebody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.attempts.deadlines import QUIET_SECONDS

PAUSE_SECONDS = 5.0
MOST_FAILURES = 5


class ProgressEvent(TriggerEvent):
    """The end of a lookout. Airflow writes an event's ``repr`` into the log in full, so it is short."""

    def __repr__(self) -> str:
        payload = self.payload if isinstance(self.payload, dict) else {}
        return f"<training {payload.get('end', 'unreadable')}>"


class TrainingProgressTrigger(BaseTrigger):
    """Looks at a training until it ended, passed a step or hangs.

    :param order: a ``LookoutOrder`` record, as a dictionary.
    """

    def __init__(self, order: dict[str, Any] | None = None, **_future: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.order = order

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return "airflow_ft.triggers.progress.TrainingProgressTrigger", {"order": self.order}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until there is a result; yield one event."""
        from airflow_ft.core.sanitise import sanitise

        payload = await self._look()
        await self._quiet()
        yield ProgressEvent(payload=sanitise(payload))

    async def _look(self) -> dict[str, Any]:
        reason = ""
        for failures in range(MOST_FAILURES):
            try:
                lookout = await asyncio.to_thread(self._prepared)
                result: dict[str, Any] = (await lookout.watch()).to_record()
                return result
            except Exception as error:  # the border to a process that all triggers share
                self.log.exception("The lookout could not begin.")
                reason = f"{type(error).__name__}: {error}"[:500]
                await asyncio.sleep(PAUSE_SECONDS * (failures + 1))
        return {"end": "unreadable", "text": f"The lookout could not begin. {reason}"}

    def _prepared(self) -> Any:
        from airflow_ft.attempts.lookout import Lookout, LookoutOrder
        from airflow_ft.triggers.desk import TriggerDesk

        order = LookoutOrder.from_record(self.order)
        return Lookout(order, TriggerDesk(self.log, order.info))

    async def _quiet(self) -> None:
        order = self.order if isinstance(self.order, dict) else {}
        now = datetime.now(timezone.utc)
        try:
            since = (now - datetime.fromisoformat(str(order["deferred_at"]).replace("Z", "+00:00"))).total_seconds()
        except (KeyError, ValueError, TypeError):
            since = 0.0
        await asyncio.sleep(min(QUIET_SECONDS, max(0.0, QUIET_SECONDS - since)))
