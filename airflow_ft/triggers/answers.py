"""Reads the answer to a question that an earlier try has asked: workers can't, triggers can (airflow-notes §11.6).

The event has the form of Airflow's own when a person answers, or says that nobody has. It is never fired within seconds
of the deferral, as that is what the answer's first event was lost to (§11.1). There is no ``on_kill``: it fires when
the person answers just then, and there is nothing to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.attempts.deadlines import QUIET_SECONDS

NOT_ANSWERED = "not_answered"
READ_SECONDS = 20.0


class AnswerTrigger(BaseTrigger):
    """Looks once, after a while, whether a question was answered.

    :param info: the ``TryInfo`` record of the try that asks.
    :param asked_at: when the question arose, in ISO form. An older answer is that to an earlier question.
    :param quiet_seconds: how long the task stays deferred at least.
    """

    def __init__(
        self,
        info: dict[str, Any] | None = None,
        asked_at: str = "",
        quiet_seconds: float = QUIET_SECONDS,
        **_future: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.info, self.asked_at, self.quiet_seconds = info, asked_at, quiet_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {"info": self.info, "asked_at": self.asked_at, "quiet_seconds": self.quiet_seconds}
        return "airflow_ft.triggers.answers.AnswerTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, look, yield one event."""
        from airflow_ft.core.sanitise import sanitise

        await asyncio.sleep(max(0.0, self.quiet_seconds))
        yield TriggerEvent(sanitise(await self._look()))  # type: ignore[no-untyped-call]

    async def _look(self) -> dict[str, Any]:
        from airflow_ft.attempts.ports import TryInfo
        from airflow_ft.backends.time_limits import within
        from airflow_ft.triggers.desk import TriggerDesk

        try:
            desk = TriggerDesk(self.log, TryInfo.from_record(self.info))
            found = await within(READ_SECONDS, desk.answer())
            return answer_of(found, datetime.fromisoformat(self.asked_at))
        except Exception as error:  # noqa: BLE001 - the border to Airflow: without an answer a person is asked again
            self.log.warning("No answer can be read (%r); the question is asked once more.", error)
            return {NOT_ANSWERED: True}


def answer_of(found: Any, asked_at: datetime) -> dict[str, Any]:
    """Return the event of what Airflow keeps with a question. One that nobody has responded to is the default's."""
    at, user = getattr(found, "responded_at", None), getattr(found, "responded_by_user", None)
    if at is None or at < asked_at:
        return {NOT_ANSWERED: True}
    by = {"id": str(user.id), "name": str(user.name)} if user is not None else None
    return {"chosen_options": list(found.chosen_options or []), "responded_by_user": by, "timedout": user is None}
