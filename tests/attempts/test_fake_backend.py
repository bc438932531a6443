"""The fake backend keeps the protocol's promises; else the tests that use it prove nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.backends.base import (
    PERSON,
    Backend,
    CancelIncompleteError,
    CancelledJobError,
    ForeignJobError,
    JobState,
    Order,
    Submission,
    SubmissionRefusedError,
    UnreachableError,
)
from tests.attempts import virtual_time
from tests.attempts.fake_backend import FakeBackend, FakeJob
from tests.attempts.fake_cluster import Cluster, Run

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)


def now() -> datetime:
    try:
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
    except RuntimeError:
        return EPOCH


def made(*scripts: list[Run], nodes: int = 4) -> FakeBackend:
    return FakeBackend(Cluster(now, nodes, scripts))


def run(story: Coroutine[Any, Any, None]) -> None:
    virtual_time.run_on(virtual_time.VirtualLoop(), story)


def submission(number: int = 0, **changes: Any) -> Submission:
    return Submission(name=f"c-a{number}", chain_id="c", attempt=number, **changes)


def order(generation: int = 1, digest: str = "d") -> Order:
    return Order(generation=generation, digest=digest, note={"decision": digest})


def test_it_is_a_backend() -> None:
    assert isinstance(made(), Backend)


def test_submitting_twice_creates_once_and_gives_the_same_job() -> None:
    async def story() -> None:
        backend = made()
        first = await backend.submit(FakeJob(), submission())
        assert await backend.submit(FakeJob(), submission()) == first
        assert backend.cluster.created == ["c-a0"]
        assert not backend.cluster.violations

    run(story())


def test_a_second_live_job_of_a_chain_is_a_violation() -> None:
    async def story() -> None:
        backend = made()
        await backend.submit(FakeJob(), submission(0))
        await backend.submit(FakeJob(), submission(1))
        assert backend.cluster.violations == ["c-a1 was created while ['c-a0'] lived"]

    run(story())


def test_a_run_prints_its_steps_in_its_own_time_and_ends() -> None:
    async def story() -> None:
        backend = made([Run(last=10, saves=5, code=0)])
        ref = await backend.submit(FakeJob(), submission())
        await asyncio.sleep(4.5)
        assert (await backend.observe(ref)).state is JobState.RUNNING
        (chunk,), cursors = await backend.read_logs(ref, {}, 10_000)
        assert chunk.data.decode().splitlines()[1:] == ["step 1 loss=2.5", "step 2 loss=2.5"]
        await asyncio.sleep(10)
        (rest,), _ = await backend.read_logs(ref, cursors, 10_000)
        assert rest.data.startswith(b"step 3 ")
        assert b"saved checkpoint step 10 (/ckpt/10.pt)\n" in rest.data
        seen = await backend.observe(ref)
        assert (seen.state, seen.code) == (JobState.ENDED, 0)

    run(story())


def test_a_failed_run_is_held_until_an_order_or_the_end_of_the_hold() -> None:
    async def story() -> None:
        backend = made([Run(code=1), Run(code=1)])
        ref = await backend.submit(FakeJob(nodes=2), submission(hold=60))
        await asyncio.sleep(30)
        assert (await backend.observe(ref)).state is JobState.HELD
        assert await backend.restart_in_place(ref, order(1)) == []
        assert await backend.restart_in_place(ref, order(1)) == [], "as often as one likes"
        assert await backend.restart_in_place(ref, order(1, "other")) == ["n1", "n2"]
        seen = await backend.observe(ref)
        assert (seen.state, seen.generation, seen.nodes[0].note) == (JobState.RUNNING, 1, {"decision": "d"})
        await asyncio.sleep(30)
        assert (await backend.observe(ref)).state is JobState.HELD
        await asyncio.sleep(60)
        seen = await backend.observe(ref)
        assert (seen.state, seen.code) == (JobState.ENDED, 1)
        assert await backend.restart_in_place(ref, order(2)) == ["n1", "n2"], "nobody is there any more"

    run(story())


def test_a_release_lets_go_and_a_restart_after_it_is_refused() -> None:
    async def story() -> None:
        backend = made([Run(code=1)])
        ref = await backend.submit(FakeJob(), submission())
        await asyncio.sleep(30)
        assert await backend.release(ref, order(1)) == []
        assert (await backend.observe(ref)).state is JobState.ENDED
        assert await backend.restart_in_place(ref, order(1, "late")) == ["n1"]

    run(story())


def test_an_order_can_reach_only_some_of_the_nodes() -> None:
    async def story() -> None:
        backend = made([Run(code=1), Run()])
        ref = await backend.submit(FakeJob(nodes=2), submission())
        await asyncio.sleep(30)
        backend.cluster.orders_reach = 1
        with pytest.raises(UnreachableError):
            await backend.restart_in_place(ref, order(1))
        seen = await backend.observe(ref)
        assert [(node.state, node.generation) for node in seen.nodes] == [(JobState.STARTING, 1), (JobState.HELD, 0)]
        assert seen.state is JobState.HELD
        backend.cluster.orders_reach = 2
        assert await backend.restart_in_place(ref, order(1)) == []
        assert (await backend.observe(ref)).state is JobState.RUNNING

    run(story())


def test_cancel_and_fence_close_the_name_for_ever() -> None:
    async def story() -> None:
        backend = made([Run(code=None)])
        ref = await backend.submit(FakeJob(), submission(0))
        await backend.cancel(ref, 0)
        seen = await backend.observe(ref)
        assert (seen.state, seen.cancelled, seen.cancelled_by) == (JobState.ENDED, True, "airflow_ft")
        await backend.fence("c-a1", "c")
        for number in (0, 1):
            with pytest.raises(CancelledJobError):
                await backend.submit(FakeJob(), submission(number))

    run(story())


def test_a_cancel_after_the_end_changes_nothing_of_the_end() -> None:
    async def story() -> None:
        backend = made([Run(code=0)])
        ref = await backend.submit(FakeJob(), submission())
        await asyncio.sleep(60)
        await backend.cancel(ref, 0)
        seen = await backend.observe(ref)
        assert (seen.state, seen.code, seen.cancelled) == (JobState.ENDED, 0, False)

    run(story())


def test_what_goes_wrong_on_demand() -> None:
    async def story() -> None:
        backend = made([Run(code=None)])
        cluster = backend.cluster
        cluster.refusal = "nodes: 9 is not allowed."
        with pytest.raises(SubmissionRefusedError):
            backend.check(FakeJob())
        cluster.answers_lost = {"submit"}
        with pytest.raises(UnreachableError):
            await backend.submit(FakeJob(), submission())
        assert cluster.created == ["c-a0"], "it has worked all the same"
        cluster.answers_lost, cluster.lag_seconds = set(), 10.0
        assert await backend.find("c-a0", "c") is None
        ref = await backend.submit(FakeJob(), submission())
        with cluster.outage(), pytest.raises(UnreachableError):
            await backend.observe(ref)
        cluster.silent = {"observe"}
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(backend.observe(ref), 20)
        cluster.silent, cluster.cancel_fails = set(), True
        with pytest.raises(CancelIncompleteError):
            await backend.cancel(ref, 0)
        cluster.foreign.add("c-a7")
        with pytest.raises(ForeignJobError):
            await backend.submit(FakeJob(), submission(7))

    run(story())


def test_a_lost_node_stops_its_peers_and_is_the_platforms_word() -> None:
    async def story() -> None:
        backend = made([Run(last=1000)])
        ref = await backend.submit(FakeJob(nodes=2), submission())
        await asyncio.sleep(10)
        backend.cluster.lose("n2")
        before = backend.cluster.text(backend.cluster.jobs["c-a0"])
        await asyncio.sleep(100)
        assert backend.cluster.text(backend.cluster.jobs["c-a0"]) == before
        seen = await backend.observe(ref)
        assert [(node.node, node.lost) for node in seen.nodes] == [("n1", False), ("n2", True)]
        assert (await backend.pool(ref)).nodes == ("n1", "n3", "n4")
        (evidence,) = await backend.evidence(ref)
        assert evidence.node == "n2"

    run(story())


def test_jobs_wait_for_nodes_avoid_excluded_ones_and_can_be_forgotten() -> None:
    async def story() -> None:
        backend = made([Run()], nodes=2)
        ref = await backend.submit(FakeJob(nodes=2), submission(excluded_nodes=("n1",)))
        assert (await backend.observe(ref)).state is JobState.QUEUED
        backend.cluster.nodes.append("n3")
        assert [node.node for node in (await backend.observe(ref)).nodes] == ["n2", "n3"]
        backend.cluster.person_cancels("c-a0")
        assert (await backend.observe(ref)).cancelled_by == PERSON
        backend.cluster.jobs["c-a0"].forgotten = True
        assert (await backend.observe(ref)).state is JobState.GONE

    run(story())


def test_the_clock_of_simulated_time_stands_while_a_thread_works() -> None:
    async def story() -> None:
        import time

        loop = asyncio.get_running_loop()
        await asyncio.sleep(3600)
        assert loop.time() == 3600
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.05), 0.001)
        assert loop.time() == 3600

    run(story())
