"""Objects on Kubernetes that somebody else has made, on an API server in memory (a real one: ``tests/kubernetes``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_ft.backends.base import ForeignJobError, JobState, Submission, SubmissionRefusedError
from airflow_ft.backends.foreign.backend import ForeignBackend
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.backends.kubernetes import cluster
from airflow_ft.backends.kubernetes.kinds import KINDS
from airflow_ft.backends.kubernetes.pods import read_pod
from airflow_ft.backends.kubernetes.strangers import dressed, marks
from tests.backends.conformance import eventually
from tests.backends.fake_kubernetes import FakeApi
from tests.backends.kubernetes_manifests import manifest

BACKEND = ForeignBackend()
JOBS = "/apis/batch/v1/namespaces/ns/jobs"
SUBMISSION = Submission(name="c-a0", chain_id="c", attempt=0)
Story = Callable[[FakeApi], Awaitable[None]]


def play(story: Story, api: FakeApi) -> None:
    """Run a story in an event loop of its own, with this API server."""

    async def with_end() -> None:
        cluster.of("fake").api = api  # type: ignore[assignment]
        try:
            await story(api)
        finally:
            await cluster.close_all()

    asyncio.run(with_end())


def theirs(**more: Any) -> ForeignJob:
    return ForeignJob(**{"kind": "Job", "name": "llama", "namespace": "ns", "conn_id": "fake", **more})


def api_with_a_job() -> FakeApi:
    """A Job that somebody has made with kubectl: its pods have the controller's labels, and none of ours."""
    api = FakeApi(pods=2)
    job = manifest("Job")
    job["metadata"]["name"] = "llama"
    job["spec"] |= {"parallelism": 2, "completions": 2}
    job["spec"]["template"]["metadata"] = {"labels": {"batch.kubernetes.io/job-name": "llama"}}
    asyncio.run(api.create(JOBS, job))
    other = {"metadata": {"name": "other", "uid": "o", "labels": {"batch.kubernetes.io/job-name": "gpt"}}, "spec": {}}
    api.objects["/api/v1/namespaces/ns/pods/other"] = other
    return api


def end(api: FakeApi, *codes: int) -> None:
    """The pods end with these codes."""
    for pod, code in zip(api.pods(), codes, strict=False):
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": "2026-01-01T01:00:00Z"}
        pod["status"] = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}


def test_a_job_that_somebody_has_made_is_seen_and_read() -> None:
    async def story(api: FakeApi) -> None:
        ref = await BACKEND.submit(theirs(), SUBMISSION)
        assert (ref.name, ref.foreign, ref.own) == ("c-a0", "Job ns/llama", False)
        for _ in range(2):  # listed, then watched
            seen = await BACKEND.observe(ref)
            assert seen.state is JobState.RUNNING
            assert [(node.node, node.agent) for node in seen.nodes] == [("n0", False), ("n1", False)]
        await api.print("llama-0", "step 7 loss 2.5")
        cursors: dict[str, int] = {}

        async def read() -> bool:
            nonlocal cursors
            chunks, cursors = await BACKEND.read_logs(ref, cursors, 100_000)
            return any(chunk.data == b"step 7 loss 2.5\n" and chunk.node == "n0" for chunk in chunks)

        await eventually(read, "its log is read", 20.0)
        again = await BACKEND.find("c-a0", "c", theirs())
        assert again is not None and again.uid == ref.uid

    play(story, api_with_a_job())


def test_how_it_ended_is_its_own_word_since_failed_pods_may_be_made_anew() -> None:
    api = api_with_a_job()
    end(api, 1, 0)

    async def story(api: FakeApi) -> None:
        ref = await BACKEND.submit(theirs(), SUBMISSION)
        seen = await BACKEND.observe(ref)
        assert [node.state for node in seen.nodes] == [JobState.RUNNING, JobState.ENDED]
        assert seen.state is JobState.RUNNING, "the controller may still make another pod"
        failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "that was the last"}
        api.objects[f"{JOBS}/llama"]["status"] = {"conditions": [failed]}
        seen = await BACKEND.observe(ref)
        assert (seen.state, seen.code, seen.cancelled) == (JobState.ENDED, 1, False)
        assert [(fact.node, fact.code) for fact in await BACKEND.evidence(ref)] == [("n0", 1)]

    play(story, api)


def test_that_its_owner_has_deleted_it_is_nobodys_cancel() -> None:
    """Whoever made it may clean up: whether training had finished by then is what its log says."""

    async def story(api: FakeApi) -> None:
        ref = await BACKEND.submit(theirs(), SUBMISSION)
        await api.delete(f"{JOBS}/llama")
        seen = await BACKEND.observe(ref)
        assert (seen.state, seen.cancelled) == (JobState.GONE, False)

    play(story, api_with_a_job())


@pytest.mark.story("SUB-04")
def test_nothing_of_it_is_changed() -> None:
    async def story(api: FakeApi) -> None:
        before = repr(api.objects)
        ref = await BACKEND.submit(theirs(), SUBMISSION)
        await BACKEND.observe(ref)
        await BACKEND.log_tails(ref, 1000)
        await BACKEND.fence("c-a0", "c", theirs())
        with pytest.raises(ForeignJobError, match="somebody else has submitted Job ns/llama"):
            await BACKEND.cancel(ref, 0.0)
        assert repr(api.objects) == before

    play(story, api_with_a_job())


def test_one_that_was_taken_over_is_stopped_with_its_pods() -> None:
    async def story(api: FakeApi) -> None:
        ref = await BACKEND.submit(theirs(own=True), SUBMISSION)
        await BACKEND.cancel(ref, 0.0)
        assert [path for path in api.objects if "llama" in path] == []
        with pytest.raises(SubmissionRefusedError, match="there is no Job of this name in ns"):
            await BACKEND.submit(theirs(own=True), SUBMISSION)
        with pytest.raises(SubmissionRefusedError, match="again: nothing is given"):
            await BACKEND.submit(theirs(own=True), SUBMISSION.but(name="c-a1", attempt=1))

    play(story, api_with_a_job())


MARKS = {
    ("kubeflow.org/v1", "PyTorchJob"): [("training.kubeflow.org/job-name", "x")],
    ("kubeflow.org/v2beta1", "MPIJob"): [("training.kubeflow.org/job-name", "x")],
    ("batch/v1", "Job"): [("batch.kubernetes.io/job-name", "x")],
    ("batch.volcano.sh/v1alpha1", "Job"): [("volcano.sh/job-name", "x")],
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): [("jobset.sigs.k8s.io/jobset-name", "x")],
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): [("jobset.sigs.k8s.io/jobset-name", "x")],
    ("ray.io/v1", "RayJob"): [("ray.io/cluster", "x-abc"), ("batch.kubernetes.io/job-name", "x")],
}


@pytest.mark.parametrize("known", KINDS, ids=" ".join)
def test_every_kind_has_its_mark(known: tuple[str, str]) -> None:
    job = {"status": {"rayClusterName": "x-abc"}}
    assert marks(KINDS[known], "x", job) == MARKS[known]


@pytest.mark.parametrize(
    ("kind", "labels", "trains", "prints"),
    [
        (("kubeflow.org/v1", "PyTorchJob"), {}, True, True),
        (("kubeflow.org/v2beta1", "MPIJob"), {"training.kubeflow.org/job-role": "launcher"}, True, True),
        (("kubeflow.org/v2beta1", "MPIJob"), {"training.kubeflow.org/job-role": "worker"}, False, False),
        (("ray.io/v1", "RayJob"), {"ray.io/node-type": "head"}, True, False),
        (("ray.io/v1", "RayJob"), {"ray.io/node-type": "worker"}, False, False),
        (("ray.io/v1", "RayJob"), {"batch.kubernetes.io/job-name": "x"}, False, True),
    ],
)
def test_what_a_pod_is_for_is_read_off_its_labels(kind: Any, labels: Any, trains: bool, prints: bool) -> None:
    pod = {"metadata": {"name": "p", "uid": "u", "labels": labels}, "spec": {"containers": [{"name": "main"}]}}
    facts = read_pod(dressed(pod, KINDS[kind]))
    assert (facts.trains, facts.prints, facts.agent, facts.container) == (trains, prints, False, "main")
