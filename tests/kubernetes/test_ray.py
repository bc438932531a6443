"""A RayJob with the real KubeRay and a real Ray: restarted in place as a whole, resubmitted, removed. A minute each."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from airflow_ft.backends.base import JobState, Order
from tests.kubernetes.lab import Lab, hosts
from tests.kubernetes.trainings import command
from tests.systems.kubernetes import ray_environment
from tests.systems.kubernetes.cluster import OwnCluster
from tests.systems.kubernetes.images import PYTHON_IMAGE

pytestmark = [pytest.mark.kubernetes, pytest.mark.row("S4"), pytest.mark.timeout(600)]
START_SECONDS = 240.0  # a head, a worker, a submitter; 50 s on a quiet machine


@pytest.fixture
def kuberay(own_nodes: OwnCluster) -> None:
    """KubeRay, in a cluster of our own."""
    if not ray_environment.built():
        pytest.skip("no Ray for the pods: python -m tests.systems.kubernetes.ray_environment makes it")
    assert own_nodes.operators is not None
    if not own_nodes.get("crd", "rayjobs.ray.io"):
        own_nodes.operators.add("kuberay")


def rayjob(mode: str) -> dict[str, Any]:
    """The tests' program as the entrypoint of a cluster with a head and a worker."""
    folder = ray_environment.folder()
    shown = hosts(folder)
    path = {"name": "PATH", "value": f"{folder}/bin:/usr/bin:/bin"}
    quiet = {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}
    common = {"image": PYTHON_IMAGE, "env": [path, quiet], "volumeMounts": [shown["mount"]]}
    room = {"resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "3Gi"}}}

    def pod(name: str, **more: Any) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": name, **common, **more}], "volumes": [shown["volume"]]}}

    submitter = pod("submit")
    submitter["spec"]["restartPolicy"] = "Never"
    ray = {"num-cpus": "1"}
    workers = {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": ray}
    cluster = {
        "rayVersion": ray_environment.RAY,
        "headGroupSpec": {"rayStartParams": {**ray, "dashboard-host": "0.0.0.0"}, "template": pod("head", **room)},
        "workerGroupSpecs": [{**workers, "template": pod("worker", **room)}],
    }
    spec = {"entrypoint": shlex.join(command(mode)), "submitterPodTemplate": submitter, "rayClusterSpec": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {}, "spec": spec}


@pytest.mark.row("P4")
@pytest.mark.usefixtures("kuberay")
def test_a_crash_in_a_ray_job_is_restarted_in_place_and_its_cluster_stays(lab: Lab) -> None:
    """The entrypoint runs again in the same head; Ray's own view is a job that runs. Then nothing of it is left."""

    async def story(lab: Lab) -> None:
        job = lab.job("Job", "", options={"manifest": rayjob("crash-once")})
        ref = await lab.backend.submit(job, lab.submission())
        seen = await lab.until(ref, JobState.HELD, deadline=START_SECONDS)
        assert [node.code for node in seen.nodes if node.state is JobState.HELD] == [3]
        before = lab.uids()
        order = Order(generation=1, digest="d1", note={"why": "test"}, by="test")
        assert await lab.backend.restart_in_place(ref, order) == []
        seen = await lab.until(ref, JobState.ENDED, deadline=START_SECONDS)
        assert (seen.code, seen.generation) == (0, 1)
        assert lab.uids() == before
        assert (await lab.output(ref)).count("step 3/3") == 2
        await lab.backend.cancel(ref, 1.0)
        assert lab.pods() == []
        assert json.loads(lab.kubectl("get", "rayclusters", "-o", "json"))["items"] == []

    lab.play(story)


@pytest.mark.row("S5")
@pytest.mark.usefixtures("kuberay")
def test_a_ray_job_that_is_released_fails_with_the_drivers_words(lab: Lab) -> None:
    """The submitter exits with 0 although the job failed (seen): the driver's end is what counts."""

    async def story(lab: Lab) -> None:
        job = lab.job("Job", "", options={"manifest": rayjob("crash")})
        ref = await lab.backend.submit(job, lab.submission())
        await lab.until(ref, JobState.HELD, deadline=START_SECONDS)
        assert await lab.backend.release(ref, Order(generation=1, digest="d1")) == []
        seen = await lab.until(ref, JobState.ENDED, deadline=START_SECONDS)
        assert seen.code != 0
        assert "RuntimeError: the test wants it" in await lab.output(ref)
        await lab.backend.cancel(ref, 1.0)
        assert lab.pods() == []

    lab.play(story)
