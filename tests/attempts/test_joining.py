"""A generation has begun when its last node has joined: what fails before that is still the same incident."""

from __future__ import annotations

from airflow_ft.attempts.conclude import SAME_AT_MOST
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

FAILS, GOES_ON = Run(last=20, code=-9), Run(first=21, last=60)


def late_node(early_failures: int, *more: Run) -> Task:
    """Two nodes. The first order reaches only one of them, whose command fails before the other one has joined."""
    task = Task([FAILS, *([GOES_ON] * (early_failures + 1)), *more], nodes=2)
    task.tells = True
    task.cluster.early_failures = early_failures
    return task


def live(task: Task, reach_again_after: float = 6.0) -> str:
    """Live one try; the network to the second node breaks for a while at each order."""
    task.cluster.orders_reach = 1
    give = task.backend._give

    async def given(ref: object, order: object, action: str) -> object:
        job = task.cluster.jobs[ref.name]
        first = job.nodes[0]
        late = first.generation == order.generation and task.seconds() - first.joined > reach_again_after
        task.cluster.orders_reach = 1000 if late or not task.cluster.early_failures else 1
        return await give(ref, order, action)  # type: ignore[arg-type]

    task.backend._give = given  # type: ignore[method-assign,assignment]
    return task.run_to_the_end()


def test_a_node_that_fails_again_before_all_have_joined_is_the_same_incident() -> None:
    task = late_node(1)
    assert live(task) == "success"
    (attempt,) = task.attempts
    first, again = attempt.incidents
    assert (first.again, again.again) == (False, True)
    assert (first.decision.generation, again.decision.generation) == (1, 2)
    assert again.decision.ledger == first.decision.ledger, "one fault is one charge"
    assert len(task.chain.faults) == 1
    assert [kind for _, kind, _ in task.messages] == ["fault", "succeeded"], "told once"
    kinds = [event.kind for event in task.chain.events if "reachable" not in event.kind]
    assert kinds == ["fault", "notice", "succeeded"]
    task.check()


def test_what_fails_so_again_and_again_is_an_incident_of_its_own() -> None:
    task = late_node(SAME_AT_MOST + 1)
    assert live(task) == "success"
    incidents = task.attempts[0].incidents
    assert [one.again for one in incidents] == [False, *[True] * SAME_AT_MOST, False]
    assert len(task.chain.faults) == 2


def test_a_failure_after_all_have_joined_is_a_new_incident() -> None:
    task = Task([FAILS, Run(first=21, last=30, code=-9), Run(first=31, last=60)], nodes=2)
    assert task.run_to_the_end() == "success"
    assert [one.again for attempt in task.attempts for one in attempt.incidents] == [False, False]
    assert len(task.chain.faults) == 2
