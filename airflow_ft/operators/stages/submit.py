"""The stages that create a job: ``SubmitTrainingOperator`` and ``ResubmitOperator``. Both call ``attempts.start``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import JsonValue

from airflow_ft.attempts.faults import PersonNeededError, TrainingFault, TryAgainLaterError
from airflow_ft.attempts.handing_on import SETTINGS, StageSettings, is_over
from airflow_ft.attempts.ports import TryInfo
from airflow_ft.attempts.quarantine import cluster_of
from airflow_ft.attempts.start import Starter
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.bisect_results import BisectResult
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.operators.bisect import result_of_value
from airflow_ft.operators.desk import TaskStateStore, now, try_info
from airflow_ft.operators.jobs import RendersJobs, job_to_run
from airflow_ft.operators.settings import (
    RETRIES,
    TrainingSettingsError,
    dag_folder,
    job_from,
    policy_from,
    refuse_arguments,
)
from airflow_ft.operators.shared import quarantine_of
from airflow_ft.operators.stages.faults import ActingStage

SEEN_KEY = "ft/seen"  # how often this task had been cleared when it ran last, and in which segment
SHORT_SECONDS = 10.0  # a delay that a worker sits out; for a longer one the task is tried again


class _SubmittingStage(RendersJobs, ActingStage):
    """What both have in common.

    :param job: what to train and where: ``LocalJob``, … Every string in it is templated.
    :param policy: as that of ``FaultTolerantTrainingOperator``.
    :param progress_pattern: as that of ``FaultTolerantTrainingOperator``.
    :param attempt_timeout: the longest time one attempt may take; then training fails.
    :param deferrable: whether the stages may defer. If not, no triggerer is needed.
    """

    template_fields: Sequence[str] = ("job", "attempt")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    looks_itself = True  # a person who clears it begins a new segment, also of a training that is over

    def __init__(
        self,
        *,
        job: Any,
        policy: Any = None,
        progress_pattern: str | None = None,
        attempt_timeout: timedelta | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.given_policy: FaultTolerancePolicy = policy_from(policy, job, dag_folder(self))
        # An argument of a mapped task group is known only when the task runs.
        self.job = job if hasattr(job, "iter_references") else job_from(job)
        self.progress_pattern = progress_pattern
        self.attempt_timeout = attempt_timeout
        self.deferrable = deferrable
        refuse_arguments(deferrable, attempt_timeout, progress_pattern, 0, self.on_attempt)
        self._killed = False

    def on_kill(self) -> None:
        """Create nothing any more. What exists already is the clean-up stage's, or the next try's."""
        self._killed = True

    @property
    def policy(self) -> FaultTolerancePolicy:
        """The policy that was given: a person may have changed it since the last attempt."""
        return self.given_policy

    def _submitted(self, context: Any, info: TryInfo) -> dict[str, Any]:
        """Bring the chain to the point where exactly one job of it exists."""
        job = job_to_run(self.job)
        timeout = self.attempt_timeout
        settings = StageSettings(
            policy=write_policy(self.policy),
            nodes_needed=job.nodes_needed(),
            gpus=job.gpus(),
            cluster=cluster_of(job),
            progress_pattern=self.progress_pattern,
            attempt_timeout_seconds=timeout.total_seconds() if timeout else None,
            deferrable=self.deferrable,
        )
        self.book.set(SETTINGS, settings.to_record())
        starter = Starter(
            store=self.book.chain,
            backend=create_backend(job.backend),
            job=job,
            policy=self.policy,
            info=info,
            now=now,
            say=lambda text: self.log.info("%s", text),
            killed=lambda: self._killed,
            progress_pattern=self.progress_pattern,
            quarantine=quarantine_of(job),
            avoid=self._avoided(),
            bisected=self._bisected(),
        )
        try:
            chain, _ = asyncio.run(starter.start())
        except TrainingFault as fault:
            self.log.warning("%s", fault)
        except PersonNeededError:
            self._told(context, self._chain())
            self._ask(context, anew=False)
        else:
            self._told(context, chain)
        seen: dict[str, JsonValue] = {"max_tries": try_info(context).max_tries, "segment": self._chain().segment}
        TaskStateStore(context["task_state_store"]).set(SEEN_KEY, seen)
        if is_over(self._chain()):
            self._told(context, self._chain())
            self._to_the_end(context)
        return self._hands_on()

    def _avoided(self) -> tuple[str, ...]:
        """Return the nodes that a preflight before the first attempt has found bad (``PreflightOperator``)."""
        found: list[str] = []
        for nodes in (given.get("excluded_nodes") or () for given in self._given() if "chain_id" not in given):
            if not isinstance(nodes, (list, tuple)) or not all(isinstance(node, str) for node in nodes):
                raise TrainingSettingsError(f"excluded_nodes: {nodes!r:.80} is not allowed. Give a list of names.")
            found += nodes
        return tuple(dict.fromkeys(found))

    def _bisected(self) -> BisectResult | None:
        """Return what a stage before has found of the attempt that failed (``BisectOperator``, or alike)."""
        chain = self.book.chain.load()
        if chain is None or chain.open is not None:
            return None
        about = (chain.chain_id, chain.attempts - 1)
        for given in self._given():
            if "faulty_nodes" in given and (given.get("chain_id"), given.get("number")) == about:
                return result_of_value(given)
        return None

    def _chain_info(self, context: Any) -> TryInfo:
        """Return this try as the chain counts: of the task whose state is the training's, cleared or not."""
        info, chain = try_info(context), self.book.chain.load()
        if self.group is not None:
            info = info.but(task_id=self.group.end)
        if chain is None:
            return info
        return info.but(max_tries=chain.max_tries + (1 if self._is_cleared(context) else 0))

    def _is_cleared(self, context: Any) -> bool:
        """Whether a person has cleared this very task, and no stage before it has begun a segment because of that."""
        seen, chain = TaskStateStore(context["task_state_store"]).get(SEEN_KEY), self.book.chain.load()
        known = seen if isinstance(seen, dict) else {"max_tries": RETRIES, "segment": chain.segment if chain else 0}
        grown = try_info(context).max_tries > int(str(known["max_tries"]))
        return chain is not None and grown and known["segment"] == chain.segment


class SubmitTrainingOperator(_SubmittingStage):
    """Submit the training; return its attempt. Adopts a job that an earlier try of this task has submitted.

    ``attempt`` may be what a ``PreflightOperator`` has returned: the first attempt avoids the nodes that it found bad.
    """

    def stage(self, context: Any) -> Any:
        """Begin the chain, or a new segment of it."""
        from airflow_ft.operators.triggerers import require_triggerer

        if self.deferrable and self.book.chain.load() is None:
            require_triggerer()
        return self._submitted(context, self._chain_info(context))


class ResubmitOperator(_SubmittingStage):
    """Stop what is left of the attempt that failed, wait as long as was decided, and submit the next one.

    If the policy has decided otherwise (a branch of a user's own has led here) the attempt is resubmitted all the same,
    and charged as a restart. A bisect that was decided is done here, unless ``attempt`` has what a ``BisectOperator``
    has returned about the attempt that failed.
    """

    actions = (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING, Action.BISECT)

    def stage(self, context: Any) -> Any:
        """Conclude the open attempt, if it has a fault; then submit."""
        cleared = self._is_cleared(context)
        if not cleared:
            self._acted(context)
            self._wait()
            if is_over(self._chain()):
                self._to_the_end(context)
        return self._submitted(context, self._chain_info(context))

    def _wait(self) -> None:
        chain = self._chain()
        last = self.book.chain.load_attempt(chain.attempts - 1)
        if chain.open is not None or chain.decision is None or last is None or last.ended_at is None:
            return
        left = (last.ended_at + timedelta(seconds=chain.decision.delay) - now()).total_seconds()
        if left > SHORT_SECONDS:
            raise TryAgainLaterError(f"The next attempt is submitted in {left:.0f} s.", left)
        time.sleep(max(0.0, left))
