"""What every stage of the explicit form does the same way: find the chain's book, go on in it, hand it on, skip."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.bases.skipmixin import XCOM_SKIPMIXIN_FOLLOWED, XCOM_SKIPMIXIN_KEY
from airflow.sdk.exceptions import DownstreamTasksSkipped
from pydantic import JsonValue

from airflow_ft.attempts.conclude import VoidDecisionError
from airflow_ft.attempts.faults import TryAgainLaterError
from airflow_ft.attempts.handing_on import OWN_BOOK, SIGHT, Book, StageAttempt, handed_on, is_over, serial_of
from airflow_ft.attempts.orders import watch_order
from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.quarantine import Quarantine, entries_of, written
from airflow_ft.attempts.record import write_conclusion, write_interim
from airflow_ft.attempts.reports import STATE_KEY
from airflow_ft.attempts.staged import StageWatch, stage_watch
from airflow_ft.attempts.store import CHAIN_KEY
from airflow_ft.backends.base import BackendError
from airflow_ft.core.chain import Chain
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import read_policy
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.operators.desk import TaskStateStore, WorkerDesk, map_index_of, now, quiet, try_info
from airflow_ft.operators.links import RetryChainLink
from airflow_ft.operators.retry_policy import FaultToleranceRetryPolicy
from airflow_ft.operators.settings import LOST_TRY_DELAY, RETRIES, TrainingSettingsError, callables, refuse_retries
from airflow_ft.operators.shared import VariableStore
from airflow_ft.triggers.training import ATTEMPT_KEY

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

T = TypeVar("T")

BOOK_KEY = "ft_book"
RETURN_KEY = "return_value"
LATER_SECONDS = 10.0
NEVER_RAN = ("skipped", "upstream_failed", "removed")


@dataclass
class Group:
    """The stages of one group, in their order. ``end`` is the task whose state is the training's."""

    end: str = ""
    rounds: list[list[str]] = field(default_factory=list)  # the tasks of each attempt's sub-group
    stages: list[str] = field(default_factory=list)  # those that write the book, in their order
    choices: dict[str, dict[str, str]] = field(default_factory=dict)  # of each stage: what a branch may choose from

    def later(self, task_id: str) -> list[str]:
        """Return the tasks that come after ``task_id``: of its own sub-group and of all later ones."""
        number = next((n for n, tasks in enumerate(self.rounds) if task_id in tasks), None)
        if number is None:  # before the first
            return [one for tasks in self.rounds for one in tasks]
        own = self.rounds[number]
        return [*own[own.index(task_id) + 1 :], *(one for tasks in self.rounds[number + 1 :] for one in tasks)]


class StageOperator(BaseOperator):
    """One stage. It goes on where the chain's newest book stands, and returns the attempt for the next stage.

    :param attempt: what the stage before returned (``StageAttempt``), or a list of what several may have returned.
    :param group: the group that this stage stands in; ``fault_tolerant_training`` gives it.
    :param on_attempt: callables that hear of each event of the chain once, as ``FaultTolerantTrainingOperator``'s do.
    """

    template_fields: Sequence[str] = ("attempt",)
    ui_color = "#e8f4ea"
    operator_extra_links = (RetryChainLink(),)
    inherits_from_skipmixin = True  # Airflow asks: skips of ours are made again when a skipped task is cleared
    looks_itself = False  # whether it has work to do also when training is over

    def __init__(
        self,
        *,
        attempt: Any = None,
        group: Group | None = None,
        on_attempt: Sequence[Callable[[Any], Any]] | Callable[[Any], Any] = (),
        **kwargs: Any,
    ) -> None:
        refuse_retries(kwargs)
        kwargs.setdefault("retry_delay", LOST_TRY_DELAY)
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_SUCCESS)  # whatever default_args have: the group hangs on it
        super().__init__(**kwargs)
        self.retries = RETRIES
        self.retry_policy = FaultToleranceRetryPolicy()
        self.attempt = attempt
        self.group = group
        self.on_attempt = callables(on_attempt)
        self._book: Book | None = None

    # --- one stage -----------------------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Do what this stage is for."""
        return self._guarded(context, lambda: self.stage(context))

    def stage(self, context: Any) -> Any:
        """Do what this stage is for; return what it hands on."""
        raise NotImplementedError

    def _guarded(self, context: Any, work: Callable[[], Any]) -> Any:
        try:
            self._book = self._opened(context)
            if not self.looks_itself and is_over(self.book.chain.load()):
                self._to_the_end(context)
            return work()
        except UnreadableRecordError as error:
            raise TryAgainLaterError(f"A record of the chain can't be read: {error}", 300.0) from None
        except VoidDecisionError as error:
            raise TryAgainLaterError(f"Somebody else acted on this fault meanwhile: {error}", LATER_SECONDS) from None
        except BackendError as error:
            raise TryAgainLaterError(f"The job can't be seen: {error}", LATER_SECONDS) from None

    # --- the book ------------------------------------------------------------------------------------------------

    @property
    def book(self) -> Book:
        """The chain's book."""
        if self._book is None:
            raise TrainingSettingsError("attempt: nothing was handed on. Give what SubmitTrainingOperator returned.")
        return self._book

    def known_head(self) -> JsonValue:
        """Return the chain's head for the retry policy. Raises ``LookupError`` where the book is not known yet."""
        if self._book is None:
            raise LookupError("the book is not open")
        return self._book.get(CHAIN_KEY)

    def _opened(self, context: Any) -> Book:
        ti, store = context["ti"], TaskStateStore(context["task_state_store"])
        own = store.get(OWN_BOOK)
        found = max([own, *self._others(ti)], key=serial_of)

        def write(record: dict[str, JsonValue]) -> None:
            store.set(OWN_BOOK, record)
            ti.xcom_push(key=BOOK_KEY, value=record)

        return Book(found, write)

    def _others(self, ti: Any) -> list[Any]:
        """Return the books of other stages: of the last one that ran, or of all if a person may have cleared some."""
        given = [str(one["stage"]) for one in self._given() if one.get("stage")]
        known = list(self.group.stages) if self.group is not None else []
        stages = [one for one in dict.fromkeys([*known, *given]) if one != self.task_id]
        afresh = ti.try_number > 1
        found = []
        for task_id in reversed(_that_ran(ti, stages, cleared=afresh)):
            record = ti.xcom_pull(task_ids=task_id, key=BOOK_KEY, map_indexes=ti.map_index)
            if serial_of(record) >= 0:
                found.append(record)
                if not afresh:
                    break
        return found

    def _keep(self, context: Any) -> None:
        """Write the chain where the single operator has it: pages and commands find it at this task from now on."""
        store = TaskStateStore(context["task_state_store"])
        for key, value in self.book.records().items():
            store.set(key, value)

    def _given(self) -> list[dict[str, Any]]:
        """Return the attempts that were handed on. A person's own stage may have handed on anything."""
        given = self.attempt if isinstance(self.attempt, (list, tuple)) else [self.attempt]
        return [one for one in given if isinstance(one, dict)]

    def _chain(self) -> Chain:
        chain = self.book.chain.load()
        if chain is None:
            raise TrainingSettingsError("attempt: no stage before this one has submitted a training.")
        return chain

    @property
    def policy(self) -> FaultTolerancePolicy:
        """The policy, as the stage that submitted has written it down."""
        return read_policy(self.book.settings.policy)

    # --- the job -------------------------------------------------------------------------------------------------

    def _order(self, ti: Any, info: TryInfo, **more: Any) -> WatchOrder:
        """Return the order to watch the open attempt. The stage's XComs have what the stage before has seen."""
        chain, settings = self._chain(), self.book.settings
        attempt = self.book.chain.load_attempt(chain.open if chain.open is not None else -1)
        if attempt is None or attempt.ref is None:
            raise TryAgainLaterError("No job of the chain is known yet.", LATER_SECONDS)
        limit = settings.attempt_timeout_seconds
        limits = [(attempt.created_at + timedelta(seconds=limit), "attempt_timeout")] if limit else []
        deadline, name = min([*limits, *self._own_limits(ti)], default=(None, ""))
        ti.xcom_push(key=ATTEMPT_KEY, value={"name": attempt.name, "try_number": info.try_number})
        if (sight := self.book.get(SIGHT)) is not None:
            ti.xcom_push(key=STATE_KEY, value=sight)
        return watch_order(
            chain,
            attempt,
            info,
            self.policy,
            now(),
            nodes_needed=settings.nodes_needed,
            gpus=settings.gpus,
            deadline=deadline,
            deadline_name=name,
            quiet_seconds=quiet(),
            progress_pattern=settings.progress_pattern,
            staged=True,
            **more,
        )

    def _own_limits(self, ti: Any) -> list[tuple[datetime, str]]:
        """Return the time limits of this very stage, beside the attempt's: when, and what it is called."""
        return []

    def _step(self, context: Any, step: Callable[[StageWatch], Coroutine[Any, Any, T]]) -> T:
        """Do one step of a watch in this process; what it has seen is written into the book."""
        ti = context["ti"]
        watch = stage_watch(self._order(ti, try_info(context)), WorkerDesk(self.log, ti))
        done = asyncio.run(step(watch))
        self._take_sight(ti)
        return done

    def _take_sight(self, ti: Any) -> None:
        sight = ti.xcom_pull(task_ids=self.task_id, key=STATE_KEY, map_indexes=ti.map_index)
        if sight is not None and sight != self.book.get(SIGHT):
            self.book.set(SIGHT, sight)

    def _recorded(self, context: Any, conclusion: Conclusion) -> Chain:
        """Write what a watch, or a decision carried out, came to."""
        from airflow_ft.operators.summary import log_incidents, log_summary

        chain, store = self._chain(), self.book.chain
        attempt = store.load_attempt(conclusion.attempt)
        assert attempt is not None
        if conclusion.interim:
            log_incidents(self.log, [one for one in conclusion.incidents if one.generation > chain.told_generation])
            chain, _ = write_interim(store, chain, attempt, conclusion)
        else:
            chain = write_conclusion(store, chain, attempt, conclusion)
            quarantine = Quarantine(VariableStore(), self.book.settings.cluster)
            entries = entries_of(chain, conclusion.incidents)
            written(quarantine, entries, lambda text: self.log.warning("%s", text))
            log_summary(self.log, chain, attempt, conclusion, 50)
            self.book.set(SIGHT, None)
        self.book.fault = conclusion.fault
        return self._told(context, chain)

    def _told(self, context: Any, chain: Chain) -> Chain:
        from airflow_ft.notifications.outbox import send_due

        return send_due(self.on_attempt, context, self.book.chain, chain, self.log)

    # --- handing on ----------------------------------------------------------------------------------------------

    def _hands_on(self) -> dict[str, Any]:
        choices = self.group.choices.get(self.task_id, {}) if self.group is not None else {}
        attempt: StageAttempt = handed_on(self.book, self.task_id).but(choices=choices)
        return attempt.to_xcom()

    def _to_the_end(self, context: Any) -> None:
        """Training is over: skip every later stage at once. Raises ``DownstreamTasksSkipped``."""
        self.log.info("Training is over; no later stage is needed.")
        self._skip(context, self._later())

    def _later(self) -> list[str]:
        if self.group is not None:
            return self.group.later(self.task_id)
        return sorted(self.get_flat_relative_ids(upstream=False))

    def _skip(self, context: Any, task_ids: Sequence[str]) -> None:
        """Skip tasks by one request, whatever stands between; the scheduler would take seconds for each step.

        Which of the next tasks are followed is kept as Airflow's own branches do: for the day when they are cleared.
        """
        ti = context["ti"]
        book = self.book.to_record()
        ti.xcom_push(key=BOOK_KEY, value=book)
        ti.xcom_push(key=RETURN_KEY, value=self._hands_on())
        followed = sorted(self.downstream_task_ids - set(task_ids))
        ti.xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_FOLLOWED: followed})
        mapped = ti.map_index is not None and ti.map_index >= 0
        tasks = [(one, ti.map_index) for one in task_ids] if mapped else list(task_ids)
        raise DownstreamTasksSkipped(tasks=tasks)  # type: ignore[no-untyped-call]


def _that_ran(ti: Any, task_ids: list[str], *, cleared: bool) -> list[str]:
    """Return those of the tasks that have run, or may have: what was cleared has no state, but its XComs remain."""
    index = map_index_of(ti)
    found = ti.get_task_states(dag_id=ti.dag_id, task_ids=task_ids, run_ids=[ti.run_id], map_index=index)
    states = found.get(ti.run_id) or {}

    def ran(task_id: str) -> bool:
        state = states.get(task_id) or states.get(f"{task_id}_{index}")
        return cleared if state is None else str(getattr(state, "value", state)) not in NEVER_RAN

    return [one for one in task_ids if ran(one)]
