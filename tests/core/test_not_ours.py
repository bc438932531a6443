"""Decisions about a job that somebody else has submitted: the same judgement, nothing done, nothing charged."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.chain import Attempt, Incident
from airflow_ft.core.decide import Situation, decide
from airflow_ft.core.decisions import UNTOUCHED, Action
from airflow_ft.core.explain import explained, inputs_of
from airflow_ft.core.faults import Diagnosis, FaultClass, Suspect
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.story import action_words

pytestmark = pytest.mark.row("S4")
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
POLICIES = {
    "full": FaultTolerancePolicy.full(),
    "basic": FaultTolerancePolicy.basic(),
    "ask": FaultTolerancePolicy.full(on_fault="ask"),
    "notify": FaultTolerancePolicy.full(on_fault="notify"),
}


def situation(fault_class: FaultClass, foreign: str) -> Situation:
    suspects = (Suspect(kind="node", name="n2"),) if fault_class is FaultClass.HW_NODE else ()
    diagnosis = Diagnosis(fault_class=fault_class, text="It broke.", suspects=suspects, confidence=0.9)
    return Situation(diagnosis=diagnosis, pool_nodes=("n1", "n2", "n3", "n4"), step=7, foreign=foreign)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault_class", FaultClass)
def test_what_would_be_done_is_told_and_nothing_is(policy: str, fault_class: FaultClass) -> None:
    ours = decide(POLICIES[policy], situation(fault_class, ""), NOW)
    theirs = decide(POLICIES[policy], situation(fault_class, "process 4711"), NOW)
    assert (theirs.action, theirs.charged, theirs.ledger.restarts) == (Action.FAIL, "", 0)
    assert (theirs.level, action_words(theirs)) == (UNTOUCHED, "nothing: it is not ours")
    if ours.action is Action.FAIL:
        assert theirs.reason == ours.reason
        return
    told = ours.shadow or ours
    assert theirs.shadow is not None and theirs.shadow.action is told.action
    assert theirs.shadow.excluded_nodes == told.excluded_nodes
    assert "Nothing is done to process 4711, which is not ours." in theirs.reason


def test_it_is_explained_from_its_record() -> None:
    policy, seen = POLICIES["full"], situation(FaultClass.UNKNOWN, "process 4711")
    decision = decide(policy, seen, NOW)
    incident = Incident(
        attempt=0, detected_at=NOW, diagnosis=seen.diagnosis, decision=decision, inputs=inputs_of(seen, policy, NOW)
    )
    attempt = Attempt(number=0, name="c-a0", created_at=NOW, incidents=(incident,), policy=policy.to_dict())
    assert explained(attempt, Incident.from_record(incident.to_record()), []).same
