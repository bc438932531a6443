"""Stage by stage: the same faults lead to the same chain as in one task, whatever dies in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_ft.attempts.handing_on import FAULT, Book, StageAttempt, handed_on
from airflow_ft.attempts.staged import cancelled, chosen, said_by_stage
from airflow_ft.core.bisect import BisectResult
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.chain import End
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_stages import Stages, until_decided
from tests.attempts.fake_task import Task

NET = "NCCL WARN NET/IB : Got completion with error 12"
GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = "KeyError: 'x'"
QUICK = HangSettings(floor_seconds=60.0, ceiling_seconds=120.0, check_interval_seconds=5.0)


DNS = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SCRIPTS: dict[str, list[list[Run]]] = {
    "crash restarted in place": [[Run(last=20, code=1, words=NET), Run(first=21, last=90)]],
    "crash resubmitted": [[Run(last=20, code=1, words=GPU)], [Run(first=11, last=90)]],
    "fail fast": [[Run(last=20, code=1, words=BUG)], [Run(last=20, code=1, words=BUG)]],
    "out of GPU memory": [[Run(last=20, code=1, words=NO_MEMORY)]],
    "budget used up": [[Run(last=20, code=1, words=DNS)], [Run(first=21, last=40, code=1, words=DNS)]],
    "lost node": [[Run(last=1000)], [Run(first=21, last=90)]],
    "hang": [[Run(last=30, code=None), Run(first=31, last=200)]],
    "term": [[Run(last=30, code=0, term=True, total=60)], [Run(first=31, last=60)]],
    "in place, then resubmitted": [
        [Run(last=20, code=1, words=NET), Run(first=21, last=40, code=1, words=GPU)],
        [Run(first=41, last=90)],
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_stages_keep_the_chain_that_one_task_keeps(name: str) -> None:
    """Record by record, times aside."""
    policy = FaultTolerancePolicy.full(hang=QUICK, max_restarts=1)
    single, staged = (made(*SCRIPTS[name], nodes=2, policy=policy) for made in (Task, Stages))
    assert isinstance(staged, Stages)
    if name == "lost node":
        for task in (single, staged):
            task.happens(25.0, lambda cluster: cluster.lose("n2"))
    state = single.run_to_the_end()
    assert staged.run_stages() == state
    staged.check()
    assert staged.cluster.created == single.cluster.created
    assert plain(staged) == plain(single)


def test_stages_that_are_cleared_keep_the_chain_of_a_task_that_is_cleared() -> None:
    """A new segment, with fresh budgets: the attempt that ran is over, and the next one goes on from its checkpoint."""
    scripts = [Run(last=1000)], [Run(first=21, last=90)]
    single, staged = Task(*scripts, nodes=2), Stages(*scripts, nodes=2)
    for task in (single, staged):
        task.begin_try()
        task.run(task.starter().start())
        task.wait(25)
        task.clear()
    staged.begin_try()
    staged.run(staged.starter().start())
    assert single.run_to_the_end() == staged.run_stages() == "success"
    assert [event.kind for event in staged.chain.events] == ["cleared", "succeeded"]
    staged.check()
    assert plain(staged) == plain(single)


@pytest.mark.story("LIF-01")
def test_a_watch_that_a_person_clears_alone_is_a_disruption_of_the_training() -> None:
    """Its trigger stops the job, as that of any task that is cleared; the segment and the budget stay as they are."""
    task = Stages([Run(last=1000)], [Run(first=21, last=90)], nodes=2)
    task.begin_try()
    task.run(task.starter().start())
    task.wait(25)
    (attempt,) = task.attempts
    assert attempt.ref is not None
    task.run(task.backend.cancel(attempt.ref, 3.0))
    assert task.run_stages() == "success"
    assert [(one.outcome.end if one.outcome else None) for one in task.attempts] == [End.DISRUPTED, End.SUCCEEDED]
    assert (task.chain.segment, task.chain.ledger.restarts) == (0, 0)
    task.check()


def plain(task: Task) -> Any:
    """Everything but times, and the try that did it."""
    return _without_times([task.chain.to_record(), *(attempt.to_record() for attempt in task.attempts)])


TIMES = ("_at", "at", "since", "seconds", "try_number", "free", "charged_at", "recovered_in", "lost_seconds", "put_off")


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if not key.endswith(TIMES)}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value


@pytest.mark.parametrize("name", ["crash restarted in place", "hang"])
def test_the_time_that_stages_take_is_not_the_trainings(name: str) -> None:
    """Neither as time of healthy running, nor as work that was lost."""

    def run_of(between_seconds: float) -> Any:
        task = Stages(*SCRIPTS[name], nodes=2, policy=FaultTolerancePolicy.full(hang=QUICK))
        task.between_seconds = between_seconds
        until_decided(task)
        assert task.book.fault is not None and task.book.fault.incident is not None
        return task.book.fault.incident.run

    assert run_of(45.0) == run_of(0.0)


def test_a_job_that_has_nothing_wrong_is_watched_to_its_end() -> None:
    task = Stages([Run(last=30)])
    assert task.run_stages() == "success"
    attempt = handed_on(task.book, "watch")
    assert (attempt.state, attempt.step, attempt.number) == ("succeeded", 30, 0)


def test_an_order_that_a_lost_try_has_given_is_not_given_again() -> None:
    """The stage dies after the order, before it has written anything: its next try finds the new generation."""
    task = Stages([Run(last=20, code=1, words=NET), Run(first=21, last=90)], nodes=2)
    before = until_decided(task)
    task.act()
    orders = len(task.cluster.orders)
    task.book_record = before
    task.wait(5)
    task.act()
    assert len(task.cluster.orders) == orders
    task.stage_one()
    assert task.chain.concluded is End.SUCCEEDED
    (incident,) = task.attempts[0].incidents
    assert incident.decision.action is Action.RESTART_IN_PLACE
    task.check()


def test_what_a_stage_hands_on_says_what_is_known_by_then() -> None:
    task = Stages([Run(last=20, code=1, words=GPU)], [Run(first=11, last=30)], nodes=2)
    until_decided(task)
    attempt = handed_on(task.book, "train.attempt_0.decide")
    assert (attempt.state, attempt.action, attempt.fault_class) == ("decided", "RESUBMIT", "HW_NODE")
    assert (attempt.restarts, attempt.max_restarts) == (1, task.policy.max_restarts)
    assert "ECC" in attempt.root_line
    assert len(json.dumps(attempt.to_xcom())) < 4000, "it is small"
    assert StageAttempt.from_record(attempt.to_xcom()) == attempt
    task.book.set(FAULT, None)
    assert handed_on(task.book, "x").state == "running"


def test_a_stage_of_a_users_own_may_take_the_fault_for_something_else() -> None:
    task = Stages([Run(last=20, code=1, words=GPU)], [Run(first=11, last=30)], nodes=2)
    until_decided(task)
    fault = task.book.fault
    assert fault is not None
    assert said_by_stage(fault, "HW_NODE", "", (), "mine") is fault, "that is what it is taken for already"
    other = said_by_stage(fault, "APP_ERROR", "A known bug of ours.", (), "mine")
    assert other.diagnosis is not None
    assert (other.diagnosis.fault_class, other.diagnosis.text) == (FaultClass.APP_ERROR, "A known bug of ours.")
    assert other.incident is None, "it is decided anew"
    decided = task.run(task.stage_watch().decide(other))
    assert decided.incident is not None
    assert decided.incident.diagnosis.fault_class is FaultClass.APP_ERROR


@pytest.mark.parametrize(("action", "charged"), [(Action.RESUBMIT, 1), (Action.FAIL, 0), (Action.RESTART_IN_PLACE, 0)])
def test_what_a_branch_of_a_users_own_has_chosen_is_charged_instead(action: Action, charged: int) -> None:
    task = Stages([Run(last=20, code=1, words=NET), Run(first=21, last=90)], nodes=2)
    until_decided(task)
    fault = task.book.fault
    assert fault is not None
    assert fault.incident is not None
    incident = chosen(fault.incident, action, "A branch has chosen it.", task.policy, task.now())
    assert incident.decision.action is action
    assert incident.decision.ledger.restarts == charged
    assert "A branch has chosen it." in incident.decision.reason


def test_a_branch_can_not_choose_more_restarts_than_the_budget_has() -> None:
    task = Stages([Run(last=20, code=1, words=BUG)], nodes=2, policy=FaultTolerancePolicy.full(max_restarts=1))
    until_decided(task)
    fault = task.book.fault
    assert fault is not None
    assert fault.incident is not None
    spent = fault.incident.decision.ledger.charge("restart", task.now())
    incident = fault.incident.but(decision=fault.incident.decision.but(ledger=spent), inputs=None)
    stopped = chosen(incident, Action.RESUBMIT, "A branch.", task.policy, task.now()).decision
    assert stopped.action is Action.FAIL
    assert "budget used up" in stopped.reason


def test_what_a_stage_of_its_own_has_searched_is_not_searched_again() -> None:
    """``resubmit`` decides about it as about a search of its own."""
    policy = FaultTolerancePolicy.full(bisect=BisectSettings(), rules=[{"match": "sick", "action": "bisect"}])
    task = Stages(
        [Run(last=20, code=1, words=f"{GPU}, somebody is sick")], [Run(first=21, last=30)], nodes=2, policy=policy
    )
    until_decided(task)
    task.act()
    assert task.chain.decision is not None and task.chain.decision.action is Action.BISECT
    found = BisectResult(faulty_nodes=("n2",), confidence={"n2": 0.99}, tests=3, rounds=2)
    task.run(task.starter(bisected=found).start())
    assert task.attempts[1].excluded_nodes == ("n2",)
    assert "Bisect: found n2 (confidence 99 %); 3 tests in 2 rounds." in task.chain.events[-1].text
    task.check()


def test_the_first_attempt_avoids_what_was_found_before_it() -> None:
    task = Stages([Run(last=30)], nodes=2)
    task.begin_try()
    task.run(task.starter(avoid=("n1",)).start())
    (attempt,) = task.attempts
    assert attempt.excluded_nodes == ("n1",)
    assert {node.name for job in task.cluster.live() for node in job.nodes} == {"n2", "n3"}


def test_what_is_left_is_cancelled_and_the_chain_says_so() -> None:
    task = Stages([Run(last=2000)], nodes=2)
    task.begin_try()
    task.run(task.starter().start())
    task.wait(10)
    call = cancelled(task.store(), task.backend, task.job, 3.0, "The stages ended.", task.now, task.say)
    chain = task.run(call)
    assert chain is not None
    assert chain.open is None
    assert chain.concluded is End.CANCELLED
    assert not task.cluster.live(chain.chain_id)
    task.check()
    again = task.run(cancelled(task.store(), task.backend, task.job, 3.0, "Again.", task.now, task.say))
    assert again == chain


def test_the_newest_book_is_the_one_that_was_written_most() -> None:
    written: list[Any] = []
    book = Book(None, written.append)
    book.set("ft/x", 1)
    book.set("stage/y", 2)
    assert [one["serial"] for one in written] == [0, 1]
    again = Book(written[-1], written.append)
    assert again.get("ft/x") == 1
    assert again.records() == {"ft/x": 1}
    again.set("stage/y", None)
    assert written[-1]["values"] == {"ft/x": 1}
    assert written[-1]["serial"] == 2
    assert written[0]["values"] == {"ft/x": 1}, "what was handed on before stays as it was"
