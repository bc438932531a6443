"""``FaultTolerantTrainingOperator``: long training that survives its faults, as one task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, XComArg

from airflow_ft.attempts.crash_points import current_run, reach
from airflow_ft.attempts.faults import PersonNeededError, TrainingFault, TryAgainLaterError
from airflow_ft.attempts.orders import watch_order
from airflow_ft.attempts.ports import TASK_ENDED, Conclusion, Started, TryInfo, WatchOrder
from airflow_ft.attempts.quarantine import entries_of, written
from airflow_ft.attempts.record import write_conclusion, write_interim
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.base import CLEAR, Backend, TrainingJob
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Attempt, Chain, End
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.operators.asking import AsksPeople, is_open
from airflow_ft.operators.desk import CLEARED, DELETED, TaskStateStore, WorkerDesk, now, quiet, task_state, try_info
from airflow_ft.operators.jobs import RendersJobs, job_to_run
from airflow_ft.operators.links import RetryChainLink, TrainingJobLink, TrainingLogLink
from airflow_ft.operators.retry_policy import FaultToleranceRetryPolicy
from airflow_ft.operators.settings import (
    LOST_TRY_DELAY,
    RETRIES,
    TrainingSettingsError,
    callables,
    dag_folder,
    job_from,
    policy_from,
    refuse_arguments,
    refuse_retries,
)
from airflow_ft.operators.shared import quarantine_of
from airflow_ft.triggers.training import ATTEMPT_KEY, INTERIM, TrainingTrigger

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

KILL_SECONDS = 4.0  # Airflow sends SIGKILL five seconds after SIGTERM


class FaultTolerantTrainingOperator(RendersJobs, AsksPeople, BaseOperator):
    """Submit a training job, watch that it advances, and bring it back when it dies or stalls.

    Each attempt on the cluster is one try of this task; a restart in place stays inside its try. The retry chain is
    kept in the task's state store: see ``airflow ft chain DAG RUN TASK``.

    :param job: what to train and where: ``LocalJob``, … Every string in it is templated.
    :param policy: a ``FaultTolerancePolicy``, a dictionary of its fields, a preset's name ("multi_node"), or the path
        of a policy file. Default: the annotations of the job's manifest, else section ``[fault_tolerance]``.
    :param deferrable: watch in the triggerer (default) instead of holding a worker slot.
    :param attempt_timeout: the longest time one attempt may take. Then it is stopped and the task fails: a limit, not a
        fault. ``execution_timeout`` limits a try in the same way, deferred or not.
    :param progress_pattern: a regular expression with a group ``step`` (and ``loss``), when training prints its steps
        in a form that isn't recognised by itself.
    :param log_tail_lines: how many of the training's last lines are copied into the try's log at its end.
    :param on_attempt: callables (any Airflow notifier: Slack, SMTP, …) that are called with the context once for each
        fault, stop and success of the chain. Templates have ``ft_event`` (``ft_event.text`` is ready to be read on a
        phone) and ``ft_attempt``, the attempt that it is about.
    """

    template_fields: Sequence[str] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#e8f4ea"
    operator_extra_links = (RetryChainLink(), TrainingJobLink(), TrainingLogLink())

    def __init__(
        self,
        *,
        job: TrainingJob,
        policy: Any = None,
        deferrable: bool = True,
        attempt_timeout: timedelta | None = None,
        progress_pattern: str | None = None,
        log_tail_lines: int = 50,
        on_attempt: Sequence[Callable[[Any], Any]] | Callable[[Any], Any] = (),
        **kwargs: Any,
    ) -> None:
        refuse_retries(kwargs)
        kwargs.setdefault("retry_delay", LOST_TRY_DELAY)
        super().__init__(**kwargs)
        self.retries = RETRIES
        self.retry_policy = FaultToleranceRetryPolicy()
        self.policy = policy_from(policy, job, dag_folder(self))
        self.job = job if isinstance(job, XComArg) else job_from(job)
        self.deferrable = deferrable
        self.attempt_timeout = attempt_timeout
        # The limit is kept by the watch, so that it is the same deferred or not, and so that the job goes with it.
        self.try_timeout, self.execution_timeout = self.execution_timeout, None
        self.progress_pattern = progress_pattern
        self.log_tail_lines = log_tail_lines
        self.on_attempt = callables(on_attempt)
        refuse_arguments(deferrable, attempt_timeout, progress_pattern, log_tail_lines, self.on_attempt)
        self._killed = False
        self._stopper: threading.Thread | None = None
        self._try: TryInfo | None = None
        self._live: tuple[Backend, TrainingJob, str, str] | None = (
            None  # what on_kill has to stop: backend, job name, chain id
        )

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Prepare a mapped task: the scheduler never runs ``__init__``, so the retries have to be in the arguments."""
        refuse_retries(kwargs)
        mapped = super().partial(**kwargs)
        mapped.kwargs.update(retries=RETRIES, retry_policy=FaultToleranceRetryPolicy())
        mapped.kwargs.setdefault("retry_delay", LOST_TRY_DELAY)
        return mapped

    # --- the try -------------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Begin or go on: replay, reconcile, fence, submit, watch."""
        try:
            return self._execute(context)
        finally:
            self._leave()

    def _execute(self, context: Context) -> Any:
        from airflow_ft.operators.summary import result_of
        from airflow_ft.operators.triggerers import require_triggerer

        info = try_info(context)
        current_run.set(info.run_id)
        reach("execute.begin")
        job = job_to_run(self.job)
        backend = create_backend(job.backend)
        store = ChainStore(TaskStateStore(context["task_state_store"]))
        self._try = info
        starter = Starter(
            store=store,
            backend=backend,
            job=job,
            policy=self.policy,
            info=info,
            now=now,
            say=lambda text: self.log.info("%s", text),
            killed=lambda: self._killed,
            naming=lambda name, chain: setattr(self, "_live", (backend, job, name, chain)),
            progress_pattern=self.progress_pattern,
            quarantine=quarantine_of(job),
        )
        try:
            if self.deferrable and store.load() is None:
                require_triggerer()
            chain, started = asyncio.run(starter.start())
        except UnreadableRecordError as error:
            raise TryAgainLaterError(f"The chain's record can't be read: {error}", 300.0) from None
        except TrainingFault:
            self._tell_what_is_left(context, store)
            raise
        except PersonNeededError:
            self._tell_what_is_left(context, store)
            self._ask_again(context, store, info, quiet())
            raise
        self._tell(context, store, chain)  # what a try that was lost has recorded, but not told
        if started is None:
            self.log.info("Training is done already; nothing is run again.")
            return result_of(chain, store)
        return self._watch(context, store, chain, started, info)

    def _watch(self, context: Context, store: ChainStore, chain: Chain, started: Started, info: TryInfo) -> Any:
        from airflow_ft.attempts.watch import has_ended, prepared_watch

        ti, attempt = context["ti"], started.attempt
        assert attempt.ref is not None
        ti.xcom_push(key=ATTEMPT_KEY, value={"name": attempt.name, "try_number": info.try_number})
        order = self._order(chain, attempt, info, ti)
        reach("execute.before_defer")
        if self.deferrable and not (started.adopted and asyncio.run(has_ended(order))):
            self.log.info("Watching attempt %d in the triggerer.", attempt.number)
            self.defer(trigger=TrainingTrigger(order=order.to_record()), method_name="execute_complete")
        while (conclusion := asyncio.run(prepared_watch(order, WorkerDesk(self.log, ti)).watch())).interim:
            chain, attempt = self._hand_over(context, store, chain, attempt, conclusion)
            order = self._order(chain, attempt, info, ti)
        return self._record(context, store, chain, attempt, conclusion)

    def _hand_over(
        self, context: Context, store: ChainStore, chain: Chain, attempt: Attempt, so_far: Conclusion
    ) -> tuple[Chain, Attempt]:
        """Record and tell what has happened to an attempt that goes on."""
        from airflow_ft.operators.summary import log_incidents

        log_incidents(self.log, [one for one in so_far.incidents if one.generation > chain.told_generation])
        chain, attempt = write_interim(store, chain, attempt, so_far)
        return self._tell(context, store, chain), attempt

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Take the trigger's event: record first, raise second. An event that doesn't fit changes nothing."""
        try:
            return self._execute_complete(context, event)
        finally:
            self._leave()

    def _execute_complete(self, context: Context, event: dict[str, Any] | None) -> Any:
        info = try_info(context)
        current_run.set(info.run_id)
        reach("complete.begin")
        store = ChainStore(TaskStateStore(context["task_state_store"]))
        self._try = info
        goes_on = isinstance(event, dict) and INTERIM in event
        try:
            conclusion = Conclusion.from_record(event[INTERIM] if event and goes_on else event)
            chain = store.load()
        except UnreadableRecordError as error:
            self.log.warning("The event can't be read (%s); looking at the job instead.", error)
            return self._execute(context)
        attempt = store.load_attempt(conclusion.attempt) if chain is not None else None
        fits = (
            chain is not None
            and attempt is not None
            and (chain.chain_id, chain.open) == (conclusion.chain_id, conclusion.attempt)
            and conclusion.try_number == info.try_number
        )
        if not fits or chain is None or attempt is None:
            self.log.warning("The event is not about the attempt that is open; looking at the job instead.")
            return self._execute(context)
        job_to_run(self.job)  # for its secrets: what follows may copy the training's log
        if goes_on:
            chain, attempt = self._hand_over(context, store, chain, attempt, conclusion)
            return self._watch(context, store, chain, Started(attempt=attempt, adopted=True), info)
        return self._record(context, store, chain, attempt, conclusion)

    def _record(
        self, context: Context, store: ChainStore, chain: Chain, attempt: Attempt, conclusion: Conclusion
    ) -> Any:
        from airflow_ft.operators.summary import log_summary, result_of

        chain = write_conclusion(store, chain, attempt, conclusion)
        entries = entries_of(chain, conclusion.incidents)
        written(quarantine_of(job_from(self.job)), entries, lambda text: self.log.warning("%s", text))
        self._live = None
        log_summary(self.log, chain, attempt, conclusion, self.log_tail_lines)
        self._tell(context, store, chain)
        reach("complete.before_raise")
        decision = chain.decision
        if chain.concluded is End.SUCCEEDED:
            return result_of(chain, store)
        if is_open(decision):
            self._ask(context, store)
        last = conclusion.incidents[-1] if conclusion.incidents else None
        fallback = Decision(action=Action.RESUBMIT, reason=conclusion.outcome.text, ledger=chain.ledger)
        raise TrainingFault(decision or fallback, last.diagnosis if last else None) from None

    # --- a person, or the worker's end ---------------------------------------------------------------------------

    def on_kill(self) -> None:
        """Stop the job if a person has ended or cleared the task. Runs in a signal handler: it only starts a thread.

        Airflow also ends a task whose try it has given to somebody else (a lost heartbeat: the job is adopted), and one
        whose api-server is away. Those jobs are healthy, and stay: doubt never kills. The next try adopts the job, and
        ``airflow ft reap`` has what no try answers for.
        """
        self._killed = True
        if self._try is not None and self._stopper is None:
            self._stopper = threading.Thread(target=self._obey, args=(self._try,), daemon=True)
            self._stopper.start()

    def _obey(self, info: TryInfo) -> None:
        """Stop the job if the task was ended or cleared. The job itself tells the next try of a clear."""
        state = task_state(info)
        if self._live is None:
            return
        backend, job, name, chain = self._live
        if state not in (CLEARED, DELETED, *TASK_ENDED):
            self.log.warning("This process is being ended, the task is not (%s): %s is not touched.", state, name)
            return
        self.log.warning("This task is %s; stopping %s, if it is ours.", state, name)
        by = CLEAR if state == CLEARED else "airflow_ft"
        asyncio.run(_stop(backend, job, name, chain, self.policy.grace_seconds, by))

    def _leave(self) -> None:
        """Before this process ends: let the thread stop the job; notice a clear that came too late for a signal."""
        if self._stopper is not None:
            self._stopper.join(KILL_SECONDS)
        elif self._try is not None and self._live is not None and task_state(self._try) == CLEARED:
            self._obey(self._try)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _order(self, chain: Chain, attempt: Attempt, info: TryInfo, ti: Any) -> WatchOrder:
        limits = []
        if self.attempt_timeout is not None:
            limits.append((attempt.created_at + self.attempt_timeout, "attempt_timeout"))
        if self.try_timeout is not None:
            limits.append((ti.start_date + self.try_timeout, "execution_timeout"))
        deadline, name = min(limits, default=(None, ""))
        job = job_from(self.job)
        return watch_order(
            chain,
            attempt,
            info,
            self.policy,
            now(),
            nodes_needed=job.nodes_needed(),
            gpus=job.gpus(),
            tells=bool(self.on_attempt),
            deadline=deadline,
            deadline_name=name,
            quiet_seconds=quiet(),
            progress_pattern=self.progress_pattern,
        )

    def _tell(self, context: Context, store: ChainStore, chain: Chain) -> Chain:
        from airflow_ft.notifications.outbox import send_due

        return send_due(self.on_attempt, context, store, chain, self.log)

    def _tell_what_is_left(self, context: Context, store: ChainStore) -> None:
        chain = store.load()
        if chain is not None:
            self._tell(context, store, chain)


async def _stop(backend: Backend, job: TrainingJob, name: str, chain: str, grace: float, by: str) -> None:
    """Stop a job that may not have been created yet; then nothing will be, under this name."""
    ref = await backend.find(name, chain, job)
    if ref is not None and ref.not_ours:
        return
    if ref is None:
        await backend.fence(name, chain, job)
    else:
        await backend.cancel(ref, grace, by=by)


__all__ = ["FaultTolerantTrainingOperator", "TrainingSettingsError"]
