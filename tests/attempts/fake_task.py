"""Airflow's side of a task, without Airflow: tries, their tokens, XComs and state store, a triggerer, a clock.

``Task.run_try`` does what the operator does, in its order: start, watch (as a trigger or in the worker), the event,
``execute_complete``. Every process of ours can be made to die at a named point (``Died``), or to be frozen there while
something else happens.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest

from airflow_ft.attempts import conclude, record, start, watch
from airflow_ft.attempts.faults import PersonNeededError, TrainingFault, TryAgainLaterError
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.record import answer_question, write_conclusion, write_interim
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore, fitted
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.base import JobState
from airflow_ft.core.chain import Attempt, Chain, End
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.core.recovery import begin
from airflow_ft.core.sanitise import sanitise
from airflow_ft.diagnosis.signature_files import load_rules
from airflow_ft.notifications import outbox
from airflow_ft.notifications.outbox import send_due
from tests.attempts import virtual_time
from tests.attempts.fake_backend import FakeBackend, FakeJob
from tests.attempts.fake_cluster import Cluster, Run

T = TypeVar("T")

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
MODULES = (start, watch, conclude, record, outbox)
RULES = load_rules()


class Died(BaseException):
    """This process of ours was killed with SIGKILL."""


class ReplacedError(Exception):
    """What Airflow says to a try that has been replaced."""


class MemoryStore:
    """The task state store as one try sees it: JSON values; refuses writes when a newer try has begun."""

    def __init__(self, values: dict[str, str], is_current: Callable[[], bool]) -> None:
        self.values, self.is_current = values, is_current

    def get(self, key: str) -> Any:
        return json.loads(self.values[key]) if key in self.values else None

    def set(self, key: str, value: Any) -> None:
        if not self.is_current():
            raise ReplacedError(f"{key}: this try was replaced")
        self.values[key] = json.dumps(value, allow_nan=False)


class FakeDesk:
    """Log, XComs and clock of one watching process."""

    def __init__(self, task: Task, xcoms: dict[str, str]) -> None:
        self._task, self.xcoms = task, xcoms
        self.published: list[tuple[float, str, Any]] = []
        self.down = False  # Airflow can't be reached

    def say(self, text: str, *, warning: bool = False) -> None:
        self._task.say(text)

    async def publish(self, key: str, value: Any) -> None:
        if self.down:
            raise ConnectionError("Airflow is down")
        self.xcoms[key] = json.dumps(value, allow_nan=False)
        self.published.append((self._task.seconds(), key, value))

    async def recall(self, key: str) -> Any:
        if self.down:
            raise ConnectionError("Airflow is down")
        return json.loads(self.xcoms[key]) if key in self.xcoms else None

    def now(self) -> datetime:
        return self._task.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Task:
    """One task instance over all its tries."""

    def __init__(
        self,
        *scripts: list[Run],
        policy: FaultTolerancePolicy | None = None,
        nodes: int = 1,
        pool: int = 4,
        deferrable: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._loop: virtual_time.VirtualLoop | None = None
        self._seconds = 0.0
        self.cluster = Cluster(self.now, pool, scripts)
        self.backend = FakeBackend(self.cluster)
        self.policy = policy or FaultTolerancePolicy.full()
        self.job = FakeJob(nodes=nodes)
        self.deferrable, self.timeout = deferrable, timeout
        self.values: dict[str, str] = {}
        self.xcoms: dict[str, str] = {}
        self.try_number, self.max_tries = 0, 1000
        self.log: list[str] = []
        self.desks: list[FakeDesk] = []
        self.order: WatchOrder | None = None
        self.event: Any = None  # of the newest watch that came to an end
        self.tells = False  # whether somebody wants to hear of it
        self.messages: list[tuple[float, str, str]] = []  # when, kind, text
        self._happening: tuple[float, Callable[[Cluster], None]] | None = None

    # --- clock and processes -------------------------------------------------------------------------------------

    def seconds(self) -> float:
        return self._seconds if self._loop is None else self._loop.seconds

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.seconds())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one process of ours. The clock goes on from there, however it ends."""
        outer = self._loop
        coroutine = self._with_what_happens(coroutine) if self._happening is not None else coroutine
        loop = self._loop = virtual_time.VirtualLoop(self.seconds() if outer is None else outer.seconds)
        try:
            return virtual_time.run_on(loop, coroutine)
        finally:
            self._seconds, self._loop = loop.seconds, outer

    def happens(self, seconds: float, what: Callable[[Cluster], None]) -> None:
        """Let something happen to the cluster at this second, while some process of ours runs."""
        self._happening = seconds, what

    async def _with_what_happens(self, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds, what = self._happening or (0.0, lambda cluster: None)

        def happen() -> None:
            if self._happening is not None:
                self._happening = None
                what(self.cluster)

        asyncio.get_running_loop().call_later(max(0.0, seconds - self.seconds()), happen)
        return await coroutine

    def wait(self, seconds: float) -> None:
        self._seconds += seconds

    def say(self, text: str) -> None:
        self.log.append(f"{self.seconds():.1f} {text}")

    def told(self, words: str) -> bool:
        return any(words in line for line in self.log)

    # --- records -------------------------------------------------------------------------------------------------

    def store(self) -> ChainStore:
        number = self.try_number
        return ChainStore(MemoryStore(self.values, lambda: number == self.try_number))

    @property
    def chain(self) -> Chain:
        chain = self.store().load()
        assert chain is not None
        return chain

    @property
    def attempts(self) -> list[Attempt]:
        found = [self.store().load_attempt(number) for number in range(self.chain.attempts)]
        return [attempt for attempt in found if attempt is not None]

    # --- a try ---------------------------------------------------------------------------------------------------

    def info(self) -> TryInfo:
        return TryInfo(
            dag_id="dag",
            run_id="run",
            task_id="train",
            try_number=self.try_number,
            max_tries=self.max_tries,
            ti_id=f"ti-{self.try_number}",
        )

    def begin_try(self) -> None:
        """Airflow begins the next try: the one before can write nothing any more, and its XComs are gone."""
        self.try_number += 1
        self.xcoms.clear()
        self.order = None

    def starter(self, **changes: Any) -> Starter:
        return Starter(
            store=self.store(),
            backend=self.backend,
            job=self.job,
            policy=self.policy,
            info=self.info(),
            now=self.now,
            say=self.say,
            **changes,
        )

    def execute(self) -> str:
        """The operator's ``execute``, up to the deferral. Returns "deferred", or how the try ended."""
        chain, started = self.run(self.starter().start())
        self.send_due(chain)
        if started is None:
            return "success"
        self.order = self._order(chain, started.attempt)
        if self.deferrable and not (started.adopted and self._has_ended()):
            return "deferred"
        return self.complete(self.watch())

    def _has_ended(self) -> bool:
        assert self.order is not None
        job = self.cluster.jobs.get(self.order.ref.name)
        return job is None or self.cluster.state(job) in (JobState.ENDED, JobState.GONE)

    def make_watch(self) -> Watch:
        """One watching process. Its order went through JSON, as a trigger's does."""
        assert self.order is not None
        order = WatchOrder.from_record(json.loads(json.dumps(self.order.to_record())))
        desk = FakeDesk(self, self.xcoms)
        self.desks.append(desk)
        return Watch(order, self.policy, self.backend, desk, RULES)

    def watch(self) -> Any:
        """What a trigger does: watch until the attempt is over. Returns its event."""

        async def watched() -> Conclusion:
            return await self.make_watch().watch()

        self.event = json.loads(json.dumps(sanitise(fitted(self.run(watched())).to_record()), allow_nan=False))
        return self.event

    def complete(self, event: Any) -> str:
        """The operator's ``execute_complete``."""
        conclusion = Conclusion.from_record(event)
        store = self.store()
        chain = store.load()
        attempt = store.load_attempt(conclusion.attempt)
        assert chain is not None
        fits = (chain.chain_id, chain.open) == (conclusion.chain_id, conclusion.attempt)
        if attempt is None or not fits or conclusion.try_number != self.try_number:
            return self.execute()
        if conclusion.interim:
            chain, attempt = write_interim(store, chain, attempt, conclusion)
            self.send_due(chain)
            self.order = self._order(chain, attempt)
            return "deferred"
        chain = write_conclusion(store, chain, attempt, conclusion)
        self.send_due(chain)
        if chain.concluded is End.SUCCEEDED:
            return "success"
        if chain.decision is None:
            return "retry"
        if chain.decision.action is Action.ASK:
            raise PersonNeededError(chain.decision)
        raise TrainingFault(chain.decision)

    def answer(self, answer: str) -> str:
        """A person answers the open question: the operator's ``person_answered``."""
        store = self.store()
        chain = answer_question(store, self.chain, answer, "maria", self.policy, self.now())
        self.send_due(chain)
        if chain.open is not None:
            attempt = store.load_attempt(chain.open)
            assert attempt is not None
            self.order = self._order(chain, attempt)
            return self.settle(lambda: "deferred")
        assert chain.decision is not None
        if chain.decision.action is Action.FAIL:
            self.run(pay_debts(self.backend, chain, store, self.policy.grace_seconds))
            return "failed"
        return "retry"

    def send_due(self, chain: Chain) -> None:
        """The operator's ``_tell``."""

        def note(context: Any) -> None:
            self.messages.append((self.seconds(), context["ft_event"]["kind"], context["ft_event"]["text"]))

        send_due([note] if self.tells else [], {}, self.store(), chain, logging.getLogger(__name__))

    def run_try(self) -> str:
        """One whole try. Returns "success", "failed", "retry" or "later"; raises ``Died``."""
        self.begin_try()
        return self.settle(self.execute)

    def settle(self, step: Callable[[], str]) -> str:
        """Go on from ``step`` to the try's end, as Airflow and the retry policy see it."""
        try:
            state = step()
            while state == "deferred":
                state = self.complete(self.watch())
        except TrainingFault as fault:
            self.wait(fault.decision.delay)
            return "failed" if fault.stops else "retry"
        except TryAgainLaterError as later:
            self.wait(later.delay)
            return "later"
        except PersonNeededError:
            return "asked"
        return state

    def run_to_the_end(self, most: int = 30) -> str:
        """Try after try, until success or failure."""
        for _ in range(most):
            state = self.run_try()
            if state in ("success", "failed"):
                return state
        raise AssertionError(f"no end after {most} tries: {self.log[-20:]}")

    def clear(self) -> None:
        """A person clears the task: Airflow gives it further tries."""
        self.max_tries += 1001

    def _order(self, chain: Chain, attempt: Attempt) -> WatchOrder:
        assert attempt.ref is not None
        faults = chain.faults
        return WatchOrder(
            info=self.info(),
            ref=attempt.ref,
            segment=chain.segment,
            policy=write_policy(self.policy),
            ledger=chain.ledger,
            faults=faults,
            excluded_nodes=attempt.excluded_nodes,
            soft_nodes=attempt.soft_nodes,
            nodes_needed=self.job.nodes_needed(),
            highest_step=chain.highest_step,
            last_checkpoint=chain.last_checkpoint,
            recovery=attempt.recovery or (begin(faults[-1].step, chain.last_checkpoint, None) if faults else None),
            incidents=attempt.incidents,
            notices=attempt.notices,
            tells=self.tells,
            told_generation=chain.told_generation,
            told_notice_at=chain.told_notice_at,
            deadline=attempt.created_at + timedelta(seconds=self.timeout) if self.timeout else None,
            deadline_name="attempt_timeout" if self.timeout else "",
            deferred_at=self.now(),
        )

    # --- what must always hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants of a chain between two steps."""
        cluster, chain = self.cluster, self.chain
        assert not cluster.violations
        live = [job.ref.name for job in cluster.live(chain.chain_id)]
        assert len(live) <= 1
        if chain.open is None and not chain.debts:
            assert live == []
        assert chain.ledger.restarts <= self.policy.max_restarts
        names = [attempt.name for attempt in self.attempts]
        assert len(names) == chain.attempts == len(set(names))
        assert set(cluster.created) <= set(names), "a job that no attempt knows"
        for attempt in self.attempts:
            if attempt.outcome is not None:
                assert attempt.outcome.text.strip(), "an end without a word (UIO-04)"
            for incident in attempt.incidents:
                assert incident.diagnosis.text.strip()
                assert incident.decision.reason.strip()


# --- dying and freezing --------------------------------------------------------------------------------------------


@contextmanager
def at_point(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> Iterator[None]:
    """Call ``act`` with the name of each point that a process of ours comes to."""
    with monkeypatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "reach", act)
        yield


class Killer:
    """Dies when ``point`` is reached for the ``nth`` time (1 is the first)."""

    def __init__(self, point: str, nth: int = 1) -> None:
        self.point, self.left = point, nth

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                raise Died(point)

    @property
    def struck(self) -> bool:
        return self.left <= 0
