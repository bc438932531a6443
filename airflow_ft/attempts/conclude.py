"""Conclude: from the end (or the silence) of a run to a decision, and the part of it that is carried out right here.

Evidence is gathered from all ranks and nodes *before* anything is killed. A restart in place is carried out before
Airflow hears of it. Since the evidence is gone with the first order, the decision is written down before it (XCom), and
carried by the order itself: a twin, or a successor, finds one of the two and re-sends; it never decides anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.attempts.approvals import approved_question, carried_out
from airflow_ft.attempts.crash_points import reach
from airflow_ft.attempts.deadlines import ACT_SECONDS, STACKS_SECONDS, limited
from airflow_ft.attempts.letting_go import let_go
from airflow_ft.attempts.ports import Desk, WatchOrder
from airflow_ft.attempts.run_facts import facts_of, with_stacks, with_what_was_missing
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import (
    Backend,
    BackendError,
    Capability,
    JobState,
    Observation,
    Order,
    StackGroup,
)
from airflow_ft.backends.time_limits import within
from airflow_ft.core.chain import Debt, Incident
from airflow_ft.core.classify import classify
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action
from airflow_ft.core.explain import inputs_of
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.preflight import SOURCE as PREFLIGHT
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.core.rules import RuleSet
from airflow_ft.core.sanitise import sanitise
from airflow_ft.core.situation import Situation, nothing_left
from airflow_ft.core.slimming import slimmed
from airflow_ft.core.story import action_words, fault_sentence
from airflow_ft.core.user_rules import RuleHit
from airflow_ft.diagnosis.gather import gather
from airflow_ft.diagnosis.redaction import redact, redacted
from airflow_ft.diagnosis.rule_lines import rule_hits

ORDER_KEY = "ft_order"
INCIDENTS_KEY = "ft_incidents"  # all restarts in place of the attempt so far: the agents echo only the last one
INCIDENTS_BYTES = 15_000
NOTE_BYTES = 4_000
PUBLISH_SECONDS = 10.0
SAME_AT_MOST = 3  # a gut feeling: a node that joins late makes its peers fail once


class VoidDecisionError(Exception):
    """Somebody else has acted on this incident meanwhile: look again, and do nothing."""


@dataclass
class Concluder:
    """Concludes the incidents of one attempt."""

    order: WatchOrder
    policy: FaultTolerancePolicy
    backend: Backend
    desk: Desk
    sight: Sight
    rules: RuleSet
    secrets: Sequence[str] = ()  # known values that must not be stored; never stored themselves
    told_again: int | None = None  # the generation about which it was said that its decision is carried out again

    async def conclude(
        self,
        seen: Observation,
        verdict: HangVerdict | None,
        known: Sequence[Incident],
        detected_at: datetime,
        diagnosed: tuple[Diagnosis, tuple[RuleHit, ...]] | None = None,
    ) -> Incident:
        """Diagnose and decide about generation ``seen.generation``. Nothing is killed yet.

        :param diagnosed: what ``diagnose`` has found already, if somebody asked it before.
        """
        written = await self._published(seen) or _echoed(seen)
        if written is not None and not self._can_be_carried_out(written, seen):
            self.desk.say(f"What was decided on generation {seen.generation} is not possible any more; deciding anew.")
            written = None
        if written is not None:
            if self.told_again != seen.generation:  # an order that can't be given is tried every few seconds
                self.told_again = seen.generation
                self.desk.say(f"A decision on generation {seen.generation} is written already; it is carried out.")
            return written
        approved = approved_question(known, seen.generation, self.sight.progress.step)
        if approved is not None:
            possible = Action.RESTART_IN_PLACE in self.possible(seen)
            incident = carried_out(approved, self.policy, self.desk.now(), possible=possible)
            self.desk.say(f"Decision: {incident.decision.reason}", warning=True)
            return incident
        if verdict is None and self._is_the_same(seen, known):
            incident = self._once_more(seen, known[-1], detected_at)
            self.desk.say(f"Decision: {incident.decision.reason}", warning=True)
            return incident
        diagnosis, hits = diagnosed or await self.diagnose(seen, verdict)
        reach("conclude.diagnosed")
        situation, now = (await self._situation(seen, diagnosis, verdict, known, hits)).compact(), self.desk.now()
        decision = decide(self.policy, situation, now)
        reach("conclude.decided")
        incident = Incident(
            attempt=self.order.ref.attempt,
            generation=seen.generation,
            detected_at=detected_at,
            began_at=_began(seen),
            diagnosis=diagnosis,
            decision=decision,
            run=situation.run,
            progress=self.sight.progress,
            past=past_fault(situation, decision),
            inputs=inputs_of(situation, self.policy, now),
        )
        self.desk.say(fault_sentence(incident), warning=True)
        self.desk.say(f"Decision: {decision.reason}")
        if decision.action is Action.FAIL and (diagnosis.signature or "").startswith(PREFLIGHT):
            self.desk.say("item=preflight status=failed error,exiting", warning=True)  # mission M9
        return incident

    def _is_the_same(self, seen: Observation, known: Sequence[Incident]) -> bool:
        """Whether a node failed again before all had joined the newest generation: that restart has not happened yet.

        Not without end: what fails so a few times is an incident of its own.
        """
        last = known[-1] if known else None
        if last is None or last.decision.generation != seen.generation or seen.generation == 0:
            return False
        repeats = len(known) - next((n for n in range(len(known), 0, -1) if not known[n - 1].again), 0)
        ends = [n.exited_at for n in seen.nodes if n.exited_at and n.state in (JobState.HELD, JobState.ENDED)]
        joined = [node.spawned_at for node in seen.nodes if node.spawned_at]
        possible = Action.RESTART_IN_PLACE in self.possible(seen) and repeats < SAME_AT_MOST
        return possible and bool(ends) and len(joined) > 1 and min(ends) < max(joined)

    def _once_more(self, seen: Observation, last: Incident, detected_at: datetime) -> Incident:
        reason = "A node failed again before all had joined: the same incident. Restarting in place again, not charged."
        decision = last.decision.but(generation=seen.generation + 1, reason=reason, charged="")
        return last.but(
            generation=seen.generation,
            detected_at=detected_at,
            began_at=_began(seen),
            ordered_at=None,
            decision=decision,
            past=None,
            inputs=None,
            recovery=None,
            again=True,
        )

    def would(self, seen: Observation, known: Sequence[Incident]) -> str:
        """Say what would be done about a hang that is only told. Nothing is gathered: the job must not notice."""
        last = known[-1].decision if known else None
        situation = Situation(
            diagnosis=Diagnosis(fault_class=FaultClass.COMM_HANG, text="It hangs."),
            ledger=last.ledger if last else self.order.ledger,
            faults=self.order.faults,
            run=self.sight.run(),
            can=self.possible(seen),
            nodes_needed=self.order.nodes_needed,
            hang=True,
        )
        acting = self.policy.model_copy(update={"on_fault": "act"})
        return f"It would have been: {action_words(decide(acting, situation, self.desk.now()))}."

    # --- evidence ------------------------------------------------------------------------------------------------

    async def diagnose(self, seen: Observation, verdict: HangVerdict | None) -> tuple[Diagnosis, tuple[RuleHit, ...]]:
        """Gather evidence from everywhere and classify it. On a hang stacks are dumped first. Nothing is killed."""
        try:
            stacks = await self._stacks() if verdict is not None else []
            gathered = await gather(self.backend, self.order.ref, good=self.order.good)
            facts = facts_of(gathered, seen, verdict, stacks, self.sight.progress.step is not None)
            reach("conclude.gathered")
            diagnosis = await asyncio.to_thread(classify, facts, self.rules)
            hits = await asyncio.to_thread(rule_hits, self.policy.rules, facts)
            told = tuple(hit.but(text=redact(hit.text, self.secrets)) for hit in hits)
            return redacted(with_stacks(with_what_was_missing(diagnosis, gathered), facts), self.secrets), told
        except BackendError:
            raise  # nothing was seen: the watch goes on and looks again
        except Exception as error:  # noqa: BLE001 - a supervisor's border: a bug in a rule must not leave the job held
            self.desk.say(f"The fault could not be classified: {error!r}", warning=True)
            text = f"The fault could not be classified ({type(error).__name__})."
            return Diagnosis(fault_class=FaultClass.UNKNOWN, text=text, retry=Retry.UNKNOWN), ()

    async def _stacks(self) -> Sequence[StackGroup]:
        if Capability.DUMP_STACKS not in self.backend.can or not self.policy.acts_on_hangs:
            return []
        try:
            return await limited(self.backend.dump_stacks(self.order.ref), STACKS_SECONDS, "dumping stacks")
        except BackendError as error:
            self.desk.say(f"No stacks: {error}", warning=True)
            return []

    async def _situation(
        self,
        seen: Observation,
        diagnosis: Diagnosis,
        verdict: HangVerdict | None,
        known: Sequence[Incident],
        hits: tuple[RuleHit, ...],
    ) -> Situation:
        pool = await limited(self.backend.pool(self.order.ref), ACT_SECONDS, "listing nodes")
        last = known[-1].decision if known else None
        past = tuple(incident.past for incident in known if incident.past is not None)
        return Situation(
            diagnosis=diagnosis,
            ledger=last.ledger if last else self.order.ledger,
            faults=(*self.order.faults, *past),
            step=self.sight.progress.step,
            run=self.sight.run(),
            generation=seen.generation,
            can=self.possible(seen),
            nodes_needed=self.order.nodes_needed,
            pool_nodes=pool.nodes,
            excluded_nodes=last.excluded_nodes if last else self.order.excluded_nodes,
            finished=nothing_left(self.sight.progress),
            hang=verdict is not None,
            soft_nodes=last.soft_nodes if last else self.order.soft_nodes,
            gpus=self.order.gpus or self.order.nodes_needed * (self.policy.gpus_per_node or 0),
            rule_hits=hits,
            foreign_restarts=self.sight.foreign_restarts,
            foreign="" if self.order.ref.own else self.order.ref.foreign,
            salt=f"{self.order.ref.name}/{seen.generation}",
        )

    def possible(self, seen: Observation) -> tuple[Action, ...]:
        """Return what could be done about the fault now."""
        possible = [Action.RESUBMIT, Action.FAIL, Action.ASK]
        if Capability.EXCLUDE_NODES in self.backend.can:
            possible.append(Action.RESUBMIT_EXCLUDING)
        if self.policy.bisect is not None and Capability.PROBE in self.backend.can:
            possible.append(Action.BISECT)
        alive = seen.state in (JobState.RUNNING, JobState.HELD, JobState.STARTING)
        willing = all(node.agent and not node.lost and not node.unkillable for node in seen.nodes)
        if Capability.RESTART_IN_PLACE in self.backend.can and alive and willing and seen.nodes:
            possible.append(Action.RESTART_IN_PLACE)
        return tuple(possible)

    def _can_be_carried_out(self, written: Incident, seen: Observation) -> bool:
        """No agent has obeyed it yet: a restart in place needs them all, and may have missed the end of the hold."""
        return written.decision.action is not Action.RESTART_IN_PLACE or written.decision.action in self.possible(seen)

    # --- a decision that is written already ----------------------------------------------------------------------

    async def _published(self, seen: Observation) -> Incident | None:
        try:
            value = await within(PUBLISH_SECONDS, self.desk.recall(ORDER_KEY))
        except Exception as error:  # noqa: BLE001 - a supervisor's border: Airflow may be down, the agents' echo remains
            self.desk.say(f"The try's XComs can't be read: {error!r}", warning=True)
            return None
        incident = _incident(value)
        mine = incident is not None and incident.attempt == self.order.ref.attempt
        return incident if mine and incident is not None and incident.generation == seen.generation else None

    # --- acting --------------------------------------------------------------------------------------------------

    async def restart_in_place(self, incident: Incident, known: Sequence[Incident]) -> Incident:
        """Carry out a restart in place. Returns the incident with the time of the order.

        Raises ``VoidDecisionError`` when agents hold another decision, ``BackendError`` when a node can't be reached.
        """
        order = self._order(incident, incident.decision.generation)
        await self._publish(ORDER_KEY, order.note)
        all_of_them = slimmed((*known, incident), INCIDENTS_BYTES)
        await self._publish(INCIDENTS_KEY, {"incidents": [one.to_record() for one in all_of_them]})
        reach("conclude.written")
        await self._send(order)
        return incident.but(ordered_at=self.desk.now())

    async def join(self, incident: Incident) -> None:
        """Give an order again that not all nodes have obeyed yet. Raises like ``restart_in_place``."""
        await self._send(self._order(incident, incident.decision.generation))

    async def _send(self, order: Order) -> None:
        """Send a restart to every node, as often as it takes: agents know it by generation and digest."""
        refused = await limited(self.backend.restart_in_place(self.order.ref, order), ACT_SECONDS, "ordering a restart")
        reach("conclude.ordered")
        if refused:
            raise VoidDecisionError(f"refused by {', '.join(refused)}")

    async def recalled(self) -> dict[int, Incident]:
        """Return the restarts in place that this try has published, by the generation that they led to."""
        value = await within(PUBLISH_SECONDS, self.desk.recall(INCIDENTS_KEY))
        records = value.get("incidents") if isinstance(value, dict) else None
        found = [_incident(record) for record in records] if isinstance(records, list) else []
        mine = [one for one in found if one is not None and one.attempt == self.order.ref.attempt]
        return {one.decision.generation: one for one in mine}

    async def _publish(self, key: str, note: dict[str, object]) -> None:
        try:
            await within(PUBLISH_SECONDS, self.desk.publish(key, note))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - a supervisor's border: the order carries the decision as well
            self.desk.say(f"The decision could not be published ({error!r}); the order carries it.", warning=True)

    def _order(self, incident: Incident, generation: int) -> Order:
        """The digest is that of the decision *as it is noted*: who finds the note must come to the same one."""
        note = self._note(incident)
        noted = _incident(note) or incident
        by = f"try {self.order.info.try_number}"
        return Order(generation=generation, digest=noted.decision.digest(), note=note, by=by)

    def _note(self, incident: Incident) -> dict[str, object]:
        (slim,) = slimmed((incident.but(decision=incident.decision.but(considered=()), inputs=None),), NOTE_BYTES - 200)
        note = sanitise(slim.to_record(), NOTE_BYTES)
        return dict(note) if isinstance(note, dict) else {}

    async def stop(self, incident: Incident, *, gently: bool = False) -> Debt | None:
        """Let go of the job: nothing holds a GPU once the decision is known. Returns a debt if that isn't possible.

        ``gently``: training may be alive and well; it gets TERM and its grace period, no order to end at once.
        """
        reach("conclude.before_stop")
        ref = self.order.ref
        try:
            if ref.not_ours:
                self.desk.say(f"{ref.name} is left as it is: {ref.not_ours}.")
                return None
            if gently:
                await self._publish(ORDER_KEY, self._note(incident))
            else:
                await self._release(incident)
            left = await let_go(self.backend, ref, self.policy.grace_seconds, "stopping the job")
            if left:
                self.desk.say(f"{ref.name} is left as it is: {left}.")
        except BackendError as error:
            self.desk.say(
                f"The job could not be stopped yet: {error} It is owed; the next try sees to it.", warning=True
            )
            return Debt(ref=ref, since=self.desk.now(), why=str(error)[:300])
        finally:
            reach("conclude.after_stop")
        return None

    async def tidy(self) -> Debt | None:
        """Clean up after a success. Whatever goes wrong here is a debt, and the success a success (LIF-10)."""
        reach("conclude.before_tidy")
        ref = self.order.ref
        try:
            await let_go(self.backend, ref, self.policy.grace_seconds, "cleaning up")
        except BackendError as error:
            self.desk.say(f"Training is done, but not all of it could be cleaned up: {error} It is owed.", warning=True)
            return Debt(ref=ref, since=self.desk.now(), why=str(error)[:300])
        return None

    async def _release(self, incident: Incident) -> None:
        """Make the decision stick: a node that obeys another decision refuses, and then nothing may be killed."""
        order = self._order(incident, incident.generation + 1)
        await self._publish(ORDER_KEY, order.note)
        reach("conclude.written")
        refused = await limited(self.backend.release(self.order.ref, order), ACT_SECONDS, "releasing the nodes")
        if refused:
            raise VoidDecisionError(f"release refused by {', '.join(refused)}")


def _incident(value: object) -> Incident | None:
    try:
        return Incident.from_record(value) if value else None
    except UnreadableRecordError:
        return None


def echoed(seen: Observation) -> list[Incident]:
    """Return the incidents that agents echo or hold an order about, the oldest first."""
    notes = (note for node in seen.nodes for note in (*node.notes, node.note))
    found = {one.generation: one for one in map(_incident, notes) if one is not None}
    return [found[generation] for generation in sorted(found)]


def _echoed(seen: Observation) -> Incident | None:
    return next((one for one in echoed(seen) if one.generation == seen.generation), None)


def _began(seen: Observation) -> datetime | None:
    signs = [n.first_sign_at or n.exited_at for n in seen.nodes]
    return min((at for at in signs if at is not None), default=None)
