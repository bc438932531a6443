"""The retry policy: reads the decision off the exception. It decides nothing itself; ``core.decide`` did.

It runs in the worker, after ``execute`` or ``execute_complete`` raised. Airflow doesn't ask it when a worker is lost or
killed: those tries use the task's plain ``retry_delay``, and the next ``execute`` reconciles.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_ft.attempts.faults import TrainingFault, TryAgainLaterError
from airflow_ft.attempts.store import CHAIN_KEY
from airflow_ft.core.settings import SettingsError
from airflow_ft.operators.settings import TrainingSettingsError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

REASON_LENGTH = 500  # Airflow's column
UNFORESEEN_KEY = "ft/unforeseen"
SETTINGS_ERRORS = (TrainingSettingsError, SettingsError)  # a person has to change something first
# An exception that isn't ours, before any job exists: a broken template, an import that fails. Tried a few times.
UNFORESEEN_TRIES = 3
UNFORESEEN_DELAY = timedelta(seconds=30)  # and while a job runs: as often as it takes


class FaultToleranceRetryPolicy(RetryPolicy):
    """Retries or fails as the fault tolerance policy decided; exceptions that aren't ours follow Airflow's rules."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Return Airflow's form of the decision that ``exception`` carries."""
        if isinstance(exception, TryAgainLaterError):
            return RetryDecision.retry(delay=timedelta(seconds=exception.delay), reason=str(exception)[:REASON_LENGTH])
        if isinstance(exception, SETTINGS_ERRORS):
            return RetryDecision.fail(reason=str(exception)[:REASON_LENGTH])
        if not isinstance(exception, TrainingFault):
            return _unforeseen(exception, context)
        reason = str(exception)[:REASON_LENGTH]
        if exception.stops:
            return RetryDecision.fail(reason=reason)
        return RetryDecision.retry(delay=timedelta(seconds=exception.decision.delay), reason=reason)

    def serialize(self) -> dict[str, Any]:
        """Return nothing but the type: the policy has no settings of its own."""
        return {"__type": "FaultToleranceRetryPolicy"}


def _unforeseen(exception: BaseException, context: Context | None) -> RetryDecision:
    """Decide about an exception that isn't ours. While a job of the chain may run, the task never gives up on it."""
    count, running = _unforeseen_count(context)
    reason = f"{type(exception).__name__}: {exception}"[:REASON_LENGTH]
    if running or count < UNFORESEEN_TRIES:
        return RetryDecision.retry(delay=UNFORESEEN_DELAY, reason=reason)
    return RetryDecision.fail(reason=f"{count} times in a row, with no job running: {reason}"[:REASON_LENGTH])


def _unforeseen_count(context: Context | None) -> tuple[int, bool]:
    """Count this exception in the chain's store. Returns the count, and whether a job may be running."""
    try:
        store = context["task_state_store"]  # type: ignore[index]
        task: Any = context.get("task")  # type: ignore[union-attr]
        # A stage of the explicit form has the chain in its book.
        head = task.known_head() if hasattr(task, "known_head") else store.get(CHAIN_KEY, default=None)
        attempts = head.get("attempts", 0) if isinstance(head, dict) else 0
        last = store.get(UNFORESEEN_KEY, default=None)
        known = last if isinstance(last, dict) and last.get("attempts") == attempts else {}
        count = int(str(known.get("count", 0))) + 1
        store.set(UNFORESEEN_KEY, {"attempts": attempts, "count": count})
    except Exception:  # noqa: BLE001 - the store can't be reached: not knowing whether a job runs, go on
        return 1, True
    return count, isinstance(head, dict) and head.get("open") is not None
