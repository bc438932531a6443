"""A policy played over recorded chains: which decisions would have been others, and how many restarts that is.

Each recorded fault is put before the new policy, with the ledger and the earlier faults as *this policy* would have
left them, so far as the record carries: once it stops where the chain went on, the later faults of that segment would
not have happened ("not reached"); once it goes on where the chain stopped, nobody knows what would have come. What it
can't know is said in ``Rehearsed.exact``: incidents that were recorded without their inputs are put together as well as
that goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_ft.core.chain import Attempt, Chain, End, Incident, Inputs, PastFault
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.explain import situation_of
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.core.user_rules import RuleHit, RuleMatcher

JOB_LEVEL = (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING, Action.BISECT)
NOT_REACHED = "not reached"


class NotAChainError(ValueError):
    """What was given is no exported chain. The message says what it is."""


@dataclass(frozen=True)
class Recorded:
    """A chain with its attempts, as it was stored or exported."""

    chain: Chain
    attempts: tuple[Attempt, ...]

    @classmethod
    def from_export(cls, document: Any) -> Recorded:
        """Read what ``airflow ft chain --json`` printed. Raises ``NotAChainError``."""
        if not isinstance(document, dict) or "chain" not in document or "attempts" not in document:
            raise NotAChainError("no exported chain: `airflow ft chain DAG RUN TASK --json` prints one")
        try:
            attempts = tuple(Attempt.from_record(one) for one in document["attempts"])
            return cls(Chain.from_record(document["chain"]), attempts)
        except (UnreadableRecordError, TypeError) as error:
            raise NotAChainError(str(error)[:300]) from None


@dataclass(frozen=True)
class Rehearsed:
    """One recorded decision beside the one that the new policy makes. ``now`` is ``None`` if it is not reached."""

    attempt: int
    generation: int
    at: datetime
    fault: str
    step: int | None
    was: Decision
    now: Decision | None
    exact: bool  # the recorded inputs were whole

    @property
    def differs(self) -> bool:
        """Whether something else would have been done."""
        return self.now is None or _done(self.was) != _done(self.now)


@dataclass(frozen=True)
class ChainRehearsal:
    """What a policy would have made of one chain."""

    recorded: Recorded
    decisions: tuple[Rehearsed, ...]
    lost_recoveries: int = 0  # times it would have stopped where training in fact went on beyond that step
    open_ends: int = 0  # times it would have gone on where the chain stopped: what came then is not known

    @property
    def restarts(self) -> tuple[int, int]:
        """Job-level restarts: as recorded, and under the new policy."""
        return _count(self.decisions, JOB_LEVEL)

    @property
    def in_place(self) -> tuple[int, int]:
        """Restarts in place: as recorded, and under the new policy."""
        return _count(self.decisions, (Action.RESTART_IN_PLACE,))


@dataclass
class _Segment:
    """Where the new policy stands in a segment."""

    ledger: Ledger
    faults: list[PastFault] = field(default_factory=list)
    excluded: tuple[str, ...] = ()
    soft: tuple[str, ...] = ()
    stopped_at: int | None = None  # the step
    stopped: bool = False
    lost: bool = False  # training went on beyond the step at which it would have been stopped


def rehearse(policy: FaultTolerancePolicy, recorded: Recorded) -> ChainRehearsal:
    """Play ``policy`` over a chain."""
    matcher, seen = RuleMatcher(policy.rules), []
    segments: dict[int, _Segment] = {}
    earlier: dict[int, list[PastFault]] = {}
    opened = 0
    for attempt, incident in _incidents(recorded):
        inputs, exact = _inputs(recorded, attempt, incident)
        if attempt.segment not in segments:
            segments[attempt.segment] = _Segment(inputs.ledger, [], inputs.excluded_nodes, inputs.soft_nodes)
        segment, before = segments[attempt.segment], earlier.setdefault(attempt.segment, [])
        if segment.stopped:
            segment.lost = segment.lost or _went_beyond(incident, segment.stopped_at)
            seen.append(_rehearsed(incident, None, exact))
        else:
            now = _asked(policy, matcher, incident.but(inputs=inputs), before, segment)
            opened += incident.decision.action is Action.FAIL and now.action is not Action.FAIL
            seen.append(_rehearsed(incident, now, exact))
        if incident.past is not None:
            before.append(incident.past)
    last = recorded.attempts[-1] if recorded.attempts else None
    if last is not None and last.segment in segments and last.outcome and last.outcome.end is End.SUCCEEDED:
        segments[last.segment].lost = segments[last.segment].stopped
    return ChainRehearsal(recorded, tuple(seen), sum(one.lost for one in segments.values()), opened)


def _asked(
    policy: FaultTolerancePolicy,
    matcher: RuleMatcher,
    incident: Incident,
    earlier: Sequence[PastFault],
    segment: _Segment,
) -> Decision:
    assert incident.inputs is not None
    whole = situation_of(incident, [*_padding(incident, earlier), *earlier])
    here = whole.but(
        ledger=segment.ledger,
        faults=tuple(segment.faults[-64:]),
        excluded_nodes=segment.excluded,
        soft_nodes=segment.soft,
        rule_hits=matcher.hits(_lines(incident)),
        can=(*whole.can, *((Action.ASK,) if policy.asks else ())),
    )
    now = decide(policy, here, incident.inputs.at)
    segment.faults.append(past_fault(here, now))
    segment.ledger, segment.excluded, segment.soft = now.ledger, now.excluded_nodes, now.soft_nodes
    if now.action is Action.FAIL:
        segment.stopped, segment.stopped_at = True, here.step
    return now


def _padding(incident: Incident, earlier: Sequence[PastFault]) -> list[PastFault]:
    """The faults that a record has lost are of no use here: the new policy has a history of its own."""
    missing = (incident.inputs.faults if incident.inputs else 0) - len(earlier)
    return [PastFault(cause=("UNKNOWN", "lost"), action=Action.RESUBMIT.value)] * max(0, missing)


def _incidents(recorded: Recorded) -> Iterator[tuple[Attempt, Incident]]:
    """Yield every fault about which a policy decided, the oldest first."""
    for attempt in recorded.attempts:
        for incident in attempt.incidents:
            if incident.past is not None:  # not a person's cancel, not a time limit, not the same incident again
                yield attempt, incident


def _inputs(recorded: Recorded, attempt: Attempt, incident: Incident) -> tuple[Inputs, bool]:
    if incident.inputs is not None:
        return incident.inputs, True
    everything = [one for other in recorded.attempts for one in other.incidents]
    can = [Action.RESUBMIT.value, Action.RESUBMIT_EXCLUDING.value]
    if any(one.decision.action is Action.RESTART_IN_PLACE for one in everything):
        can.append(Action.RESTART_IN_PLACE.value)
    step = incident.progress.step if incident.progress is not None else None
    past = incident.past
    return (
        Inputs(
            at=incident.detected_at,
            step=past.step if past is not None else step,
            can=tuple(can),
            nodes_needed=max(1, len(attempt.nodes)),
            hang=incident.decision.charged == "hang" or incident.diagnosis.fault_class is FaultClass.COMM_HANG,
            salt=f"{attempt.name}/{incident.generation}",
        ),
        False,
    )


def _lines(incident: Incident) -> Iterator[tuple[str, str, int | None, str | None]]:
    """The lines that are left of the logs: what had set off a rule, the root, the evidence."""
    hits: tuple[RuleHit, ...] = incident.inputs.rule_hits if incident.inputs else ()
    for hit in hits:
        yield hit.text, hit.source, hit.line, hit.node
    root = (incident.diagnosis.root,) if incident.diagnosis.root else ()
    for one in (*root, *incident.diagnosis.evidence):
        yield one.text, one.source, one.line, one.node


def _rehearsed(incident: Incident, now: Decision | None, exact: bool) -> Rehearsed:
    diagnosis = incident.diagnosis
    step = incident.past.step if incident.past is not None else None
    return Rehearsed(
        attempt=incident.attempt,
        generation=incident.generation,
        at=incident.detected_at,
        fault=diagnosis.disruption or diagnosis.fault_class.value,
        step=step,
        was=incident.decision,
        now=now,
        exact=exact,
    )


def _went_beyond(incident: Incident, step: int | None) -> bool:
    came = incident.run.reached()
    return came is not None and (step is None or came > step)


def _done(decision: Decision) -> tuple[object, ...]:
    return decision.action, frozenset(decision.excluded_nodes), decision.charged


def _count(decisions: Iterable[Rehearsed], actions: tuple[Action, ...]) -> tuple[int, int]:
    decisions = list(decisions)
    was = sum(one.was.action in actions for one in decisions)
    return was, sum(one.now is not None and one.now.action in actions for one in decisions)
