"""The account of one watch: incidents, their recoveries, notices; and the ``Conclusion`` that is made of them.

Fed by ``watch``; it decides nothing. What a reader of the chain should hear before the attempt is over (a restart in
place, a hang that is only noticed) is news: ``interim`` hands it over, and the watch goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from airflow_ft.attempts.approvals import approved_question
from airflow_ft.attempts.conclude import echoed
from airflow_ft.attempts.ports import Conclusion, SeenFault, WatchOrder
from airflow_ft.attempts.record import NOTIFIED
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import Observation
from airflow_ft.core.chain import Debt, End, Incident, Notice, Outcome
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, FaultClass
from airflow_ft.core.hang import HangVerdict

NOTICES_KEPT = 20
NOTICE_LENGTH = 250
OUTCOME_LENGTH = 600
FRESH_SECONDS = 30.0  # a gut feeling: a small training has made its first steps by then, and nobody reads it sooner

CANCELLED = "cancelled"
# How an attempt ended whose "disruption" is none of the platform's.
PLANNED_ENDS = {
    CANCELLED: End.CANCELLED,
    "attempt_timeout": End.TIMED_OUT,
    "execution_timeout": End.TIMED_OUT,
}


class Account:
    """What one watch has to tell."""

    def __init__(self, order: WatchOrder, sight: Sight, now: Callable[[], datetime]) -> None:
        self._order, self._sight, self._now = order, sight, now
        self.incidents: list[Incident] = list(order.incidents)
        self.notices: list[Notice] = list(order.notices)
        self._recovery = order.recovery

    @property
    def decision(self) -> Decision | None:
        """The decision about the newest incident."""
        return self.incidents[-1].decision if self.incidents else None

    @property
    def has_news(self) -> bool:
        """Whether there is something that people want to hear before the attempt is over."""
        told, heard = self._order.told_generation, self._order.told_notice_at
        notices = (one for one in self.notices if one.kind in NOTIFIED)
        new = any(heard is None or one.at > heard for one in notices)
        return new or any(one.generation > told and not one.again for one in self.incidents)

    @property
    def is_fresh(self) -> bool:
        """Whether the newest restart in place is so fresh that it may fail again at once, and is not verified yet."""
        newest = self.incidents[-1] if self.incidents else None
        if newest is None or newest.ordered_at is None or (newest.recovery and newest.recovery.state != "pending"):
            return False
        return (self._now() - newest.ordered_at).total_seconds() < FRESH_SECONDS

    def notice(self, kind: str, text: str) -> None:
        """Note something that is no fault; of the supervisor's own failures only the newest."""
        notices = [n for n in self.notices if n.kind != kind or kind != "supervisor_error"]
        self.notices = [*notices, Notice(at=self._now(), kind=kind, text=text[:NOTICE_LENGTH])][-NOTICES_KEPT:]

    def add(self, incident: Incident) -> bool:
        """Add a restart in place. Returns whether it is new: an order may be given more than once."""
        others = self._others(incident)
        new = all(known.generation != incident.generation for known in others)
        if new:
            self.incidents = [*others, incident]
        return new

    def _others(self, incident: Incident) -> list[Incident]:
        """Return all but the question that ``incident`` is the answered form of."""
        approved = approved_question(self.incidents, incident.generation) if incident.decision.answer else None
        return [one for one in self.incidents if one is not approved]

    def learn(self, seen: Observation, recalled: dict[int, Incident]) -> list[Incident]:
        """Take over the restarts in place that another process has ordered: from the try's XComs, else the agents."""
        known = max((incident.decision.generation for incident in self.incidents), default=0)
        told = {one.decision.generation: one for one in echoed(seen)} | recalled
        learned = [told[generation] for generation in sorted(told) if known < generation <= seen.generation]
        for one in learned:
            self.incidents = [*self._others(one), one.but(ordered_at=one.ordered_at or seen.at)]
        return learned

    def remember_recovery(self) -> None:
        """Each recovery belongs to the restart that led to its generation; the first one to the attempt itself."""
        recoveries = self._sight.recoveries
        self._recovery = recoveries.get(0, self._recovery)
        for number, incident in enumerate(self.incidents):
            recovery = recoveries.get(incident.decision.generation, incident.recovery)
            if incident.recovery != recovery and incident.decision.action is Action.RESTART_IN_PLACE:
                self.incidents[number] = incident.but(recovery=recovery)

    # --- what comes of it ----------------------------------------------------------------------------------------

    def bare_incident(self, seen: Observation, text: str, decision: Decision, disruption: str) -> Incident:
        """Return the incident of an end that no fault has led to."""
        diagnosis = Diagnosis(fault_class=FaultClass.UNKNOWN, text=text, disruption=disruption)
        return Incident(
            attempt=self._order.ref.attempt,
            generation=seen.generation,
            detected_at=seen.at,
            diagnosis=diagnosis,
            decision=decision,
            progress=self._sight.progress,
        )

    def ended_by(self, incident: Incident, seen: Observation, debt: Debt | None) -> Conclusion:
        """Return the conclusion of an attempt that an incident has ended."""
        planned = incident.diagnosis.disruption
        end = PLANNED_ENDS.get(planned, End.DISRUPTED) if planned else End.FAULT
        outcome = Outcome(end=end, text=incident.diagnosis.text[:OUTCOME_LENGTH], code=seen.code)
        return self.conclusion(seen, outcome, debt, (*self._others(incident), incident))

    def conclusion(
        self, seen: Observation, outcome: Outcome, debt: Debt | None, incidents: Sequence[Incident] | None = None
    ) -> Conclusion:
        """Return a conclusion. With a debt, not all of the job is stopped."""
        return Conclusion(
            chain_id=self._order.ref.chain_id,
            attempt=self._order.ref.attempt,
            try_number=self._order.info.try_number,
            outcome=outcome,
            incidents=tuple(self.incidents if incidents is None else incidents),
            progress=self._sight.progress,
            run=self._sight.run(),
            recovery=self._recovery,
            nodes=tuple(node.node for node in seen.nodes),
            ended_at=self._now(),
            stopped=debt is None,
            debts=(debt,) if debt else (),
            notices=tuple(self.notices),
        )

    def interim(self, seen: Observation) -> Conclusion:
        """Return what is known so far: the attempt goes on."""
        outcome = Outcome(end=End.UNKNOWN, text="It goes on.")
        return self.conclusion(seen, outcome, None).but(interim=True, stopped=False)

    def handed_over(self, seen: Observation, verdict: HangVerdict | None, detected_at: datetime) -> Conclusion:
        """Return what is known of a fault that the stages of the explicit form look into."""
        number, generation = self._order.ref.attempt, seen.generation
        fault = SeenFault(attempt=number, generation=generation, detected_at=detected_at, verdict=verdict)
        return self.interim(seen).but(fault=fault)


def stop_decision(reason: str, order: WatchOrder, last: Decision | None) -> Decision:
    """Return a decision to stop that no fault has led to: a time limit, a person's cancel."""
    ledger = last.ledger if last else order.ledger
    excluded = last.excluded_nodes if last else order.excluded_nodes
    return Decision(action=Action.FAIL, reason=reason, ledger=ledger, excluded_nodes=excluded)
