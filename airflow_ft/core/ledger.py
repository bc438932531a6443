"""The ledger: the budgets and what has been spent of them (DESIGN §4).

A pure value. ``charge`` says what one decision costs, ``after_run`` what a run of the training earned back. The maxima
are not in here: they are the policy's, and a policy may change between two tries.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime

from airflow_ft.core.records import Record


class Run(Record):
    """What one run (one generation of one attempt) achieved. ``None`` means that it isn't known.

    :param last_step: the last step that was seen.
    :param seconds_beyond: seconds of steps beyond the chain's highest step before this run.
    :param new_checkpoint: the newest checkpoint's step that was saved in this run, if newer than the one loaded.
    :param healthy_seconds: seconds of running without a fault, whatever is known about steps.
    """

    first_step: int | None = None
    last_step: int | None = None
    seconds_beyond: float = 0.0
    new_checkpoint: int | None = None
    healthy_seconds: float = 0.0


class Ledger(Record):
    """What has been spent in this segment of the chain.

    ``restarts`` is charged to ``max_restarts``. ``unprogressed`` is the count that in-place and hang restarts share,
    ``hang_streak`` and ``unconditional_streak`` are consecutive counts of their own; ``free_at`` holds the times of all
    free restarts of the last hours; ``disruptions`` are counted without a step in between.
    """

    restarts: int = 0
    unconditional_streak: int = 0
    hang_streak: int = 0
    unprogressed: int = 0
    pod_restarts: int = 0
    disruptions: int = 0
    free_at: tuple[AwareDatetime, ...] = ()
    highest_step: int | None = None

    def charge(self, what: str, now: datetime) -> Ledger:
        """Return the ledger after a decision that costs ``what`` (``Decision.charged``)."""
        raise NotImplementedError

    def after_run(self, run: Run) -> Ledger:
        """Return the ledger after a run: progress beyond the highest step that lasts resets the consecutive counts."""
        raise NotImplementedError
