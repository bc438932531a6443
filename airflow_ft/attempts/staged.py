"""One fault, stage by stage: the watch of the single operator, cut where the explicit form has tasks of its own.

A ``StageWatch`` goes on with the picture that the watch before it has handed over, looks again, and does one step:
``diagnose``, ``decide`` or ``carry_out``. Everything that it does is ``watch``'s and ``conclude``'s own.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_ft.attempts.deadlines import CANCEL_MARGIN_SECONDS, limited
from airflow_ft.attempts.faults import TryAgainLaterError
from airflow_ft.attempts.hindsight import progress_of
from airflow_ft.attempts.letting_go import let_go
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.ports import Conclusion, Desk, SeenFault, WatchOrder
from airflow_ft.attempts.record import ended_outside
from airflow_ft.attempts.store import ChainStore
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.base import Backend, BackendError, Observation, TrainingJob
from airflow_ft.backends.registry import create_backend
from airflow_ft.core import wording
from airflow_ft.core.chain import Chain, Incident
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry, Suspect
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import read_policy
from airflow_ft.diagnosis.signature_files import load_rules


class StageWatch(Watch):
    """A watch that does one step and ends."""

    async def diagnose(self, fault: SeenFault) -> SeenFault:
        """Gather evidence and classify it. Nothing is killed."""
        seen = await self._at(fault)
        diagnosis, hits = await self._concluder.diagnose(seen, fault.verdict)
        return fault.but(diagnosis=diagnosis, rule_hits=hits)

    async def decide(self, fault: SeenFault) -> SeenFault:
        """Let the policy decide. Nothing is killed."""
        seen = await self._at(fault)
        return fault.but(incident=await self._decided(fault, seen))

    async def carry_out(self, fault: SeenFault) -> Conclusion:
        """Do what was decided. The conclusion is ``interim`` if the attempt goes on.

        A restart in place that isn't possible any more (the nodes are held no longer) is decided anew.
        """
        assert fault.incident is not None
        seen, incident = await self._at(fault), fault.incident
        in_place = incident.decision.action is Action.RESTART_IN_PLACE
        if in_place and seen.generation >= incident.decision.generation:
            return await self._going_on(seen)  # a try of this stage that was lost has ordered it
        if in_place and Action.RESTART_IN_PLACE not in self._concluder.possible(seen):
            self._desk.say("The nodes are not held any more; deciding anew.")
            incident = await self._decided(fault, seen)
        conclusion = await self._carried_out(incident, seen)
        return conclusion if conclusion is not None else await self._going_on(seen)

    async def _decided(self, fault: SeenFault, seen: Observation) -> Incident:
        found = (fault.diagnosis, fault.rule_hits) if fault.diagnosis is not None else None
        return await self._concluder.conclude(seen, fault.verdict, self._account.incidents, fault.detected_at, found)

    async def _going_on(self, seen: Observation) -> Conclusion:
        await self._reporter.hand_over(self._state())
        return self._account.interim(seen)

    async def _at(self, fault: SeenFault) -> Observation:
        """Go on with what the stage before has seen, and look again."""
        await self._take_up()
        seen = await self._look()
        self._sight.expected = max(self._sight.expected, seen.generation)
        await self._read()
        self._sight.over_since = fault.detected_at  # the stages before have taken their time; training has not run on
        if seen.generation > fault.generation:
            self._learn(seen)
        self._account.remember_recovery()
        return seen


def stage_watch(order: WatchOrder, desk: Desk) -> StageWatch:
    """Return the watch that ``order`` describes, for one step."""
    backend = create_backend(order.ref.backend)
    return StageWatch(order, read_policy(order.policy), backend, desk, load_rules(), backend.secrets(order.ref))


# --- what a person's own stage says --------------------------------------------------------------------------------


def said_by_stage(fault: SeenFault, fault_class: str, text: str, suspects: tuple[str, ...], stage: str) -> SeenFault:
    """Return the fault with what a user's own stage takes it for. Nothing changes if that is what is known already."""
    known = fault.diagnosis
    if known is not None and known.fault_class.value == fault_class:
        return fault
    diagnosis = Diagnosis(
        fault_class=FaultClass(fault_class),
        text=text or f"{fault_class}, says {stage}.",
        root=known.root if known else None,
        suspects=tuple(Suspect(kind="node", name=name) for name in suspects),
        confidence=1.0,
        retry=Retry.UNKNOWN,
        signature=f"stage {stage}",
    )
    return fault.but(diagnosis=diagnosis, incident=None)


def chosen(incident: Incident, action: Action, why: str, policy: FaultTolerancePolicy, now: datetime) -> Incident:
    """Return the incident with another action than the policy's. Its cost is charged instead of the policy's."""
    before, ledger = incident.decision, (incident.inputs.ledger if incident.inputs else incident.decision.ledger)
    charged = {Action.RESTART_IN_PLACE: "in_place", Action.FAIL: ""}.get(action, "restart")
    text = f"{why} The policy had decided: {before.reason}"
    if charged == "restart" and ledger.restarts >= policy.max_restarts:
        action, charged, text = Action.FAIL, "", f"{text} Stopping, budget used up."
    after = ledger.charge(charged, now)
    decision = Decision(
        action=action,
        reason=" ".join(one for one in (wording.sentence(text), wording.cost(charged, after, policy)) if one),
        generation=incident.generation + 1 if action is Action.RESTART_IN_PLACE else 0,
        excluded_nodes=before.excluded_nodes,
        soft_nodes=before.soft_nodes,
        charged=charged,
        considered=before.considered,
        ledger=after,
    )
    return incident.decided(decision)


# --- what is left --------------------------------------------------------------------------------------------------


async def cancelled(
    store: ChainStore,
    backend: Backend,
    job: TrainingJob,
    grace: float,
    text: str,
    now: Callable[[], datetime],
    say: Callable[[str], None],
) -> Chain | None:
    """Make sure that nothing of the chain runs: cancel the open attempt, pay what is owed. Returns the chain."""
    chain = store.load()
    attempt = store.load_attempt(chain.open) if chain is not None and chain.open is not None else None
    if chain is None:
        return None
    if attempt is not None:
        what, left = f"cancelling {attempt.name}", ""
        try:
            if attempt.ref is not None:
                left = await let_go(backend, attempt.ref, grace, what)
            else:
                await limited(backend.fence(attempt.name, chain.chain_id, job), grace + CANCEL_MARGIN_SECONDS, what)
        except BackendError as error:
            raise TryAgainLaterError(f"{attempt.name} can't be cancelled yet: {error}", 30.0) from error
        came = await progress_of(backend, attempt.ref, None, say)
        attempt, chain = ended_outside(chain, attempt, text, came, now())
        store.save_attempt(attempt)
        store.save(chain)
        say(f"{attempt.name} is left as it is: {left}. {text}" if left else f"{attempt.name} is cancelled: {text}")
    return await pay_debts(backend, chain, store, grace, say)
