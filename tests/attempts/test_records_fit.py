"""Records and events stay small and can be read back, however much there is to tell."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest

from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.store import LIMIT_BYTES, ChainStore, fitted
from airflow_ft.core.chain import (
    Attempt,
    AttemptState,
    Chain,
    ChainEvent,
    Debt,
    End,
    Incident,
    JobRef,
    Notice,
    Outcome,
    PastFault,
)
from airflow_ft.core.decisions import Action, Considered, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Suspect
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.sanitise import sanitise, size_of
from airflow_ft.core.slimming import slimmed
from tests.attempts.fake_task import MemoryStore

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
NODES = tuple(f"gpu-node-{number:03d}.cluster.example" for number in range(64))
TEXTS = ["x" * 300, "训练" * 150, '"\\\n' * 100]


def incident(generation: int, text: str, action: Action = Action.RESTART_IN_PLACE) -> Incident:
    evidence = Evidence(source="n1/output", text=text, line=10**6, node=NODES[0], rank=511, code=-9, at=AT)
    diagnosis = Diagnosis(
        fault_class=FaultClass.NET_FABRIC,
        text=text,
        root=evidence,
        suspects=tuple(Suspect(kind="node", name=name) for name in NODES[:16]),
        confidence=0.5,
        signature="torch.gloo_timeout",
        advice=text,
        evidence=(evidence,) * 20,
    )
    ledger = Ledger(restarts=3, free_at=tuple(AT + timedelta(minutes=n) for n in range(32)), highest_step=10**9)
    decision = Decision(
        action=action,
        reason=text,
        generation=generation + 1,
        excluded_nodes=NODES[:32],
        considered=tuple(Considered(rule=f"rule {n}", why=text[:80]) for n in range(20)),
        ledger=ledger,
    )
    return Incident(
        attempt=127,
        generation=generation,
        detected_at=AT,
        began_at=AT,
        ordered_at=AT,
        diagnosis=diagnosis,
        decision=decision,
        run=Run(last_step=10**9, new_checkpoint=10**9),
        progress=Progress(
            step=generation, checkpoint=generation, checkpoint_path=f"/ckpt/{generation}", loaded_text=text
        ),
        recovery=Recovery(text=text, died_at_step=7),
        past=PastFault(cause=("NET_FABRIC", text[:200]), action=action.value, nodes=NODES[:16], step=generation),
    )


REF = JobRef(backend="local", name="n" * 50, uid="u" * 36, chain_id="c" * 44, attempt=127, submitted_at=AT)


def conclusion(count: int, text: str) -> Conclusion:
    incidents = [incident(generation, text) for generation in range(count - 1)]
    return Conclusion(
        chain_id=REF.chain_id,
        attempt=127,
        try_number=900,
        outcome=Outcome(end=End.FAULT, text=text, warnings=(text,)),
        incidents=(*incidents, incident(count - 1, text, Action.RESUBMIT_EXCLUDING)),
        progress=incidents[-1].progress if incidents else None,
        nodes=NODES[:16],
        ended_at=AT,
        debts=(Debt(ref=REF, since=AT, why=text),),
        notices=tuple(Notice(at=AT, kind="supervisor_error", text=text[:250]) for _ in range(10)),
    )


@pytest.mark.parametrize("text", TEXTS, ids=["ascii", "chinese", "escapes"])
@pytest.mark.parametrize("count", [1, 2, 10, 40])
def test_an_event_with_many_incidents_of_maximal_evidence_fits_and_can_be_read_back(count: int, text: str) -> None:
    whole = conclusion(count, text)
    event = sanitise(fitted(whole).to_record())
    assert size_of(event) <= LIMIT_BYTES
    read = Conclusion.from_record(json.loads(json.dumps(event)))
    assert read.outcome.end is End.FAULT
    assert read.outcome.text[:40] == text[:40]
    assert [debt.ref for debt in read.debts] == [REF]
    last, told = whole.incidents[-1].decision, read.incidents[-1].decision
    assert (told.action, told.ledger, told.excluded_nodes) == (last.action, last.ledger, last.excluded_nodes)
    generations = [one.generation for one in read.incidents]
    assert generations == list(range(count))[-len(generations) :], "the newest stay"
    if count <= 10:
        assert len(generations) == count
        assert [one.diagnosis.fault_class for one in read.incidents] == [FaultClass.NET_FABRIC] * count
        assert all(one.diagnosis.text and one.decision.reason for one in read.incidents), "no fault without a text"
    assert read.incidents[-1].progress is not None
    assert read.incidents[-1].progress.checkpoint_path == f"/ckpt/{count - 1}"


@pytest.mark.parametrize("text", TEXTS, ids=["ascii", "chinese", "escapes"])
def test_an_attempts_record_fits_and_can_be_read_back(text: str) -> None:
    values: dict[str, str] = {}
    store = ChainStore(MemoryStore(values, lambda: True))
    told = conclusion(10, text)
    attempt = Attempt(
        number=127, name="n" * 50, ref=REF, state=AttemptState.CONCLUDED, created_at=AT, incidents=told.incidents,
        outcome=told.outcome, debts=told.debts, notices=told.notices, excluded_nodes=NODES[:32],
    )  # fmt: skip
    store.save_attempt(attempt)
    assert all(len(value) <= LIMIT_BYTES for value in values.values())
    read = store.load_attempt(127)
    assert read is not None
    assert read.decision is not None
    assert read.decision.ledger == attempt.incidents[-1].decision.ledger
    assert (len(read.debts), len(read.notices), len(read.incidents)) == (1, 6, 10)


@pytest.mark.parametrize("text", TEXTS, ids=["ascii", "chinese", "escapes"])
def test_a_chain_with_all_the_faults_and_events_that_are_kept_fits_and_can_be_read_back(text: str) -> None:
    """An unreadable head would be the end of the chain: nobody could ever go on."""
    values: dict[str, str] = {}
    store = ChainStore(MemoryStore(values, lambda: True))
    last = incident(3, text, Action.FAIL)
    assert last.past is not None
    chain = Chain(
        chain_id="c" * 44, dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250, created_at=AT, attempts=128,
        open=127, decision=last.decision, ledger=last.decision.ledger, excluded_nodes=NODES,
        faults=(last.past,) * 64, debts=(Debt(ref=REF, since=AT, why=text[:300]),), next_event=400, notified=390,
        events=tuple(ChainEvent(id=n, at=AT, kind="fault", text=text * 3, attempt=1) for n in range(360, 400)),
    )  # fmt: skip
    store.save(chain)
    assert all(len(value) <= LIMIT_BYTES for value in values.values())
    read = store.load()
    assert read is not None
    assert (read.open, read.attempts, read.ledger) == (127, 128, chain.ledger)
    assert read.decision is not None
    assert (read.decision.action, read.excluded_nodes, read.debts) == (Action.FAIL, NODES, chain.debts)
    assert len(read.faults) >= 16
    assert read.events[-1].id == 399


def test_what_fits_is_left_as_it_is() -> None:
    few = (incident(0, "x").but(recovery=None),)
    assert slimmed(few, 100_000) == few
    assert slimmed((), 0) == ()


def test_slimming_twice_changes_nothing_more() -> None:
    """A note is written by one process and sent again, with the same digest, by another one."""
    many = tuple(incident(n, TEXTS[1]) for n in range(3))
    once = slimmed(many, 6_000)
    assert slimmed(once, 6_000) == once
