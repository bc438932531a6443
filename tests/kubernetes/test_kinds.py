"""Every kind of training job lives through the same stories, with its real controller on real nodes."""

from __future__ import annotations

import pytest

from airflow_ft.backends.base import ForeignJobError, JobState, Order
from airflow_ft.core.faults import FaultClass
from tests.kubernetes.lab import Lab
from tests.kubernetes.trainings import ONE_POD_TRAINS

pytestmark = [pytest.mark.kubernetes, pytest.mark.row("S4")]


def test_a_job_that_ends_well_is_ended_with_0(lab: Lab, kind: str) -> None:
    """And what its ranks printed can be read."""

    async def story(lab: Lab) -> None:
        ref = await lab.submit(kind, "ok")
        seen = await lab.until(ref, JobState.ENDED)
        assert (seen.code, seen.cancelled) == (0, False)
        assert (await lab.output(ref)).count("step 3/3") == (1 if kind in ONE_POD_TRAINS else 2)

    lab.play(story)


@pytest.mark.row("P4")
def test_a_crash_is_restarted_in_place(lab: Lab, kind: str) -> None:
    """The same pods on the same nodes, no container restarted: only the command ran again, on every rank."""

    async def story(lab: Lab) -> None:
        ref = await lab.submit(kind, "crash-once")
        seen = await lab.until(ref, JobState.HELD)
        assert [node.code for node in seen.nodes if node.state is JobState.HELD] == [3]
        assert 3 in [fact.code for fact in await lab.backend.evidence(ref)]
        before = lab.uids()
        order = Order(generation=1, digest="d1", note={"why": "test"}, by="test")
        assert await lab.backend.restart_in_place(ref, order) == []
        seen = await lab.until(ref, JobState.ENDED)
        assert (seen.code, seen.generation) == (0, 1)
        assert lab.uids() == before
        counts = [one["restartCount"] for pod in lab.pods() for one in pod["status"]["containerStatuses"]]
        assert set(counts) == {0}

    lab.play(story)


@pytest.mark.row("S5")
def test_a_crash_is_resubmitted_after_its_pods_are_gone(lab: Lab, kind: str) -> None:
    """Released, it ends with its own code; the next attempt starts when nothing of it is left."""

    async def story(lab: Lab) -> None:
        first = await lab.submit(kind, "crash")
        await lab.until(first, JobState.HELD)
        assert await lab.backend.release(first, Order(generation=1, digest="d1")) == []
        assert (await lab.until(first, JobState.ENDED)).code == 3
        assert "RuntimeError: the test wants it" in await lab.output(first)
        await lab.backend.cancel(first, 1.0)
        assert lab.pods(0) == []
        second = await lab.submit(kind, "ok", 1)
        assert (await lab.until(second, JobState.ENDED)).code == 0

    lab.play(story)


@pytest.mark.story("CLS-09")
def test_an_image_that_is_not_there_is_an_error_of_the_environment(lab: Lab, kind: str) -> None:
    """It ends the attempt: nothing runs, and nothing is tried for ever."""

    async def story(lab: Lab) -> None:
        options = {"start_error_seconds": 1.0}
        ref = await lab.submit(kind, "ok", pod={"image": "docker.io/airflow-ft/missing:1"}, options=options)
        concluded = await lab.watch(ref)
        assert [one.diagnosis.fault_class for one in concluded.incidents] == [FaultClass.ENV_ERROR], concluded.incidents

    lab.play(story)


def test_a_container_out_of_memory_is_oom_host(lab: Lab, kind: str) -> None:
    """The kernel's word, whoever hears it: the agent, or the kubelet when the agent died with its command."""

    async def story(lab: Lab) -> None:
        concluded = await lab.watch(await lab.submit(kind, "out-of-memory"))
        assert [one.diagnosis.fault_class for one in concluded.incidents] == [FaultClass.OOM_HOST], concluded.incidents

    lab.play(story)


@pytest.mark.story("SUB-01")
@pytest.mark.story("SUB-04")
def test_a_submission_that_comes_again_adopts_its_job(lab: Lab, kind: str) -> None:
    """Creation itself is the test of absence. A foreign one under the name is neither adopted nor touched."""

    async def story(lab: Lab) -> None:
        refs = [await lab.submit(kind, "endless") for _ in range(3)]
        assert refs[0] == refs[1] == refs[2]
        job = lab.job(kind, "endless")
        assert await lab.backend.find(refs[0].name, lab.chain, job) == refs[0]
        with pytest.raises(ForeignJobError):
            await lab.backend.submit(job, lab.submission(chain_id="another"))
        await lab.until(refs[0], JobState.RUNNING)
        assert len(lab.training_pods()) == (1 if kind in ONE_POD_TRAINS else 2)
        assert (await lab.backend.observe(refs[0].but(uid="0"))).state is JobState.GONE

    lab.play(story)


@pytest.mark.story("LIF-05")
def test_a_cancel_returns_when_no_pod_is_left(lab: Lab, kind: str) -> None:
    """Also of what ignores TERM, and no controller makes any again."""

    async def story(lab: Lab) -> None:
        ref = await lab.submit(kind, "stubborn")
        await lab.until(ref, JobState.RUNNING)
        await lab.backend.cancel(ref, 1.0)
        assert lab.pods() == []
        seen = await lab.backend.observe(ref)
        assert seen.state in (JobState.GONE, JobState.ENDED)
        await lab.backend.fence(ref.name, lab.chain, lab.job(kind, "stubborn"))
        assert lab.pods() == []

    lab.play(story)


def test_a_job_that_a_person_deletes_is_reported_as_that(lab: Lab, kind: str) -> None:
    """It is gone, not failed: nothing here looks like a fault of the training."""

    async def story(lab: Lab) -> None:
        ref = await lab.submit(kind, "endless")
        await lab.until(ref, JobState.RUNNING)
        plural = lab.job(kind, "endless").kind.resource
        await lab.aside(lab.kubectl, "delete", plural, ref.name, "--wait=false", "--cascade=foreground")
        seen = await lab.until_seen(ref, lambda seen: seen.cancelled, "a person's deletion is seen")
        assert seen.state is not JobState.RUNNING or seen.cancelled
        await lab.until(ref, JobState.GONE, JobState.ENDED)

    lab.play(story)


@pytest.mark.row("M8")
def test_stacks_of_a_hang_are_dumped_and_it_is_restarted_in_place(lab: Lab, kind: str) -> None:
    """From an unmodified script, on every rank."""

    async def story(lab: Lab) -> None:
        ref = await lab.submit(kind, "hang-once")
        await lab.until(ref, JobState.RUNNING)

        async def stuck() -> bool:
            return (await lab.output(ref)).count("step 3/3") == len(lab.training_pods())

        await lab.eventually(stuck, "all ranks made their steps")
        groups = [group for group in await lab.backend.dump_stacks(ref) if "stuck_here" in group.stack]
        assert groups
        assert len({group.node for group in groups}) == len(lab.training_pods())
        assert await lab.backend.restart_in_place(ref, Order(generation=1, digest="d1")) == []
        assert (await lab.until(ref, JobState.ENDED)).code == 0

    lab.play(story)


@pytest.mark.story("SUB-09")
def test_an_excluded_node_is_not_used_and_waiting_for_others_is_said(lab: Lab, kind: str) -> None:
    """With all nodes excluded the job waits: that is no fault, and its reason is told."""

    async def story(lab: Lab) -> None:
        nodes = (await lab.backend.pool(lab.job(kind, "ok"))).nodes
        assert set(nodes) == {item["metadata"]["name"] for item in lab.cluster.get("nodes")["items"]}
        first = await lab.submit(kind, "ok", excluded_nodes=nodes[:1])
        assert (await lab.until(first, JobState.ENDED)).code == 0
        assert nodes[0] not in {pod["spec"]["nodeName"] for pod in lab.pods()}
        second = await lab.submit(kind, "ok", 1, excluded_nodes=nodes)
        seen = await lab.until_seen(second, lambda seen: bool(seen.reason), "it says why it waits")
        assert seen.state is JobState.QUEUED
        assert "nodes are available" in seen.reason

    lab.play(story)
