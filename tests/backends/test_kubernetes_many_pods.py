"""Many pods, and pods that vanish with their logs: on an API server in memory that counts what it is asked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from airflow_ft.backends.base import JobState, Submission
from airflow_ft.backends.kubernetes import cluster
from airflow_ft.backends.kubernetes.backend import KubernetesBackend
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.logs import KEPT_LINES
from airflow_ft.core.chain import JobRef
from airflow_ft.diagnosis.gather import gather
from tests.backends.conformance import eventually
from tests.backends.fake_kubernetes import FakeApi
from tests.backends.kubernetes_manifests import manifest


def job(pods: int) -> KubernetesJob:
    made = manifest("Job")
    made["spec"] |= {"parallelism": pods, "completions": pods}
    return KubernetesJob(manifest=made, conn_id="fake", namespace="ns")


def submission(attempt: int) -> Submission:
    return Submission(name=f"c-a{attempt}", chain_id="c", attempt=attempt, hold=60.0, grace=3.0)


async def begun(api: FakeApi) -> tuple[KubernetesBackend, JobRef]:
    """A job that runs, is watched, and of which each pod prints."""
    cluster.of("fake").api = api  # type: ignore[assignment]
    backend = KubernetesBackend()
    ref = await backend.submit(job(api.count), submission(0))
    for _ in range(2):  # the second look begins to watch
        seen = await backend.observe(ref)
    assert seen.state is JobState.RUNNING
    assert len(seen.nodes) == api.count
    return backend, ref


@pytest.mark.story("UIO-05")
def test_of_pods_that_vanish_with_their_logs_the_last_lines_of_every_rank_are_known() -> None:
    """An operator deletes the pods a second after one failed: what was printed while they ran is not lost."""

    async def story() -> None:
        api = FakeApi(pods=3)
        backend, ref = await begun(api)
        cursors: dict[str, int] = {}
        printed = [f"step {n} of rank" for n in range(KEPT_LINES + 500)]
        for pod in api.pods():
            name = pod["metadata"]["name"]
            await api.print(name, *(f"{text} {name[-1]}" for text in printed), f"KeyError: 'x{name[-1]}'")

        async def read() -> bool:
            nonlocal cursors
            _, cursors = await backend.read_logs(ref, cursors, 1_000_000)
            streams = cluster.of("fake").view(ref).streams.values()
            return all(len(stream.kept) == KEPT_LINES for stream in streams)

        await eventually(read, "the followed logs have come", 20.0)
        for pod in api.pods():
            await api.remove(pod)

        async def vanished() -> bool:
            await backend.observe(ref)
            return len(cluster.of("fake").view(ref).vanished) == 3

        await eventually(vanished, "the pods are seen to be gone", 20.0)
        tails = {tail.source: tail.data.decode().splitlines() for tail in await backend.log_tails(ref, 1_000_000)}
        for rank in range(3):
            lines = tails[f"n{rank}/c-a0-{rank}"]
            assert len(lines) == KEPT_LINES
            assert lines[-1] == f"KeyError: 'x{rank}'"
            assert lines[0] == f"step {len(printed) - KEPT_LINES + 1} of rank {rank}"
        gathered = await gather(backend, ref)
        assert sum(b"KeyError: 'x" in log.data for log in gathered.logs) == 3, "as the diagnosis gets them"
        await backend.close()

    asyncio.run(story())


async def cost_of_a_fault(pods: int) -> tuple[int, float]:
    """One rank of many fails; the calls and seconds until the next attempt is submitted."""
    api = FakeApi(pods, delay=0.05)
    backend, ref = await begun(api)
    await backend.read_logs(ref, {}, 1_000_000)
    for pod in api.pods():
        name = pod["metadata"]["name"]
        await api.print(name, *(f"step {n}" for n in range(20)), 'ft-agent abc {"event":"held"}')
        api.held.add(name)
    calls, began = api.calls, time.monotonic()

    async def held() -> Any:
        seen = await backend.observe(ref)
        return seen if seen.state is JobState.HELD and all(node.code == 1 for node in seen.nodes) else None

    await eventually(held, "all have failed", 50.0)
    gathered = await gather(backend, ref)
    assert len([log for log in gathered.logs if log.data]) >= pods
    await backend.cancel(ref, 3.0)
    again = await backend.submit(job(pods), submission(1))
    assert again.name == "c-a1"
    await backend.close()
    return api.calls - calls, time.monotonic() - began


@pytest.mark.story("UIO-06")
def test_512_pods_are_seen_gathered_and_submitted_anew_within_a_minute_and_1200_calls() -> None:
    """A minute's worth of 20 calls a second: one look at each agent and one at each log, and little else."""
    small, _ = asyncio.run(cost_of_a_fault(8))
    calls, seconds = asyncio.run(cost_of_a_fault(512))
    assert seconds < 60
    assert calls <= 60 * 20
    assert calls - small <= 2 * (512 - 8) + 24, "what is asked of a pod is two questions, whatever their number"
