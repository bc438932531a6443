"""The way to the API server is bad: it is killed, it closes watches, it says 409, 429 and 500, or nothing at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from airflow_ft.backends.base import JobState, Order, UnreachableError
from airflow_ft.core.chain import JobRef
from tests.kubernetes.lab import Lab
from tests.systems.kubernetes.api_proxy import ApiProxy, one_in
from tests.systems.kubernetes.cluster import OwnCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.row("S5")]
MANY = 5


async def insisting(lab: Lab, ref: JobRef, *states: JobState) -> None:
    """Observe until a state is reached. Unreachable is no state, and a job that runs is never called gone."""

    async def look() -> bool:
        try:
            seen = await lab.backend.observe(ref)
        except UnreachableError:
            return False
        assert seen.state is not JobState.GONE or JobState.GONE in states
        return seen.state in states

    await lab.eventually(look, f"{ref.name} is {[state.value for state in states]}", 120)


async def submitted(lab: Lab, kind: str, mode: str) -> JobRef:
    """Submit as long as it takes, as a supervisor does: the same submission again."""
    while True:
        try:
            return await lab.submit(kind, mode)
        except UnreachableError:
            await asyncio.sleep(0.5)


@pytest.mark.timeout(300)
@pytest.mark.story("WAT-02")
def test_an_api_server_that_is_killed_and_comes_back_is_survived(lab: Lab, own_nodes: OwnCluster) -> None:
    """While a job is watched, while one is submitted, and while one is cancelled."""

    async def story(lab: Lab) -> None:
        watched, made, ended = lab.of("watched"), lab.of("made"), lab.of("ended")
        ref = await watched.submit("PyTorchJob", "until-told")
        other = await ended.submit("JobSet", "endless")
        await watched.until(ref, JobState.RUNNING)
        await ended.until(other, JobState.RUNNING)
        own_nodes.control_plane.stop_api_server()
        submission = asyncio.create_task(submitted(made, "Job", "ok"))
        with pytest.raises(UnreachableError):
            await ended.backend.cancel(other, 1.0)
        await lab.aside(own_nodes.restart_api_server)
        after = await submission
        await insisting(made, after, JobState.ENDED)
        assert len(made.pods()) == 2
        await insisting(watched, ref, JobState.RUNNING)
        watched.tell()
        await insisting(watched, ref, JobState.ENDED)
        await ended.backend.cancel(other, 1.0)
        assert ended.pods() == []

    lab.play(story)


def test_watches_that_are_closed_again_and_again_lose_nothing(lab: Lab, tmp_path: Path) -> None:
    """They go on where they stopped: no list is asked for again and again."""
    with ApiProxy(lab.kubeconfig, stream_seconds=1.0) as proxy:
        lab.kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")

        async def story(lab: Lab) -> None:
            ref = await submitted(lab, "Job", "until-told")
            await insisting(lab, ref, JobState.RUNNING)
            for _ in range(15):
                await lab.backend.observe(ref)
                await asyncio.sleep(1.0)
            lab.tell()
            await insisting(lab, ref, JobState.ENDED)

        lab.play(story)
        assert proxy.requests["watch pods"] >= 10
        assert proxy.requests["get pods"] <= 5


@pytest.mark.timeout(400)
@pytest.mark.story("SUB-03")
@pytest.mark.story("WAT-02")
def test_errors_on_a_tenth_of_all_calls_lose_and_double_nothing(lab: Lab, tmp_path: Path) -> None:
    """Conflicts, throttling, errors, silence, answers that are lost after the deed: each job runs exactly twice."""
    with ApiProxy(lab.kubeconfig, judge=one_in(10)) as proxy:
        lab.kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")

        async def live(lab: Lab, kind: str) -> None:
            ref = await submitted(lab, kind, "crash-once")
            await insisting(lab, ref, JobState.HELD)
            order = Order(generation=1, digest="d1", note={"why": "test"}, by="test")

            async def ordered() -> bool:
                try:
                    return await lab.backend.restart_in_place(ref, order) == []
                except UnreachableError:
                    return False

            await lab.eventually(ordered, "the order reached every agent", 120)
            await insisting(lab, ref, JobState.ENDED)
            pods = lab.training_pods()
            starts = Counter(lab.kubectl("logs", pod["metadata"]["name"]).count("step 1/3") for pod in pods)
            assert starts == {2: 2}

        async def story(lab: Lab) -> None:
            kinds = ["Job", "PyTorchJob", "JobSet"]
            await asyncio.gather(*(live(lab.of(f"c{n}"), kinds[n % len(kinds)]) for n in range(MANY)))

        lab.play(story)
        assert proxy.faults.total() >= 10, proxy.requests


def test_without_its_operator_a_job_waits_and_runs_when_it_is_back(lab: Lab, own_nodes: OwnCluster) -> None:
    """Accepted by the API server, and nobody acts on it: queued, not failed."""

    async def story(lab: Lab) -> None:
        own_nodes.stop_operator("training-operator")
        # Its webhook is away too: the API server refuses what it can't have checked.
        with pytest.raises(UnreachableError):
            await lab.submit("PyTorchJob", "ok")
        await lab.aside(own_nodes.mend)
        ref = await lab.submit("PyTorchJob", "ok")
        assert (await lab.until(ref, JobState.ENDED)).code == 0

    lab.play(story)
