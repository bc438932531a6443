"""Nodes that die, lose their network or are drained, under a job of each kind at once: half a minute each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from airflow_ft.backends.base import CancelIncompleteError, JobState
from airflow_ft.core.chain import End, JobRef
from airflow_ft.core.faults import FaultClass, Trust
from tests.kubernetes.lab import Lab
from tests.kubernetes.trainings import KINDS, ONE_POD_TRAINS
from tests.systems.kubernetes.cluster import OwnCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]
VICTIM, SPARED, THIRD = "n3", "n2", "n1"
NOTICED_SECONDS = 90.0  # 12 s until a silent node is NotReady, here


async def on_two_nodes(lab: Lab, kind: str, mode: str = "endless") -> JobRef:
    """A job with a training pod on the node that is going to suffer."""
    excluded = [THIRD, SPARED] if kind in ONE_POD_TRAINS else [THIRD]
    ref = await lab.submit(kind, mode, excluded_nodes=excluded)
    await lab.until(ref, JobState.RUNNING)
    assert VICTIM in {pod["spec"]["nodeName"] for pod in lab.training_pods(0)}
    return ref


async def for_all(lab: Lab, part: Callable[[Lab, str], Awaitable[JobRef]]) -> dict[str, JobRef]:
    """Do something for every kind at once, each with a chain of its own."""
    refs = await asyncio.gather(*(part(lab.of(kind), kind) for kind in KINDS))
    return dict(zip(KINDS, refs, strict=True))


async def until_lost(lab: Lab, ref: JobRef) -> None:
    """Until the platform says that the node is lost."""
    seen = await lab.until_seen(ref, lambda seen: any(n.lost for n in seen.nodes), "a lost node", NOTICED_SECONDS)
    assert {node.node for node in seen.nodes if node.lost} == {VICTIM}
    facts = [fact for fact in await lab.backend.evidence(ref) if fact.fault_class is FaultClass.HW_NODE]
    assert {(fact.node, fact.trust) for fact in facts} == {(VICTIM, Trust.PLATFORM)}


@pytest.mark.row("S9")
@pytest.mark.story("LIF-08")
@pytest.mark.story("WAT-14")
def test_a_node_that_dies_is_named_and_the_next_attempt_runs_elsewhere(lab: Lab, own_nodes: OwnCluster) -> None:
    """Its pods hang in Terminating for ever: the attempt is over when somebody says that the node is really down."""

    async def story(lab: Lab) -> None:
        async def start(lab: Lab, kind: str) -> JobRef:
            return await on_two_nodes(lab, kind)

        async def recover(lab: Lab, kind: str) -> JobRef:
            await lab.backend.cancel(refs[kind], 1.0)
            assert lab.pods(0) == []
            after = await lab.submit(kind, "ok", 1, excluded_nodes=[VICTIM])
            assert (await lab.until(after, JobState.ENDED)).code == 0
            return after

        refs = await for_all(lab, start)
        await lab.aside(own_nodes.kill_node, VICTIM)
        for kind, ref in refs.items():
            await until_lost(lab.of(kind), ref)
        assert VICTIM not in (await lab.backend.pool(refs["Job"])).nodes
        with pytest.raises(CancelIncompleteError, match=VICTIM):
            await lab.of("Job").backend.cancel(refs["Job"], 1.0)
        taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        await lab.aside(own_nodes.kubectl, "taint", "node", VICTIM, taint)
        await for_all(lab, recover)
        await lab.aside(own_nodes.kubectl, "taint", "node", VICTIM, taint + "-")

    lab.play(story)


@pytest.mark.row("S9")
@pytest.mark.story("WAT-14")
def test_a_node_that_is_cut_off_trains_on_so_its_cancel_is_owed(lab: Lab, own_nodes: OwnCluster) -> None:
    """Nothing may start before it ended; with the cable back the cancel is carried out."""

    async def story(lab: Lab) -> None:
        async def start(lab: Lab, kind: str) -> JobRef:
            return await on_two_nodes(lab, kind)

        async def owe(lab: Lab, kind: str) -> JobRef:
            await until_lost(lab, refs[kind])
            with pytest.raises(CancelIncompleteError, match=VICTIM):
                await lab.backend.cancel(refs[kind], 1.0)
            assert lab.processes()
            return refs[kind]

        async def pay(lab: Lab, kind: str) -> JobRef:
            await lab.backend.cancel(refs[kind], 1.0)
            assert lab.pods() == []
            assert lab.processes() == []
            return refs[kind]

        refs = await for_all(lab, start)
        await lab.aside(own_nodes.cut_node, VICTIM)
        await for_all(lab, owe)
        await lab.aside(own_nodes.mend_node, VICTIM)
        await for_all(lab, pay)

    lab.play(story)


@pytest.mark.row("S9")
@pytest.mark.story("CLS-01")
def test_a_drain_is_nobodys_fault(lab: Lab, own_nodes: OwnCluster) -> None:
    """The eviction is seen on the pods while they last, and told as a disruption, whatever code they ended with."""

    async def story(lab: Lab) -> None:
        async def start(lab: Lab, kind: str) -> JobRef:
            return await on_two_nodes(lab, kind)

        async def free(lab: Lab, kind: str) -> JobRef:
            concluded = await lab.watch(refs[kind])
            assert concluded.outcome.end is End.DISRUPTED, concluded.outcome
            return refs[kind]

        refs = await for_all(lab, start)
        watched = asyncio.create_task(for_all(lab, free))
        await asyncio.sleep(5.0)  # the watches are open
        await lab.aside(own_nodes.drain_node, VICTIM)
        await watched

    lab.play(story)
