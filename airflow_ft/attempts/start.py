"""Start: reconcile, fence, intent, submit. The first half of a try, in the worker.

The order of the writes is what makes a crash between any two lines harmless::

    head of the chain is written          -> its id, hence every name, is known before anything exists
    the attempt's INTENT, then the head   -> whoever comes next submits the same name, or adopts it
    submit                                -> creating *is* the test of absence: a name conflict is looked at
    the attempt's SUBMITTED               -> adopt

A try that was replaced by a newer one can write nothing any more (Airflow refuses its token) and can create nothing
either: the names that a newer try has given up are fenced, which a backend has to make stick.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from airflow_ft.attempts.bisected import Bisector
from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.deadlines import ACT_SECONDS, CANCEL_MARGIN_SECONDS, LOOK_SECONDS, limited
from airflow_ft.attempts.faults import TrainingFault, TryAgainLaterError
from airflow_ft.attempts.hindsight import progress_of
from airflow_ft.attempts.letting_go import let_go
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.ports import Conclusion, Started, TryInfo
from airflow_ft.attempts.quarantine import Quarantine, kept_out
from airflow_ft.attempts.record import (
    ADOPTED,
    CLEARED,
    TRY_LOST,
    ended_outside,
    replay,
    taken,
    with_event,
    write_conclusion,
)
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.base import (
    CLEAR,
    Backend,
    BackendError,
    CancelledJobError,
    ForeignJobError,
    JobState,
    Submission,
    SubmissionRefusedError,
    TrainingJob,
    UnreachableError,
)
from airflow_ft.core.bisect_results import BisectResult
from airflow_ft.core.chain import Attempt, AttemptState, Chain, End, Incident, JobRef, Outcome
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry
from airflow_ft.core.names import attempt_name, chain_id
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import recorded_policy

T = TypeVar("T")

SUBMIT_TRIES = 3
LATER_SECONDS = 30.0
NAMES_TRIED = 5  # names of one chain that are taken by something foreign before we give up


@dataclass(frozen=True)
class Starter:
    """What ``start`` works with. ``say`` writes a line into the try's log."""

    store: ChainStore
    backend: Backend
    job: TrainingJob
    policy: FaultTolerancePolicy
    info: TryInfo
    now: Callable[[], datetime]
    say: Callable[[str], None]
    killed: Callable[[], bool] = lambda: False  # whether this very process was told to end
    naming: Callable[[str, str], None] = lambda name, chain: None  # told the job's name before it is created
    progress_pattern: str | None = None
    quarantine: Quarantine | None = None  # nodes that other chains have found bad; None: nobody shares that here
    avoid: tuple[str, ...] = ()  # nodes that a preflight before the chain has found bad
    bisected: BisectResult | None = None  # what a stage of its own has found; None: a bisect that is due is done here

    async def start(self) -> tuple[Chain, Started | None]:
        """Bring the chain to the point where exactly one job of it exists. Returns ``None`` if training is done.

        Raises ``TrainingFault`` (stop), or ``TryAgainLaterError`` when the cluster can't be reached.
        """
        try:
            return await self._start()
        except TryAgainLaterError:
            chain = self.store.load()
            if chain is not None:
                self.store.save(chain.but(put_off=self.info.try_number))
            raise

    async def _start(self) -> tuple[Chain, Started | None]:
        chain = self._opened()
        attempt = self.store.pending_conclusion(chain)
        if attempt is not None:
            self.say(f"Attempt {attempt.number} was concluded by a try that was lost; going on from there.")
            chain = taken(chain, attempt)
            self.store.save(chain)
        chain = await self._segment(chain)
        chain = await self._debts_tried(chain)
        if replay(chain):
            return chain, None
        with_what = (self.store, self.backend, self.job, self.policy, self.now, self.say, self.quarantine)
        search = Bisector(*with_what, found=self.bisected)
        chain = await search.after(chain)
        replay(chain)  # raises if it ended the chain
        chain = await self._fenced(chain)
        if chain.open is not None:
            return await self._reconciled(chain)
        return await self._submitted_anew(chain)

    # --- the chain's head ----------------------------------------------------------------------------------------

    def _opened(self) -> Chain:
        info, now = self.info, self.now()
        chain = self.store.load()
        if chain is None:
            reach("start.before_chain")
            chain = Chain(
                chain_id=chain_id(info.dag_id, info.run_id, info.task_id, info.map_index, info.ti_id),
                dag_id=info.dag_id,
                run_id=info.run_id,
                task_id=info.task_id,
                map_index=info.map_index,
                created_at=now,
                max_tries=info.max_tries,
                excluded_nodes=self.avoid,
            )
        lost = max(0, chain.put_off) < chain.try_number < info.try_number and (
            chain.open is not None or chain.attempts == 0
        )
        if lost and info.max_tries <= chain.max_tries:
            text = f"Try {chain.try_number} was lost by Airflow before it had a result. Not charged."
            chain = with_event(chain, now, TRY_LOST, text, chain.open)
        limits = {"max_restarts": self.policy.max_restarts, "grace_seconds": self.policy.grace_seconds}
        chain = chain.but(try_number=info.try_number, **limits)
        self.store.save(chain)
        reach("start.after_chain")
        return chain

    async def _segment(self, chain: Chain) -> Chain:
        """Begin a new segment if a person cleared the task while no worker was at it: ``max_tries`` grows only then."""
        return chain if self.info.max_tries <= chain.max_tries else await self._segment_begun(chain)

    async def _segment_begun(self, chain: Chain) -> Chain:
        now = self.now()
        if chain.open is not None:
            attempt = self.store.load_attempt(chain.open)
            if attempt is not None:
                await self._fence_attempt(attempt)
                came = await progress_of(self.backend, attempt.ref, self.progress_pattern, self.say)
                attempt, chain = ended_outside(chain, attempt, "A person cleared the task.", came, now)
                self.store.save_attempt(attempt)
            chain = chain.but(open=None)
        kept = f" {', '.join(chain.excluded_nodes)} stay excluded." if chain.excluded_nodes else ""
        text = f"A person cleared the task: segment {chain.segment + 1} begins with fresh budgets.{kept}"
        self.say(text)
        if chain.concluded is End.SUCCEEDED:  # it really runs again, from its beginning (LIF-11)
            chain = chain.but(highest_step=None, last_checkpoint=None, last_checkpoint_path=None)
        chain = with_event(chain, now, CLEARED, text).but(
            segment=chain.segment + 1,
            segment_first=chain.attempts,
            max_tries=self.info.max_tries,
            ledger=chain.ledger.of_next_segment(chain.highest_step),
            faults=(),
            decision=None,
            concluded=None,
        )
        self.store.save(chain)
        return chain

    # --- fence ---------------------------------------------------------------------------------------------------

    async def _fenced(self, chain: Chain) -> Chain:
        """Make sure that no other job of the chain runs, and pay what earlier tries owe."""
        for number in range(chain.attempts):
            attempt = self.store.load_attempt(number) if number != chain.open else None
            if attempt is None and number != chain.open:
                attempt = self._unreadable(chain, number)
            if attempt is not None and not attempt.fenced:
                await self._fence_attempt(attempt)
                self.store.save_attempt(attempt.but(fenced=True))
        for debt in chain.debts:
            await self._gone(debt.ref, f"cancel owed since {debt.since:%H:%M:%S}")
        if chain.debts:
            chain = chain.but(debts=())
            self.store.save(chain)
        return chain

    async def _debts_tried(self, chain: Chain) -> Chain:
        """Pay what is owed if that is possible now. It never changes what a try comes to (LIF-10)."""
        if chain.concluded is not None and chain.decision is not None and chain.decision.action is Action.ASK:
            return chain  # its job is held while a person is asked
        return await pay_debts(self.backend, chain, self.store, self.policy.grace_seconds, self.say)

    async def _fence_attempt(self, attempt: Attempt) -> None:
        reach("start.before_fence")
        if attempt.ref is not None:
            await self._gone(attempt.ref, f"attempt {attempt.number}")
        else:
            call = self.backend.fence(attempt.name, attempt.name.rpartition("-a")[0], self.job)
            await self._or_later(call, self._cancel_limit(), f"fencing {attempt.name}")
        reach("start.after_fence")

    async def _gone(self, ref: JobRef, what: str) -> None:
        what = f"cancelling {ref.name} ({what})"
        call = let_go(self.backend, ref, self.policy.grace_seconds, what)
        left = await self._or_later(call, self._cancel_limit(), what)
        if left:
            self.say(f"{ref.name} is left as it is: {left}.")

    def _cancel_limit(self) -> float:
        return self.policy.grace_seconds + CANCEL_MARGIN_SECONDS

    async def _or_later(self, call: Coroutine[Any, Any, T], limit: float, what: str) -> T:
        """Await a call that has to succeed before anything may be submitted."""
        try:
            return await limited(call, limit, what)
        except ForeignJobError:
            raise
        except BackendError as error:
            raise TryAgainLaterError(f"{what} is not possible yet: {error}", LATER_SECONDS) from error

    def _unreadable(self, chain: Chain, number: int) -> Attempt:
        """Stand in for a record that can't be read (any more): its name is fenced, its story is lost."""
        outcome = Outcome(end=End.UNKNOWN, text="The record of this attempt can't be read.")
        name = attempt_name(chain.chain_id, number)
        state = AttemptState.CONCLUDED
        return Attempt(number=number, name=name, state=state, outcome=outcome, created_at=self.now())

    # --- reconcile, submit ---------------------------------------------------------------------------------------

    async def _reconciled(self, chain: Chain) -> tuple[Chain, Started | None]:
        """Go on with the attempt that should be running: adopt its job, or finish what a lost try began."""
        assert chain.open is not None
        attempt = self.store.load_attempt(chain.open)
        if attempt is None:
            chain = await self._fenced(chain.but(open=None))
            return await self._submitted_anew(chain)
        if attempt.ref is None:
            return await self._submitted_anew(chain, attempt)
        seen = await self._or_later(self.backend.observe(attempt.ref), LOOK_SECONDS, f"looking at {attempt.name}")
        if seen.cancelled and seen.cancelled_by == CLEAR:
            return await self._submitted_anew(await self._fenced(await self._segment_begun(chain)))
        self.naming(attempt.name, chain.chain_id)
        if attempt.policy != (policy := recorded_policy(self.policy)):  # a person has changed it meanwhile
            attempt = attempt.but(policy=policy)
            self.store.save_attempt(attempt)
        text = f"Attempt {attempt.number} was found {seen.state.value}; it is adopted."
        self.say(text)
        if seen.state not in (JobState.ENDED, JobState.GONE):
            chain = with_event(chain, self.now(), ADOPTED, text, attempt.number)
            self.store.save(chain)
        return chain, Started(attempt=attempt, adopted=True)

    async def _submitted_anew(self, chain: Chain, attempt: Attempt | None = None) -> tuple[Chain, Started | None]:
        """Submit the open attempt, or the next one. A name that is taken or closed is given up for the next number."""
        for _ in range(NAMES_TRIED):
            self._unless_killed()
            if attempt is None:
                chain, attempt = self._intended(chain)
            try:
                return await self._submitted(chain, attempt)
            except (ForeignJobError, CancelledJobError) as error:
                self.say(f"The name {attempt.name} can't be used: {error} The next number is taken.")
                chain, attempt = self._given_up(chain, attempt, str(error)), None
        raise TryAgainLaterError(
            f"{NAMES_TRIED} names of chain {chain.chain_id} are taken by other jobs.", LATER_SECONDS
        )

    def _intended(self, chain: Chain) -> tuple[Chain, Attempt]:
        attempt = Attempt(
            number=chain.attempts,
            segment=chain.segment,
            name=attempt_name(chain.chain_id, chain.attempts),
            try_number=self.info.try_number,
            excluded_nodes=chain.excluded_nodes,
            soft_nodes=chain.soft_nodes,
            policy=recorded_policy(self.policy),
            created_at=self.now(),
            expected_checkpoint=chain.last_checkpoint,
            resume_from=chain.last_checkpoint_path or "",
        )
        reach("start.before_intent")
        self.store.save_attempt(attempt)
        reach("start.between_intents")
        chain = chain.but(open=attempt.number, attempts=attempt.number + 1, decision=None, concluded=None)
        self.store.save(chain)
        reach("start.after_intent")
        return chain, attempt

    async def _submitted(self, chain: Chain, attempt: Attempt) -> tuple[Chain, Started | None]:
        out, avoided = await kept_out(
            self.quarantine, self.backend, self.job, attempt.excluded_nodes, self.now(), self.say
        )
        submission = Submission(
            name=attempt.name,
            chain_id=chain.chain_id,
            attempt=attempt.number,
            tags={**self.info.tags(), "restarts": f"{chain.ledger.restarts}/{self.policy.max_restarts}"},
            excluded_nodes=(*attempt.excluded_nodes, *out),
            soft_nodes=(*attempt.soft_nodes, *avoided),
            preflight=self.policy.preflight_for_agent(),
            resume_from=attempt.resume_from,
            hold=self.policy.agents_hold_seconds,
            grace=self.policy.grace_seconds,
        )
        self.naming(attempt.name, chain.chain_id)
        self._unless_killed()
        try:
            self.backend.check(self.job)
            reach("start.before_submit")
            ref = await self._submit(submission)
        except SubmissionRefusedError as error:
            return self._refused(chain, attempt, str(error))
        reach("start.after_submit")
        attempt = attempt.but(state=AttemptState.SUBMITTED, ref=ref)
        self.store.save_attempt(attempt)
        reach("start.after_id")
        excluded = f" without {', '.join(attempt.excluded_nodes)}" if attempt.excluded_nodes else ""
        what = f"watches {ref.foreign}, found as" if ref.foreign else f"is submitted as {ref.backend} job"
        self.say(f"Attempt {attempt.number} {what} {ref.name}{excluded}.")
        for remark in self.job.remarks():
            self.say(remark)
        return chain, Started(attempt=attempt)

    async def _submit(self, submission: Submission) -> JobRef:
        """Submit. A submission that failed may have worked: submitting the same name again finds that out."""
        for left in reversed(range(SUBMIT_TRIES)):
            try:
                return await limited(self.backend.submit(self.job, submission), ACT_SECONDS, "submitting")
            except ForeignJobError:
                # Ours all the same if it has our chain's tag: the DAG may have changed since a lost try submitted it.
                call = self.backend.find(submission.name, submission.chain_id, self.job)
                ref = await self._or_later(call, LOOK_SECONDS, f"looking {submission.name} up")
                if ref is None:
                    raise
                return ref
            except UnreachableError as error:
                self.say(f"Submitting {submission.name}: {error} It may have worked; it is looked up.")
                if not left:
                    raise TryAgainLaterError(
                        f"{submission.name} could not be submitted: {error}", LATER_SECONDS
                    ) from error
        raise AssertionError("unreachable")

    def _unless_killed(self) -> None:
        """A process that was told to end creates nothing any more, although Airflow lets it run on for seconds."""
        if self.killed():
            raise TryAgainLaterError("This process was told to end; the next try goes on.", 0.0)

    def _given_up(self, chain: Chain, attempt: Attempt, why: str) -> Chain:
        outcome = Outcome(end=End.CANCELLED, text=f"Never started: {why}")
        attempt = attempt.but(state=AttemptState.CONCLUDED, outcome=outcome, ended_at=self.now(), fenced=True)
        self.store.save_attempt(attempt)
        decision, ledger = chain.decision, chain.ledger
        chain = taken(chain, attempt).but(decision=decision, ledger=ledger, concluded=None)
        self.store.save(chain)
        return chain

    def _refused(self, chain: Chain, attempt: Attempt, message: str) -> tuple[Chain, Started | None]:
        """Close an attempt that the backend will not take: a person has to change something first."""
        now = self.now()
        advice = "Change it and clear the task."
        diagnosis = Diagnosis(
            fault_class=FaultClass.ENV_ERROR, text=message, confidence=1.0, retry=Retry.USELESS, advice=advice
        )
        decision = Decision(
            action=Action.FAIL, reason=message, ledger=chain.ledger, excluded_nodes=chain.excluded_nodes
        )
        incident = Incident(attempt=attempt.number, detected_at=now, diagnosis=diagnosis, decision=decision)
        conclusion = Conclusion(
            chain_id=chain.chain_id,
            attempt=attempt.number,
            try_number=self.info.try_number,
            outcome=Outcome(end=End.FAULT, text=message),
            incidents=(incident,),
            ledger=chain.ledger,
            ended_at=now,
            stopped=True,
        )
        write_conclusion(self.store, chain, attempt, conclusion)
        raise TrainingFault(decision, diagnosis)
