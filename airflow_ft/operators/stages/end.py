"""The stages at the end of a chain: the task whose state is the training's, and the clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.handing_on import is_over
from airflow_ft.attempts.record import ENDED_OUTSIDE
from airflow_ft.attempts.staged import cancelled
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import End
from airflow_ft.operators.desk import now
from airflow_ft.operators.jobs import RendersJobs
from airflow_ft.operators.settings import job_from
from airflow_ft.operators.stages.base import StageOperator
from airflow_ft.operators.summary import log_incidents, result_of


class TrainingNotConcludedError(Exception):
    """The stages have ended, and training has no result: one of them was skipped or marked by somebody."""


class TrainingResultOperator(StageOperator):
    """End as the training has ended. Keeps the whole chain, as the single operator does."""

    looks_itself = True

    def stage(self, context: Any) -> Any:
        """Return the training's result, or raise what it failed with."""
        chain = self._chain()
        self._keep(context)
        for number in range(chain.segment_first, chain.attempts):
            attempt = self.book.chain.load_attempt(number)
            if attempt is not None and attempt.outcome is not None:
                self.log.info("Attempt %d: %s", number, attempt.outcome.text)
                log_incidents(self.log, attempt.incidents)
        if chain.concluded is End.SUCCEEDED:
            return result_of(chain, self.book.chain)
        if chain.decision is not None and is_over(chain):
            raise TrainingFault(chain.decision) from None
        raise TrainingNotConcludedError("Training has no result: a stage was skipped or marked before it was done.")


class CancelTrainingOperator(RendersJobs, StageOperator):
    """Cancel what is left of a chain: a teardown. Does nothing if training is over.

    :param job: as that of ``SubmitTrainingOperator``: a job whose creation was never confirmed is found by it.
    """

    template_fields: Sequence[str] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    looks_itself = True

    def __init__(self, *, job: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job

    def stage(self, context: Any) -> Any:
        """Cancel it."""
        before = self.book.chain.load()
        if before is None:
            self.log.info("Nothing was ever submitted.")
            return
        job = job_from(self.job)
        where = (self.book.chain, create_backend(job.backend), job)
        call = cancelled(*where, self.policy.grace_seconds, ENDED_OUTSIDE, now, self.log.info)
        chain = asyncio.run(call)
        if chain is not None:
            self._told(context, chain)
        if not is_over(before):  # the task whose state is the training's has not kept it
            self._keep(context)
