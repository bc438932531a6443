"""The trigger that watches one attempt, and stops its job when a person ends the task meanwhile.

Its one argument is a ``WatchOrder`` record. The event is a ``Conclusion`` record. It is never fired within seconds of
the deferral (``attempts.deadlines.quiet_seconds``): so quick a resume is misjudged by the scheduler as a dead task,
without the retry policy (airflow-notes §11.1). A restart in place, carried out inside ``watch``, doesn't wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_ft.attempts.crash_points import current_run, reach
from airflow_ft.attempts.deadlines import QUIET_SECONDS
from airflow_ft.backends.time_limits import within

if TYPE_CHECKING:
    from airflow_ft.attempts.ports import Conclusion, WatchOrder

PAUSE_SECONDS = 5.0  # after a watch that could not even begin; doubled each time, since each writes a traceback
MAX_PAUSE_SECONDS = 60.0
ATTEMPT_KEY = "ft_attempt"
INTERIM = "interim"  # the key of an event that says: it goes on. A version that doesn't know it looks at the job

_kills: set[asyncio.Task[None]] = set()


class AttemptEvent(TriggerEvent):
    """The end of a watch. Airflow writes an event's ``repr`` into the log in full, so it is short."""

    def __repr__(self) -> str:
        payload = self.payload if isinstance(self.payload, dict) else {}
        if INTERIM in payload:
            return f"<attempt {payload[INTERIM].get('attempt')}: goes on>"
        outcome = payload.get("outcome") or {}
        return f"<attempt {payload.get('attempt')}: {outcome.get('end', 'unreadable')}>"


class TrainingTrigger(BaseTrigger):
    """Watches one attempt of a training job. Fires once: when it is over, or when there is news for people.

    :param order: a ``WatchOrder`` record, as a dictionary.
    """

    def __init__(self, order: dict[str, Any] | None = None, **_future: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.order = order
        self._fired = False

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        return "airflow_ft.triggers.training.TrainingTrigger", {"order": self.order}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch until the attempt is over; yield one event."""
        from airflow_ft.attempts.store import fitted
        from airflow_ft.core.records import UnreadableRecordError
        from airflow_ft.core.sanitise import sanitise

        try:
            order = await asyncio.to_thread(_read_order, self.order)
        except UnreadableRecordError as error:
            self.log.error("The order of this watch can't be read; the next step reconciles. %s", error)
            await _quiet(None, QUIET_SECONDS)
            self._fired = True
            yield AttemptEvent(payload={"unreadable": str(error)[:500]})
            return
        current_run.set(order.info.run_id)
        reach("trigger.begin")
        conclusion = await self._watched(order)
        reach("trigger.before_event")
        await _quiet(order.deferred_at, order.quiet_seconds)
        self._fired = True
        record = sanitise(fitted(conclusion).to_record())
        yield AttemptEvent(payload={INTERIM: record} if conclusion.interim else record)

    async def _watched(self, order: WatchOrder) -> Conclusion:
        pause = PAUSE_SECONDS
        while True:
            try:
                return await self._watch(order)
            except Exception:  # the supervisor's border: nothing of ours may end a live job
                self.log.exception("The watch failed; it begins again. The job is not touched.")
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _watch(self, order: WatchOrder) -> Conclusion:
        from airflow_ft.triggers.desk import TriggerDesk

        watch = await asyncio.to_thread(_prepared, order, TriggerDesk(self.log, order.info))
        conclusion: Conclusion = await watch.watch()
        return conclusion

    # --- a person ended the task ---------------------------------------------------------------------------------

    async def on_kill(self) -> None:
        """Stop the job, if the task was really ended or cleared.

        Airflow 3.3 calls this also when the trigger was only moved to another triggerer, and cancels it after a second:
        hence the check, and the shielded task that lives on.
        """
        if self._fired or not self.order:
            return
        task = asyncio.get_running_loop().create_task(self._kill())
        _kills.add(task)
        task.add_done_callback(_kills.discard)
        await asyncio.shield(task)

    async def _kill(self) -> None:
        from airflow_ft.attempts.letting_go import cancel_for_person
        from airflow_ft.triggers.desk import TriggerDesk

        order = await asyncio.to_thread(_read_order, self.order)
        current_run.set(order.info.run_id)
        desk = TriggerDesk(self.log, order.info)
        if await self._still_mine(desk, order):
            self.log.info("This trigger was moved to another triggerer; the job is not touched.")
            return
        reach("trigger.kill")
        await cancel_for_person(order, desk)

    async def _still_mine(self, desk: Any, order: WatchOrder) -> bool:
        """Return whether the same try is still deferred on the same attempt. If Airflow can't say: yes, don't kill."""
        for _ in range(5):
            try:
                state = await within(10, desk.task_state())
                mine = await within(10, desk.recall(ATTEMPT_KEY))
            except Exception as error:  # noqa: BLE001 - doubt never kills; the next try fences
                self.log.warning("Airflow can't say whether this task was ended: %r", error)
                await asyncio.sleep(2)
                continue
            same = isinstance(mine, dict) and mine.get("name") == order.ref.name
            return state == "deferred" and same and mine.get("try_number") == order.info.try_number
        return True


def _read_order(data: dict[str, Any] | None) -> WatchOrder:
    """Read the order, and everything in it. Raises ``UnreadableRecordError`` for what another version has written."""
    from airflow_ft.attempts.ports import WatchOrder
    from airflow_ft.backends.registry import UnknownBackendError, create_backend
    from airflow_ft.core.policy_record import read_policy
    from airflow_ft.core.records import UnreadableRecordError
    from airflow_ft.core.settings import SettingsError

    order = WatchOrder.from_record(data)
    try:
        read_policy(order.policy)
        create_backend(order.ref.backend)
    except (SettingsError, UnknownBackendError) as error:
        raise UnreadableRecordError(str(error)) from error
    return order


def _prepared(order: WatchOrder, desk: Any) -> Any:
    """Import and set up everything that the watch needs, off the event loop that all triggers share."""
    from airflow_ft.attempts.watch import prepared_watch

    return prepared_watch(order, desk)


async def _quiet(deferred_at: datetime | None, seconds: float) -> None:
    since = (datetime.now(timezone.utc) - deferred_at).total_seconds() if deferred_at else 0.0
    await asyncio.sleep(max(0.0, seconds - since))
