"""Watch: follow one attempt until it ended, and restart it in place meanwhile where the policy says so.

One coroutine, run by the trigger (deferred) or by the worker (``deferrable=False``). Each turn looks at the job, reads
what its logs gained, and asks four questions in this order: is its time up, has it ended, is something of it held or
lost, has it stopped advancing. The verdict on an end is always taken from an observation made *after* the logs were
read (story WAT-01).

The supervisor's own failures stay its own: an exception in a turn is logged, counted, told in the chain, and the next
turn looks again. It never ends, kills or charges a live job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import JsonValue

from airflow_ft.attempts.account import CANCELLED, Account, stop_decision
from airflow_ft.attempts.conclude import Concluder, VoidDecisionError
from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.ports import Conclusion, Desk, WatchOrder
from airflow_ft.attempts.pulse import Pulse
from airflow_ft.attempts.queueing import UNSCHEDULABLE, is_overdue, softer
from airflow_ft.attempts.reports import STATE_KEY, Reporter
from airflow_ft.attempts.second_signals import SecondSignals
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import PERSON, Backend, BackendError, JobState, NodeReport, Observation
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Debt, End, Incident, Outcome
from airflow_ft.core.decisions import Action
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import read_policy
from airflow_ft.core.rules import RuleSet
from airflow_ft.diagnosis.signature_files import load_rules

READ_BYTES = 4_000_000  # of new log a turn
PAUSE_AFTER_ERROR_SECONDS = 5.0
PAUSE_UNREACHABLE_SECONDS = 2.0  # an order that a full disk takes none of would be tried, and told, twice a second
SETTLE_LOOK_SECONDS = 0.25

UNREACHABLE_SAID_EVERY_SECONDS = 60.0
POOL_SECONDS = 60.0  # between two looks at the pool of a job that waits for nodes
SEND_AGAIN_SECONDS = 5.0  # an agent takes up to 10 s to end its tree; whom the order never reached should not wait long


class Watch:
    """The watch over one attempt."""

    def __init__(
        self,
        order: WatchOrder,
        policy: FaultTolerancePolicy,
        backend: Backend,
        desk: Desk,
        rules: RuleSet,
        secrets: Sequence[str] = (),
    ) -> None:
        self._order, self._policy, self._backend, self._desk = order, policy, backend, desk
        self._sight = Sight(order, policy, desk.now)
        self._concluder = Concluder(order, policy, backend, desk, self._sight, rules, secrets)
        self._signals = SecondSignals(backend, order.ref, desk)
        self._reporter = Reporter(desk, order.ref)
        self._account = Account(order, self._sight, desk.now)
        self._unreachable_since: datetime | None = None
        self._unreachable_said: datetime | None = None
        self._hang_noticed = False
        self._pool_asked: datetime | None = None
        self._foreign_told = 0
        self._errors = 0
        self._recalled: dict[int, Incident] = {}  # restarts in place that an earlier watch of this try has ordered
        self._sent_at: datetime | None = None

    async def watch(self) -> Conclusion:
        """Watch until the attempt is over, or until there is news. Only cancellation gets out of here otherwise."""
        async with Pulse() as pulse:
            await self._take_up()
            while True:
                try:
                    conclusion = await self._turn(pulse)
                except BackendError as error:
                    self._unreachable(str(error))
                    await self._desk.sleep(PAUSE_UNREACHABLE_SECONDS)
                    conclusion = None
                except VoidDecisionError as error:
                    self._desk.say(f"Somebody else acted on this incident meanwhile ({error}); looking again.")
                    conclusion = None
                except Exception as error:  # noqa: BLE001 - a supervisor's border: our bug must not end a live job
                    await self._survived(error)
                    conclusion = None
                if conclusion is not None:
                    return conclusion
                await self._desk.sleep(self._backend.poll_seconds)

    async def _turn(self, pulse: Pulse) -> Conclusion | None:
        seen = await self._look()
        self._sight.expected = max(self._sight.expected, seen.generation)
        await self._read()
        reach("watch.looked")
        self._learn(seen)
        self._account.remember_recovery()
        await self._reporter.tell(seen, self._sight, self._state())
        return await self._react(seen, pulse) or await self._news(seen)

    async def _news(self, seen: Observation) -> Conclusion | None:
        """Hand over what people should hear now, and only while nothing has to be done: the next watch goes on."""
        since = self._order.deferred_at
        if self._order.until_recovered and (self._sight.recovery is None or self._sight.recovery.state != "pending"):
            await self._reporter.hand_over(self._state())
            return self._account.interim(seen)
        quiet = since is not None and (self._desk.now() - since).total_seconds() < self._order.quiet_seconds
        calm = seen.state is JobState.RUNNING and all(node.generation == seen.generation for node in seen.nodes)
        if not self._order.tells or quiet or not calm or not self._account.has_news or self._account.is_fresh:
            return None
        await self._reporter.hand_over(self._state())
        return self._account.interim(seen)

    # --- seeing --------------------------------------------------------------------------------------------------

    async def _look(self) -> Observation:
        seen = await limited(self._backend.observe(self._order.ref), LOOK_SECONDS, f"looking at {self._order.ref.name}")
        if self._unreachable_since is not None:
            self._account.notice("reachable", f"{self._order.ref.name} can be reached again.")
            self._unreachable_since = None
        return seen

    async def _read(self) -> None:
        chunks, cursors = await limited(
            self._backend.read_logs(self._order.ref, self._sight.cursors, READ_BYTES), LOOK_SECONDS, "reading logs"
        )
        # In a thread: a log that gained megabytes takes seconds to read, and all triggers share this event loop.
        for text in await asyncio.to_thread(self._sight.take, chunks, cursors):
            self._desk.say(text)
        self._account.remember_recovery()

    def _unreachable(self, why: str) -> None:
        now = self._desk.now()
        if self._unreachable_since is None:
            self._unreachable_since = now
            self._account.notice("unreachable", f"The job can't be seen: {why} Nothing is done because of it.")
        said = self._unreachable_said
        if said is None or (now - said).total_seconds() >= UNREACHABLE_SAID_EVERY_SECONDS:
            self._unreachable_said, step = now, self._sight.progress.step
            since = f"{self._unreachable_since:%H:%M:%S}"
            self._desk.say(f"Can't be reached since {since} ({why:.300}), last seen step {step}.", warning=True)

    async def _survived(self, error: Exception) -> None:
        self._errors += 1
        self._account.notice(
            "supervisor_error", f"The supervisor itself failed ({error!r:.200}); the job is not touched."
        )
        self._desk.say(f"The supervisor itself failed, the job is not touched: {error!r}", warning=True)
        await self._desk.sleep(PAUSE_AFTER_ERROR_SECONDS)

    # --- state that outlives this process ------------------------------------------------------------------------

    def _state(self) -> dict[str, JsonValue]:
        return {"attempt": self._order.ref.attempt, "sight": self._sight.to_state()}

    async def _take_up(self) -> None:
        """Take up what an earlier watch of this try has saved, if it is about this attempt."""
        try:
            saved: Any = await self._desk.recall(STATE_KEY)
            if isinstance(saved, dict) and saved.get("attempt") == self._order.ref.attempt:
                self._recalled = await self._concluder.recalled()
                self._sight.take_up(saved["sight"])
                self._desk.say("Going on with the watch that another process began.")
        except Exception as error:  # noqa: BLE001 - a supervisor's border: the log is read from its beginning instead
            self._desk.say(
                f"The saved state of the watch can't be used ({error!r}); reading the log from its beginning."
            )

    def _learn(self, seen: Observation) -> None:
        """Learn of restarts in place that another process has ordered: from this try's XComs, else from the agents."""
        for incident in self._account.learn(seen, self._recalled):
            generation = incident.decision.generation
            self._desk.say(f"Generation {generation} was ordered by another process; its decision is taken over.")
        self._sight.restarted(seen.generation)

    # --- reacting ------------------------------------------------------------------------------------------------

    async def _react(self, seen: Observation, pulse: Pulse) -> Conclusion | None:
        over = seen.state in (JobState.ENDED, JobState.GONE)  # a job that came to its end just in time is not stopped
        if self._order.deadline is not None and self._desk.now() >= self._order.deadline and not over:
            return await self._time_is_up(seen)
        if seen.state is JobState.ENDED and seen.code == 0 and not any(node.term for node in seen.nodes):
            return await self._succeeded(seen)
        if seen.cancelled:
            return await self._cancelled(seen, pulse)
        if seen.state is JobState.GONE and self._had_finished():
            return await self._succeeded(
                seen, "the job is gone, and how it ended is not known; it had finished by then"
            )
        if over:
            return await self._fault(seen, None, pulse)
        if seen.state is JobState.QUEUED:
            return await self._queued(seen)
        if await self._joining(seen):
            return None
        if self._is_ending(seen):
            return await self._fault(await self._settled(seen), None, pulse, detected_at=seen.at)
        if self._restarts_itself():
            return await self._fault(seen, None, pulse, takes_over=True)
        verdict = await self._hang_verdict(seen)
        return await self._fault(seen, verdict, pulse) if verdict is not None else None

    def _restarts_itself(self) -> bool:
        """Whether somebody below us restarts training again and again at the same place: we take over (PRG-05)."""
        count, policy = self._sight.foreign_restarts, self._policy
        if count and count != self._foreign_told:
            who = "somebody else (operator, scheduler, launcher)"
            text = f"Training was restarted by {who}, {count} times without a new step."
            self._account.notice("foreign_restart", text)
            self._desk.say(text, warning=True)
        self._foreign_told = count
        acts = policy.mode in ("advanced", "full") and policy.enabled and policy.on_fault != "notify"
        return acts and self._order.ref.own and count >= max(1, policy.max_in_place)

    async def _joining(self, seen: Observation) -> bool:
        """Whether nodes have yet to come to the newest generation; the order is given again to those it didn't reach.

        If one of them refuses it can't come any more (its hold was over): then it is a fault like any other.
        """
        ordered = [one for one in self._account.incidents if one.decision.generation == seen.generation]
        behind = [node for node in seen.nodes if node.generation < seen.generation]
        if not ordered or not behind or any(node.lost or not node.agent for node in seen.nodes):
            return False
        now = self._desk.now()
        if self._sent_at is not None and (now - self._sent_at).total_seconds() < SEND_AGAIN_SECONDS:
            return True
        self._sent_at = now
        self._desk.say(f"Not on generation {seen.generation} yet: {', '.join(node.node for node in behind)}.")
        try:
            await self._concluder.join(ordered[-1])
        except VoidDecisionError:
            return False
        return True

    def _is_ending(self, seen: Observation) -> bool:
        """Whether this run is over, although not everything of it has ended.

        A node is held, lost, or no longer held; or its launcher has announced that it gives up *and* a child of it is
        really gone.
        """
        return seen.state is JobState.HELD or any(
            node.lost or _failed(node) or (node.first_sign_at is not None and self._sight.gives_up(node.node))
            for node in seen.nodes
        )

    async def _settled(self, seen: Observation) -> Observation:
        """Give evidence time to arrive, but no longer than until every node's launcher has said its word.

        The observation that counts is made after the logs were read.
        """
        until = self._desk.now() + timedelta(seconds=self._policy.settle_seconds)
        while self._desk.now() < until and not all(self._has_spoken(node) for node in seen.nodes):
            await self._desk.sleep(min(SETTLE_LOOK_SECONDS, self._policy.settle_seconds))
            await self._read()
            seen = await self._look()
        return seen

    def _has_spoken(self, node: NodeReport) -> bool:
        return node.lost or node.state is JobState.HELD or _failed(node) or self._sight.gives_up(node.node)

    async def _hang_verdict(self, seen: Observation) -> HangVerdict | None:
        if not self._policy.detects_hangs or seen.state is not JobState.RUNNING:
            return None
        verdict = await self._signals.ask(self._sight, seen, self._policy.hang.floor_seconds)
        if verdict is None or self._policy.acts_on_hangs:
            self._hang_noticed = False
            return verdict
        if not self._hang_noticed:
            self._hang_noticed = True
            would = self._concluder.would(seen, self._account.incidents)
            self._account.notice("hang_notice", text := f"{verdict.text} Notice only: nothing is done. {would}")
            self._desk.say(text, warning=True)
        return None

    async def _fault(
        self,
        seen: Observation,
        verdict: HangVerdict | None,
        pulse: Pulse,
        detected_at: datetime | None = None,
        *,
        takes_over: bool = False,
    ) -> Conclusion | None:
        alive = seen.state is JobState.RUNNING and not seen.cancelled
        if verdict is None and alive and not takes_over and not self._is_ending(seen):
            return None  # it was a passing state: somebody has restarted it
        if self._order.staged:
            await self._reporter.hand_over(self._state())
            return self._account.handed_over(seen, verdict, detected_at or seen.at)
        incident = await self._concluder.conclude(seen, verdict, self._account.incidents, detected_at or seen.at)
        if pulse.jumped():
            self._desk.say("This process was frozen meanwhile; looking again before anything is done.")
            return None
        return await self._carried_out(incident, seen)

    async def _carried_out(self, incident: Incident, seen: Observation) -> Conclusion | None:
        """Carry out a decision. Returns ``None`` if the attempt goes on."""
        self._sight.failed()
        self._account.remember_recovery()
        if incident.decision.action is Action.RESTART_IN_PLACE:
            self._sent_at = self._desk.now()
            incident = await self._concluder.restart_in_place(incident, self._account.incidents)
            if self._account.add(incident):
                self._sight.restarted(incident.decision.generation)
            return None
        if incident.decision.action is Action.ASK and self._policy.ask.job == "hold":
            held = Debt(ref=self._order.ref, since=self._desk.now(), why="held while a person is asked", held=True)
            return self._account.ended_by(incident, seen, held)
        debt = await self._concluder.stop(incident)
        return self._account.ended_by(incident, seen, debt)

    async def _queued(self, seen: Observation) -> Conclusion | None:
        """Give up an exclusion that keeps the job from ever starting."""
        now = self._desk.now()
        asked = self._pool_asked
        if not is_overdue(self._order, self._policy, now) or (asked and (now - asked).total_seconds() < POOL_SECONDS):
            return None
        self._pool_asked = now
        pool = await limited(self._backend.pool(self._order.ref), LOOK_SECONDS, "listing nodes")
        decision = softer(self._order, self._policy, pool.nodes, now)
        if decision is None:
            return None
        self._desk.say(decision.reason, warning=True)
        incident = self._account.bare_incident(seen, decision.reason, decision, UNSCHEDULABLE)
        debt = await self._concluder.stop(incident, gently=True)
        return self._account.ended_by(incident, seen, debt)

    # --- ends ----------------------------------------------------------------------------------------------------

    def _had_finished(self) -> bool:
        """Whether the log shows that training came to its own end (WAT-03)."""
        progress = self._sight.progress
        all_steps = progress.total is not None and progress.step is not None and progress.step >= progress.total
        return all_steps or progress.phase == "finish"

    async def _succeeded(self, seen: Observation, warning: str = "") -> Conclusion:
        progress = self._sight.progress
        warnings = [warning] if warning else []
        if progress.total and progress.step is not None and progress.step < progress.total:
            warnings.append(f"ended with code 0 at step {progress.step:,} of {progress.total:,}")
        step = f" at step {progress.step:,}" if progress.step is not None else ""
        debt = await self._concluder.tidy()
        if debt is not None:
            warnings.append(f"not all of {debt.ref.name} could be cleaned up: {debt.why}")
        outcome = Outcome(end=End.SUCCEEDED, text=f"Done{step}.", code=seen.code, warnings=tuple(warnings))
        return self._account.conclusion(seen, outcome, debt)

    async def _cancelled(self, seen: Observation, pulse: Pulse) -> Conclusion | None:
        """Somebody stopped the job. A person's word stands; our own (a try that was told to end) is a disruption."""
        if seen.state not in (JobState.ENDED, JobState.GONE):
            await limited(self._backend.cancel(self._order.ref, 0.0), LOOK_SECONDS * 2, "finishing a cancel")
            seen = await self._look()
        if seen.cancelled_by != PERSON:
            return await self._fault(seen, None, pulse)
        reason = f"The job was cancelled: {seen.reason or 'by a person'}."
        decision = stop_decision(reason, self._order, self._account.decision)
        return self._account.ended_by(self._account.bare_incident(seen, reason, decision, CANCELLED), seen, None)

    async def _time_is_up(self, seen: Observation) -> Conclusion:
        name = self._order.deadline_name or "attempt_timeout"
        reason = (
            f"Timed out: {name} ended at {self._order.deadline:%H:%M:%S}. A limit, not a fault; nothing is charged."
        )
        self._desk.say(reason, warning=True)
        decision = stop_decision(reason, self._order, self._account.decision)
        incident = self._account.bare_incident(seen, reason, decision, name)
        debt = await self._concluder.stop(incident, gently=True)
        return self._account.ended_by(incident, seen, debt)


def _failed(node: NodeReport) -> bool:
    return node.state is JobState.ENDED and bool(node.code)


def prepared_watch(order: WatchOrder, desk: Desk) -> Watch:
    """Return the watch that ``order`` describes. Reads files and imports the backend: not for an event loop."""
    backend = create_backend(order.ref.backend)
    return Watch(order, read_policy(order.policy), backend, desk, load_rules(), backend.secrets(order.ref))


async def has_ended(order: WatchOrder) -> bool:
    """Return whether the job has ended already: then nothing is deferred, its end is concluded right away."""
    try:
        seen = await limited(create_backend(order.ref.backend).observe(order.ref), LOOK_SECONDS, "looking at the job")
    except BackendError:
        return False
    return seen.state in (JobState.ENDED, JobState.GONE)
