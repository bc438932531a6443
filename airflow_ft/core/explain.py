"""A decision, made again from what the chain has recorded of it: the same values have to give the same answer.

``inputs_of`` is what an attempt records with each decision; ``situation_of`` puts the situation together again. The
earlier faults of the segment stand in the incidents before it, so they are not recorded twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_ft.core.chain import Attempt, Incident, Inputs, PastFault
from airflow_ft.core.decide import decide
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.settings import SettingsError
from airflow_ft.core.situation import Situation

SHARED = tuple(name for name in Inputs.model_fields if name in Situation.model_fields and name not in ("can", "faults"))
# What has to be the same when a decision is made again. The reason may have been cut to fit into the record.
COMPARED = ("action", "level", "generation", "excluded_nodes", "soft_nodes", "delay", "charged", "ledger", "rule")
FAULTS_KEPT = 64  # as in the chain's head


class NotExplainableError(ValueError):
    """The record is not enough to make the decision again. The message says what is missing."""


@dataclass(frozen=True)
class Explanation:
    """A decision, the one that was made again, and in what they differ."""

    incident: Incident
    policy: FaultTolerancePolicy
    again: Decision
    differs: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the same answer came out."""
        return not self.differs


def inputs_of(situation: Situation, policy: FaultTolerancePolicy, now: datetime) -> Inputs:
    """Return what a record needs so that the decision can be made again."""
    shared = {name: getattr(situation, name) for name in SHARED}
    can = tuple(action.value for action in situation.can)
    return Inputs(at=now, policy=policy_digest(policy), faults=len(situation.faults), can=can, **shared)


def policy_digest(policy: FaultTolerancePolicy) -> str:
    """Return a short fingerprint of a policy."""
    return hashlib.sha256(json.dumps(policy.to_dict(), sort_keys=True).encode()).hexdigest()[:12]


def situation_of(incident: Incident, faults: Sequence[PastFault]) -> Situation:
    """Return the situation in which a decision was made. ``faults`` are all earlier ones of its segment.

    Raises ``NotExplainableError``.
    """
    inputs = incident.inputs
    if inputs is None:
        raise NotExplainableError("what the decision was made of is not in the record")
    if len(faults) < inputs.faults:
        raise NotExplainableError(f"of {inputs.faults} earlier faults only {len(faults)} are in the records")
    return Situation(
        diagnosis=incident.diagnosis,
        faults=tuple(faults[-inputs.faults :]) if inputs.faults else (),
        run=incident.run,
        generation=incident.generation,
        can=tuple(Action(word) for word in inputs.can),
        **{name: getattr(inputs, name) for name in SHARED},
    )


def explained(attempt: Attempt, incident: Incident, faults: Sequence[PastFault]) -> Explanation:
    """Make a decision of ``attempt`` again and compare. Raises ``NotExplainableError``."""
    situation = situation_of(incident, faults)
    assert incident.inputs is not None
    policy = policy_of(attempt.policy)
    if incident.inputs.policy and policy_digest(policy) != incident.inputs.policy:
        raise NotExplainableError("the policy of this decision is not the one in the record: it was changed meanwhile")
    again = decide(policy, situation, incident.inputs.at)
    return Explanation(incident, policy, again, differences(incident.decision, again))


def policy_of(record: dict[str, Any]) -> FaultTolerancePolicy:
    """Return the policy of an attempt's record. Raises ``NotExplainableError``."""
    if not record:
        raise NotExplainableError("the policy is not in the record")
    try:
        return FaultTolerancePolicy.from_dict(record)
    except SettingsError as error:
        raise NotExplainableError(f"the recorded policy can't be read by this version: {error}") from None


def differences(made: Decision, again: Decision) -> tuple[str, ...]:
    """Say in what two decisions differ: "delay: 0.0, now 30.0". An answered question is compared as the question."""
    if made.answer:
        made = made.but(action=Action.ASK)
        return () if again.action is Action.ASK else (f"action: ASK, now {again.action.value}",)
    found = []
    for name in COMPARED:
        was, now = getattr(made, name), getattr(again, name)
        if was != now:
            found.append(f"{name}: {_word(was)}, now {_word(now)}")
    return tuple(found)


def earlier_faults(attempts: Sequence[Attempt], attempt: int, generation: int) -> list[PastFault]:
    """Return the faults of the segment before an incident, the oldest first, as the chain's head had them."""
    own = next((one for one in attempts if one.number == attempt), None)
    found = []
    for one in attempts:
        if own is None or one.segment != own.segment or one.number > attempt:
            continue
        for incident in one.incidents:
            if incident.past is not None and (one.number, incident.generation) < (attempt, generation):
                found.append(incident.past)
    return found


def _word(value: object) -> str:
    return str(getattr(value, "value", value))[:200]
