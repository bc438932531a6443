"""Two watches of one attempt, decisions that are written already, and agents that don't do as they are told.

Airflow can run two triggers of one deferral for a while, and a process that was frozen acts in the instant it wakes.
What holds them together is what the agents accept: generation and digest.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from airflow_ft.attempts import conclude, letting_go
from airflow_ft.attempts.conclude import ORDER_KEY
from airflow_ft.attempts.letting_go import cancel_for_person
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.core.chain import End, Incident
from airflow_ft.core.decisions import Action
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, FakeDesk, Killer, Task, at_point

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
IN_PLACE = (Run(last=30, code=-9), Run(first=31, last=60))
RESUBMIT = (Run(last=30, code=1, words=GPU), Run(first=31, last=60))


def deferred(*runs: Run, nodes: int = 2) -> Task:
    task = Task(list(runs), [Run(first=31, last=60)], nodes=nodes)
    task.begin_try()
    assert task.execute() == "deferred"
    return task


def twins(task: Task, later: float = 0.0) -> list[Conclusion]:
    """Two watches at once, the second one a little later."""

    async def second() -> Conclusion:
        await asyncio.sleep(later)
        return await task.make_watch().watch()

    async def both() -> list[Conclusion]:
        return list(await asyncio.gather(task.make_watch().watch(), second()))

    return task.run(both())


def restarts(task: Task) -> list[tuple[str, int, str]]:
    return [order[:3] for order in task.cluster.orders if order[3] == "restart"]


@pytest.mark.parametrize("later", [0.0, 0.3, 0.5, 1.0, 2.5, 32.0, 33.5])
@pytest.mark.parametrize("runs", [IN_PLACE, RESUBMIT], ids=["restart in place", "resubmit"])
def test_twins_come_to_one_decision_and_charge_it_once(runs: tuple[Run, ...], later: float) -> None:
    task = deferred(*runs)
    first, second = twins(task, later)
    digests = {digest for _, _, digest in restarts(task)}
    assert len(restarts(task)) == (2 if runs is IN_PLACE else 0), "once a node"
    assert len(digests) <= 1
    told = [[(i.generation, i.decision.action, i.decision.charged) for i in c.incidents] for c in (first, second)]
    assert told[0] == told[1]
    assert first.outcome.end is second.outcome.end
    assert task.settle(lambda: task.complete(first.to_record())) in ("success", "retry")
    assert task.run_to_the_end() == "success"
    assert task.chain.ledger.restarts == (0 if runs is IN_PLACE else 1)
    assert len(task.chain.faults) == 1
    task.check()


@pytest.mark.parametrize("point", ["conclude.diagnosed", "conclude.decided", "conclude.written", "conclude.ordered"])
def test_a_watch_that_was_frozen_while_its_twin_acted_does_nothing_more(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP between two steps of a conclusion; the twin goes through the whole of it; SIGCONT."""
    task, fired = deferred(*IN_PLACE), False
    ended: list[Conclusion] = []

    def freeze(reached: str) -> None:
        nonlocal fired
        if reached == point and not fired:
            fired = True
            thread = threading.Thread(target=lambda: ended.append(Conclusion.from_record(task.watch())))
            thread.start()
            thread.join()
            assert ended, "the twin came to its end"

    with at_point(monkeypatch, freeze):
        frozen = Conclusion.from_record(task.watch())
    assert len(restarts(task)) == 2
    for conclusion in (frozen, *ended):
        assert conclusion.outcome.end is End.SUCCEEDED
        assert [incident.generation for incident in conclusion.incidents] == [0]
    assert frozen.incidents[0].decision.digest() == ended[0].incidents[0].decision.digest()


@pytest.mark.parametrize("runs", [IN_PLACE, RESUBMIT], ids=["restart in place", "resubmit"])
def test_a_decision_that_is_written_is_carried_out_again_and_never_taken_anew(
    runs: tuple[Run, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = deferred(*runs)
    with at_point(monkeypatch, Killer("conclude.written")), pytest.raises(Died):
        task.watch()
    written = Incident.from_record(json.loads(task.xcoms[ORDER_KEY]))

    def never(*_: object) -> None:
        raise AssertionError("it was decided already")

    monkeypatch.setattr(conclude, "decide", never)
    conclusion = Conclusion.from_record(task.watch())
    assert conclusion.incidents[0].decision == written.decision


def test_without_xcoms_the_agents_echo_tells_what_was_decided() -> None:
    """Airflow's database was away while it was decided, and the triggerer died right after."""
    task = deferred(*IN_PLACE)

    async def until_ordered() -> None:
        watch = task.make_watch()
        task.desks[-1].down = True
        watching = asyncio.ensure_future(watch.watch())
        while not restarts(task):
            await asyncio.sleep(0.5)
        watching.cancel()

    task.run(until_ordered())
    assert ORDER_KEY not in task.xcoms
    conclusion = Conclusion.from_record(task.watch())
    assert conclusion.outcome.end is End.SUCCEEDED
    (incident,) = conclusion.incidents
    assert (incident.generation, incident.decision.charged) == (0, "in_place")
    assert incident.recovery is not None
    assert incident.recovery.state == "recovered"


@pytest.mark.parametrize("same_try", [True, False])
def test_all_restarts_of_an_attempt_are_known_to_who_comes_after_the_third(same_try: bool) -> None:
    """From the try's XComs; in another try, which has none, from the orders that the agents keep."""
    runs = [Run(first=1 + 30 * n, last=30 + 30 * n, code=-9) for n in range(3)]
    task = deferred(*runs, Run(first=91, last=120))

    async def three() -> None:
        watching = asyncio.ensure_future(task.make_watch().watch())
        while len(restarts(task)) < 6:
            await asyncio.sleep(0.5)
        watching.cancel()

    task.run(three())
    if same_try:
        assert task.settle(lambda: task.complete(task.watch())) == "success"
    else:
        assert task.run_try() == "success"
    assert [incident.generation for incident in task.attempts[0].incidents] == [0, 1, 2]
    states = [incident.recovery.state for incident in task.attempts[0].incidents if incident.recovery]
    assert states == ["recovered"] * 3
    assert task.chain.ledger.free_at
    assert len(task.chain.ledger.free_at) == 3, "the ledger travels with each decision"


# --- agents that don't ----------------------------------------------------------------------------------------------


def test_an_order_that_reached_only_one_node_is_given_again_until_all_have_joined() -> None:
    task = deferred(*IN_PLACE)
    task.cluster.orders_reach = 1

    async def story() -> Conclusion:
        watching = asyncio.ensure_future(task.make_watch().watch())
        while not restarts(task):
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        assert len(restarts(task)) == 1
        task.cluster.orders_reach = 2
        return await watching

    conclusion = task.run(story())
    assert conclusion.outcome.end is End.SUCCEEDED
    assert len(conclusion.incidents) == 1, "the same incident, charged once"
    assert len(restarts(task)) == 2


def test_a_successor_gives_an_order_again_that_its_predecessor_gave_to_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = deferred(*IN_PLACE)
    task.cluster.orders_reach = 1

    async def until_one() -> None:
        watching = asyncio.ensure_future(task.make_watch().watch())
        while not restarts(task):
            await asyncio.sleep(0.1)
        watching.cancel()

    task.run(until_one())
    task.cluster.orders_reach = 2
    assert task.run_try() == "success", "in the next try, whose XComs are empty"
    assert len(task.attempts[0].incidents) == 1
    assert len({digest for _, _, digest in restarts(task)}) == 1


def ends_somehow(task: Task, most: float = 900.0) -> Conclusion:
    async def story() -> Conclusion:
        return await asyncio.wait_for(task.make_watch().watch(), most)

    return task.run(story())


def _refuse(task: Task) -> None:
    task.cluster.stubborn.add("n2")


def _die(task: Task) -> None:
    task.cluster.agents = False


def _be_lost(task: Task) -> None:
    task.cluster.lose("n2")


@pytest.mark.parametrize("what", [_refuse, _die, _be_lost])
@pytest.mark.parametrize("point", ["conclude.decided", "conclude.written"])
def test_agents_that_refuse_or_vanish_never_leave_a_watch_without_an_end(
    what: Callable[[Task], None], point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart in place is decided; in the moment before the order something happens to a node."""
    task, fired = deferred(*IN_PLACE), False

    def happen(reached: str) -> None:
        nonlocal fired
        if reached == point and not fired:
            fired = True
            what(task)

    with at_point(monkeypatch, happen):
        conclusion = ends_somehow(task)
    assert conclusion.outcome.end is End.FAULT
    assert conclusion.incidents[-1].decision.action.ends_attempt
    assert len([one for one in conclusion.incidents if one.decision.charged == "restart"]) == 1


def test_when_the_hold_is_over_before_the_order_comes_the_next_rung_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    task = deferred(*IN_PLACE)
    with at_point(monkeypatch, Killer("conclude.written")), pytest.raises(Died):
        task.watch()
    task.wait(600)
    conclusion = ends_somehow(task)
    assert [incident.decision.action for incident in conclusion.incidents] == [Action.RESUBMIT]
    assert task.told("not possible any more")
    assert task.settle(lambda: task.complete(conclusion.to_record())) == "retry"
    assert task.run_to_the_end() == "success"
    assert task.chain.ledger.restarts == 1


def test_a_frozen_watch_looks_again_before_it_acts() -> None:
    """The loop's clock jumps between the decision and the order: somebody else may have acted meanwhile."""
    task, jumped = deferred(*IN_PLACE), False
    pool = task.backend.pool

    async def slow_pool(what: object) -> object:
        nonlocal jumped
        if not jumped:
            jumped = True
            asyncio.get_running_loop().seconds += 20.0  # type: ignore[attr-defined]
        return await pool(what)  # type: ignore[arg-type]

    task.backend.pool = slow_pool  # type: ignore[method-assign, assignment]
    assert ends_somehow(task).outcome.end is End.SUCCEEDED
    assert task.told("This process was frozen meanwhile; looking again before anything is done.")
    assert len(restarts(task)) == 2


# --- a person --------------------------------------------------------------------------------------------------------


@pytest.mark.story("LIF-01")
def test_a_person_who_ends_the_task_ends_the_job_however_often_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    task = deferred(Run(code=None))
    monkeypatch.setattr(letting_go, "create_backend", lambda name: task.backend)
    assert task.order is not None
    order, desk = task.order, FakeDesk(task, task.xcoms)

    async def story(outage: float) -> None:
        task.cluster.unreachable.add("cancel")
        asyncio.get_running_loop().call_later(outage, task.cluster.unreachable.clear)
        await cancel_for_person(order, desk)

    task.run(story(3600.0))
    assert task.told("Cancel owed")
    task.run(story(25.0))
    assert task.cluster.live() == []
    assert task.told("is stopped.")
