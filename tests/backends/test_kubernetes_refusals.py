"""A node that calls itself ready and refuses every pod: what that costs, and when it is kept out (story EXC-03)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_ft.attempts.quarantine import Quarantine, entries_of, written
from airflow_ft.backends.base import JobState
from airflow_ft.backends.kubernetes import facts
from airflow_ft.backends.kubernetes.observation import Known, Picture, observe
from airflow_ft.backends.kubernetes.pods import read_pod
from airflow_ft.backends.kubernetes.status import JobStatus
from airflow_ft.core.chain import Incident
from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.decide import Situation, decide, past_fault
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import Diagnosis, FaultClass, Trust
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.diagnosis.signature_files import load_rules
from tests.attempts.dict_store import DictStore
from tests.attempts.test_shared_quarantine import NOW, chain

pytestmark = [pytest.mark.story("EXC-03"), pytest.mark.row("P5")]

FULL = FaultTolerancePolicy.full()
POOL = tuple(f"n{number}" for number in range(1, 9))


def refused_pod(node: str = "n3") -> dict[str, Any]:
    """As the kubelet leaves it: failed, and no container was ever made."""
    return {
        "metadata": {"name": "t-0", "uid": "u0", "labels": {"batch.kubernetes.io/job-completion-index": "0"}},
        "spec": {"containers": [{"name": "main"}], "nodeName": node},
        "status": {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. Requested: 8, Available: 7, which is unexpected",
            "startTime": "2026-03-01T12:00:00Z",
        },
    }


def refused(node: str = "n3") -> Diagnosis:
    """What is made of it."""
    known = Known(read_pod(refused_pod(node)))
    picture = Picture(status=JobStatus(ended=1, text="BackoffLimitExceeded"), pods=[known])
    seen = observe(picture, NOW)
    assert seen.state is JobState.ENDED
    text = "\n".join([f"Name: t-0\nNode: {node}", *facts.pod_lines(known)]).encode()
    logs = (LogText("pod/t-0", text, node, trust=Trust.PLATFORM),)
    evidence = tuple(facts.evidence(picture, seen))
    return classify(Facts(logs=logs, evidence=evidence, nodes=(node,), first_step_seen=False), load_rules())


def test_a_refused_pod_is_nobodys_fault_and_excludes_nothing() -> None:
    """The scheduler thought that there was room: not charged, and the job goes elsewhere or waits a little."""
    diagnosis = refused()
    assert (diagnosis.fault_class, diagnosis.suspects, diagnosis.refused_by) == (FaultClass.HW_NODE, (), "n3")
    decision = decide(FULL, Situation(diagnosis=diagnosis, pool_nodes=POOL), NOW)
    assert (decision.action, decision.charged, decision.excluded_nodes) == (Action.RESUBMIT, "disruption", ())


def test_who_refuses_a_chain_twice_is_avoided_by_it() -> None:
    """The emptiest node is where the scheduler sends the next pod, too."""
    ledger, faults, decisions = Ledger(), (), []
    for number in range(3):
        here = Situation(diagnosis=refused(), ledger=ledger, faults=faults, pool_nodes=POOL)
        decisions.append(decide(FULL, here, NOW + timedelta(minutes=number)))
        ledger, faults = decisions[-1].ledger, (*faults, past_fault(here, decisions[-1]))
    assert [one.excluded_nodes for one in decisions] == [(), ("n3",), ("n3",)]
    assert {one.charged for one in decisions} == {"disruption"}
    assert ledger.restarts == 0


def test_three_chains_that_were_refused_put_a_node_into_quarantine_with_an_end() -> None:
    quarantine, said = Quarantine(DictStore(), "kubernetes:k"), []  # type: ignore[var-annotated]
    diagnosis = refused()
    for name in ("a", "b", "c"):
        assert quarantine.in_force(NOW) == []
        decision = decide(FULL, Situation(diagnosis=diagnosis, pool_nodes=POOL), NOW)
        incident = Incident(attempt=0, detected_at=NOW, diagnosis=diagnosis, decision=decision)
        written(quarantine, entries_of(chain(name), [incident], timedelta(hours=2)), said.append)
    (kept,) = quarantine.in_force(NOW)
    assert (kept.node, {entry.word for entry in kept.entries}) == ("n3", {"refusal"})
    assert quarantine.in_force(NOW + timedelta(hours=2)) == []
    assert said[0].endswith("that n3 has refused a pod; 3 chains make a quarantine.")


def test_a_job_that_prints_such_a_line_accuses_nobody() -> None:
    """Its restarts would be free, and a healthy node would be noted."""
    line = b"UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable"
    diagnosis = classify(Facts(logs=(LogText("n3/output", line, "n3"),), nodes=("n3",)), load_rules())
    assert (diagnosis.disruption, diagnosis.refused_by) == (None, None)
