"""The stages that wait: ``WatchTrainingOperator`` and ``VerifyRecoveryOperator``. Deferred, they take no slot."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from airflow_ft.attempts.handing_on import is_over
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.operators.desk import WorkerDesk, try_info
from airflow_ft.operators.stages.base import StageOperator
from airflow_ft.triggers.training import INTERIM, TrainingTrigger


class WatchTrainingOperator(StageOperator):
    """Watch the attempt until training is done, or until it has a fault; nothing is done about the fault.

    When training is done, every later stage is skipped.

    :param deferrable: watch in the triggerer (default) instead of holding a worker slot.
    """

    until_recovered = False

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        # Kept by the watch, as the single operator's: Airflow's own limit would end this task and leave the job.
        self.try_timeout, self.execution_timeout = self.execution_timeout, None

    def stage(self, context: Any) -> Any:
        """Watch, or find that there is nothing to watch."""
        from airflow_ft.attempts.watch import has_ended, prepared_watch

        chain = self._chain()
        if chain.open is None or self.book.fault is not None or self._has_no_use():
            return self._hands_on()
        ti, info = context["ti"], try_info(context)
        tells = bool(self.on_attempt) and not self.until_recovered
        order = self._order(ti, info, tells=tells, until_recovered=self.until_recovered)
        if self.deferrable and not asyncio.run(has_ended(order)):
            self.log.info("Watching attempt %d in the triggerer.", order.ref.attempt)
            self.defer(trigger=TrainingTrigger(order=order.to_record()), method_name="execute_complete")
        return self._came_to(context, asyncio.run(prepared_watch(order, WorkerDesk(self.log, ti)).watch()))

    def execute_complete(self, context: Any, event: dict[str, Any] | None = None) -> Any:
        """Take the trigger's event. One that doesn't fit changes nothing: the job is looked at again."""
        return self._guarded(context, lambda: self._taken(context, event))

    def _taken(self, context: Any, event: dict[str, Any] | None) -> Any:
        record = event[INTERIM] if isinstance(event, dict) and INTERIM in event else event
        try:
            conclusion = Conclusion.from_record(record)
        except UnreadableRecordError as error:
            self.log.warning("The event can't be read (%s); looking at the job instead.", error)
            return self.stage(context)
        chain = self._chain()
        known = (chain.chain_id, chain.open, try_info(context).try_number)
        if known != (conclusion.chain_id, conclusion.attempt, conclusion.try_number):
            self.log.warning("The event is not about the attempt that is open; looking at the job instead.")
            return self.stage(context)
        return self._came_to(context, conclusion)

    def _came_to(self, context: Any, conclusion: Conclusion) -> Any:
        self._take_sight(context["ti"])
        chain = self._recorded(context, conclusion)
        if is_over(chain):
            self._to_the_end(context)
        if conclusion.interim and conclusion.fault is None and not self.until_recovered:
            return self.stage(context)  # there was news; it goes on
        return self._hands_on()

    def _own_limits(self, ti: Any) -> list[tuple[datetime, str]]:
        return [(ti.start_date + self.try_timeout, "execution_timeout")] if self.try_timeout is not None else []

    def _has_no_use(self) -> bool:
        return False


class VerifyRecoveryOperator(WatchTrainingOperator):
    """Watch the attempt after a fault until it is known whether training has recovered: it has loaded the expected
    checkpoint and passed the step where the last one died. The watch after it goes on from there.
    """

    until_recovered = True

    def _has_no_use(self) -> bool:
        return not self._chain().faults and not self._restarted()

    def _restarted(self) -> bool:
        number = self._chain().open
        attempt = self.book.chain.load_attempt(number) if number is not None else None
        return attempt is not None and bool(attempt.incidents)
