"""The retry policy: reads the decision off the exception. It decides nothing itself; ``core.decide`` did.

It runs in the worker, after ``execute`` or ``execute_complete`` raised. Airflow doesn't ask it when a worker is lost or
killed: those tries use the task's plain ``retry_delay``, and the next ``execute`` reconciles.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_ft.attempts.faults import TrainingFault, TryAgainLaterError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

REASON_LENGTH = 500  # Airflow's column


class FaultToleranceRetryPolicy(RetryPolicy):
    """Retries or fails as the fault tolerance policy decided; exceptions that aren't ours follow Airflow's rules."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Return Airflow's form of the decision that ``exception`` carries."""
        if isinstance(exception, TryAgainLaterError):
            return RetryDecision.retry(delay=timedelta(seconds=exception.delay), reason=str(exception)[:REASON_LENGTH])
        if not isinstance(exception, TrainingFault):
            return RetryDecision.default()
        reason = str(exception)[:REASON_LENGTH]
        if exception.stops:
            return RetryDecision.fail(reason=reason)
        return RetryDecision.retry(delay=timedelta(seconds=exception.decision.delay), reason=reason)

    def serialize(self) -> dict[str, Any]:
        """Return nothing but the type: the policy has no settings of its own."""
        return {"__type": "FaultToleranceRetryPolicy"}
