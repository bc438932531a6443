"""A person is asked: nothing goes on without the answer, nothing is charged twice, and the job is held or let go."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.attempts.queueing import is_overdue, softer
from airflow_ft.cli.explain import explanations
from airflow_ft.core.chain import End
from airflow_ft.core.decisions import Action
from airflow_ft.core.explain import Explanation
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import AskSettings, ExclusionSettings, FaultTolerancePolicy, HangSettings
from airflow_ft.core.story import state_word
from airflow_ft.operators import asking
from airflow_ft.triggers.answers import NOT_ANSWERED, AnswerTrigger, answer_of
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, Killer, Task, at_point

ECC = Run(first=1, last=20, code=1, words="RuntimeError: CUDA error: uncorrectable ECC error encountered")
BUG = Run(first=1, last=20, code=1, words="KeyError: 'x'")
DONE = Run(first=1, last=40, code=0)
ASK = FaultTolerancePolicy.full(on_fault="ask")
BLAMES = [{"match": "uncorrectable ECC", "action": "exclude_node"}]


def test_nothing_is_submitted_before_a_person_has_answered_and_the_job_is_let_go() -> None:
    task = Task([BUG], [DONE], policy=ASK)
    assert task.run_try() == "asked"
    task.check()
    assert task.run_try() == "asked", "a try that Airflow lost asks again"
    assert len(task.attempts) == 1 and task.cluster.live() == []
    assert state_word(task.chain) == "waits for a person"
    assert task.answer("resubmit") == "retry"
    assert task.run_try() == "success"
    assert task.chain.ledger.restarts == 1


@pytest.mark.parametrize(
    ("answer", "state", "restarts"), [("approve", "failed", 0), ("stop", "failed", 0), ("resubmit", "retry", 1)]
)
def test_each_answer_is_carried_out(answer: str, state: str, restarts: int) -> None:
    task = Task([BUG], [DONE], policy=ASK)
    task.run_try()
    assert task.answer(answer) == state
    assert task.chain.ledger.restarts == restarts
    assert [event.kind for event in task.chain.events][-1] == "answered"
    assert task.chain.events[-1].text.startswith("maria ")


def test_a_job_that_is_held_meanwhile_is_there_until_the_answer_and_gone_after_it() -> None:
    policy = FaultTolerancePolicy.full(on_fault="ask", ask=AskSettings(job="hold"))
    for answer, left in (("resubmit", 0), ("stop", 0)):
        task = Task(
            [Run(first=1, last=20, code=None)],
            [DONE],
            policy=policy.model_copy(update={"hang": HangSettings(floor_seconds=30)}),
        )
        assert task.run_try() == "asked"
        assert len(task.cluster.live()) == 1, "a hang can be looked at"
        assert task.run_try() == "asked" and len(task.cluster.live()) == 1
        task.answer(answer)
        if answer == "resubmit":
            assert task.run_try() == "success"
        assert len(task.cluster.live()) == left
        assert task.chain.debts == ()
        assert all(attempt.fenced for attempt in task.attempts if attempt.outcome)


KILLED = Run(first=1, last=20, code=-9)
HOLD = FaultTolerancePolicy.full(on_fault="ask", ask=AskSettings(job="hold"))


def test_a_restart_in_place_that_is_approved_of_a_held_job_is_one() -> None:
    task = Task([KILLED, Run(first=21, last=40)], policy=HOLD, nodes=2)
    assert task.run_try() == "asked"
    task.wait(3600)
    assert task.answer("approve") == "success"
    (attempt,) = task.attempts
    (incident,) = attempt.incidents
    assert (incident.decision.action, incident.decision.charged) == (Action.RESTART_IN_PLACE, "in_place")
    assert incident.decision.answer == "approve" and incident.ordered_at is not None
    assert incident.recovery is not None and incident.recovery.state == "recovered"
    assert (task.chain.ledger.restarts, task.chain.ledger.unprogressed) == (0, 1)
    assert [fault.action for fault in task.chain.faults] == ["RESTART_IN_PLACE"], "counted once"
    assert [event.kind for event in task.chain.events] == ["fault", "notice", "answered", "succeeded"]
    task.check()
    found = [answer for _, _, answer in explanations(task.attempts)]
    assert [isinstance(one, Explanation) and one.differs for one in found] == [()]


def test_a_hang_that_is_held_is_restarted_in_place_when_that_is_approved() -> None:
    policy = HOLD.model_copy(update={"hang": HangSettings(floor_seconds=30)})
    task = Task([Run(first=1, last=20, code=None), DONE], policy=policy)
    assert task.run_try() == "asked"
    assert task.answer("approve") == "success"
    (attempt,) = task.attempts
    assert [one.decision.charged for one in attempt.incidents] == ["hang"]
    assert (task.chain.ledger.restarts, task.chain.ledger.hang_streak) == (0, 1)
    task.check()


def test_where_the_hold_is_over_an_approved_restart_in_place_is_a_resubmission_that_says_so() -> None:
    task = Task([KILLED], [DONE], policy=HOLD)
    assert task.run_try() == "asked"
    task.wait(5 * 3600)
    assert task.answer("approve") == "retry"
    (attempt,) = task.attempts
    (incident,) = attempt.incidents
    assert (incident.decision.action, incident.decision.charged) == (Action.RESUBMIT, "restart")
    assert "The nodes are not held any more: resubmitting instead." in incident.decision.reason
    assert task.run_try() == "success"
    assert (task.chain.ledger.restarts, task.chain.ledger.unprogressed) == (1, 0)
    assert [fault.action for fault in task.chain.faults] == ["RESUBMIT"]
    task.check()


@pytest.mark.parametrize("point", ["answer.between", "answer.after", "conclude.written", "conclude.ordered"])
def test_an_approved_restart_in_place_is_charged_once_whatever_dies(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task([KILLED, DONE], policy=HOLD)
    task.run_try()
    with at_point(monkeypatch, Killer(point)), pytest.raises(Died):
        task.answer("approve")
    state = task.run_try()
    if state == "asked":
        assert point == "answer.between"
        state = task.answer("approve")
    assert state == "success"
    (attempt,) = task.attempts
    assert [one.decision.action for one in attempt.incidents] == [Action.RESTART_IN_PLACE]
    assert (task.chain.ledger.restarts, task.chain.ledger.unprogressed) == (0, 1)
    assert len(task.chain.faults) == 1
    task.check()


@pytest.mark.parametrize("point", ["answer.between", "answer.after"])
def test_an_answer_is_charged_once_although_the_process_that_writes_it_dies(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task([BUG], [DONE], policy=ASK)
    task.run_try()
    with at_point(monkeypatch, Killer(point)), pytest.raises(Died):
        task.answer("resubmit")
    if task.run_try() == "asked":
        assert task.chain.ledger.restarts == 0
        task.answer("resubmit")
        assert task.run_try() == "success"
    assert task.chain.ledger.restarts == 1
    assert task.chain.concluded is End.SUCCEEDED


def test_a_clear_while_a_person_is_asked_begins_a_new_segment() -> None:
    policy = FaultTolerancePolicy.full(on_fault="ask", ask=AskSettings(job="hold"))
    task = Task([BUG], [DONE], policy=policy)
    task.run_try()
    task.clear()
    assert task.run_try() == "success"
    assert task.chain.segment == 1
    task.check()


def test_an_answered_question_can_be_explained_and_so_can_what_follows() -> None:
    task = Task([BUG], [ECC], [DONE], policy=ASK)
    task.run_try()
    task.answer("resubmit")
    task.run_try()
    task.answer("approve")
    assert task.run_try() == "success"
    found = [answer for _, _, answer in explanations(task.attempts)]
    assert [isinstance(one, Explanation) and one.differs for one in found] == [(), ()]


# --- Airflow's side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        ({"chosen_options": ["Resubmit"], "responded_by_user": {"id": "1", "name": "maria"}}, ("resubmit", "maria")),
        ({"chosen_options": ["Stop"], "responded_by_user": SimpleNamespace(name="maria")}, ("stop", "maria")),
        ({"chosen_options": ["Approve what is proposed"]}, ("approve", "A person")),
        ({"chosen_options": ["Stop"], "timedout": True}, ("approve", "Nobody answered in time; the default")),
        ({"chosen_options": ["Perhaps"]}, ("approve", "Nobody answered in time; the default")),
        ({"chosen_options": []}, ("approve", "Nobody answered in time; the default")),
        ({"chosen_options": "Stop"}, ("approve", "Nobody answered in time; the default")),
        (None, ("approve", "Nobody answered in time; the default")),
    ],
)
def test_an_event_that_says_nothing_clear_is_the_default(event: Any, answer: tuple[str, str]) -> None:
    assert asking.understood(event, ASK) == answer


ASKED_AT = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("minutes", "options", "user", "answer"),
    [
        (1, ["Stop"], SimpleNamespace(id="1", name="maria"), ("stop", "maria")),
        (1, ["Resubmit"], None, ("approve", "Nobody answered in time; the default")),
        (-1, ["Stop"], SimpleNamespace(id="1", name="maria"), None),
        (None, None, None, None),
    ],
)
def test_what_airflow_keeps_of_an_answer_is_taken_unless_it_is_older_than_the_question(
    minutes: int | None, options: Any, user: Any, answer: tuple[str, str] | None
) -> None:
    at = ASKED_AT + timedelta(minutes=minutes) if minutes is not None else None
    kept = SimpleNamespace(responded_at=at, responded_by_user=user, chosen_options=options)
    event = answer_of(kept, ASKED_AT)
    assert answer_of(None, ASKED_AT) == {NOT_ANSWERED: True}
    assert (event == {NOT_ANSWERED: True}) is (answer is None)
    if answer is not None:
        assert asking.understood(json.loads(json.dumps(event)), ASK) == answer


def test_the_trigger_that_reads_an_answer_bears_what_it_does_not_know() -> None:
    """A trigger that raises stops all others; whatever goes wrong, the question is asked once more."""
    trigger = AnswerTrigger({"dag_id": "d"}, "noon", 0.0, of_a_newer_version=True)
    assert AnswerTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()

    async def fired() -> Any:
        return [event.payload async for event in trigger.run()]

    assert asyncio.run(fired()) == [{NOT_ANSWERED: True}]


def test_every_default_is_one_of_the_options() -> None:
    for default in ("approve", "resubmit", "stop"):
        assert asking._option(default) in asking.OPTIONS


# --- a queue that an exclusion makes endless -----------------------------------------------------------------------


@pytest.mark.story("EXC-01")
@pytest.mark.row("P4")
def test_an_attempt_that_finds_no_place_gets_its_least_sure_exclusion_softened() -> None:
    """Two of three nodes are needed, one is excluded, another one breaks for good."""
    policy = FaultTolerancePolicy.full(rules=BLAMES, exclusion=ExclusionSettings(unschedulable_seconds=100))
    task = Task([ECC], [DONE], policy=policy, nodes=2, pool=3)
    task.begin_try()
    assert task.settle(task.execute) == "retry"
    (excluded,) = task.chain.excluded_nodes
    task.cluster.lose(next(node for node in ("n1", "n2", "n3") if node != excluded))
    assert task.run_try() == "retry", "it waited, and its exclusion was given up"
    assert (task.chain.excluded_nodes, task.chain.soft_nodes) == ((), (excluded,))
    assert task.chain.ledger.restarts == 1, "not charged"
    assert task.told(f"{excluded}, the least sure of them, may be used if no other is free")
    assert task.run_try() == "success"


def test_a_queue_that_is_only_long_keeps_its_place() -> None:
    task = Task([ECC], [DONE], nodes=1, pool=4, policy=FaultTolerancePolicy.full(rules=BLAMES))
    task.run_try()
    task.begin_try()
    task.execute()
    assert task.order is not None and task.order.excluded_nodes
    later = task.order.ref.submitted_at + timedelta(hours=1)
    assert is_overdue(task.order, task.policy, later)
    assert not is_overdue(task.order, task.policy, task.order.ref.submitted_at)
    assert softer(task.order, task.policy, ("n1", "n2", "n3", "n4"), later) is None
    assert softer(task.order, task.policy, (), later) is None, "a pool that can't be seen: much later"
    unseen = softer(task.order, task.policy, (), later + timedelta(hours=2))
    assert unseen is not None and unseen.action is Action.RESUBMIT
    assert unseen.ledger == task.order.ledger != Ledger()


# --- a hang that is only told --------------------------------------------------------------------------------------


@pytest.mark.row("P7")
def test_a_hang_in_a_rehearsal_is_told_with_what_would_have_been_done_and_left_alone() -> None:
    policy = FaultTolerancePolicy.full(on_fault="notify", hang=HangSettings(floor_seconds=30))
    task = Task([Run(first=1, last=20, code=None)], policy=policy, timeout=600)
    task.run_try()
    (attempt,) = task.attempts
    (notice,) = [one for one in attempt.notices if one.kind == "hang_notice"]
    assert "Notice only: nothing is done. It would have been: restart in place." in notice.text
    assert [one.decision.action for one in attempt.incidents] == [Action.FAIL], "the time limit, nothing else"
