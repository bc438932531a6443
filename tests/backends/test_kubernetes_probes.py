"""A probe job is made of the training's own pod, whatever kind the training is of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from airflow_ft.backends.base import Submission, SubmissionRefusedError
from airflow_ft.backends.kubernetes import affinity, cluster
from airflow_ft.backends.kubernetes.backend import KubernetesBackend
from airflow_ft.backends.kubernetes.building import built
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.kinds import walk
from airflow_ft.backends.kubernetes.probes import PROBE
from tests.backends.fake_kubernetes import FakeApi
from tests.backends.kubernetes_manifests import KINDS, manifest

pytestmark = [pytest.mark.row("S4")]
COMMAND = ("python", "reproduce.py", "--quick")
GPUS = {"resources": {"limits": {"nvidia.com/gpu": 8}}}


NODES = ("n1", "n2", "n3")


def probe(given: dict[str, Any], nodes: tuple[str, ...] = NODES, **settings: Any) -> KubernetesJob:
    job = KubernetesJob(manifest=given, conn_id="gpus", namespace="training", **settings)
    made = KubernetesBackend().probe_job(job, COMMAND, nodes)
    assert isinstance(made, KubernetesJob)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_is_one_pod_on_each_node_and_each_answers_for_itself(kind: str) -> None:
    """One that fails must not take the others along: nobody would know what they have found."""
    made = probe(manifest(kind))
    spec = made.document["spec"]
    assert (made.conn_id, made.namespace, made.kind.kind) == ("gpus", "training", "Job")
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (3, 3, 0)
    assert made.nodes_needed() == 3
    pod = spec["template"]
    apart = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [one["labelSelector"]["matchLabels"] for one in apart] == [{PROBE: "yes"}]
    assert pod["metadata"]["labels"][PROBE] == "yes"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == list(COMMAND)
    assert container["image"] == "registry.local/train:1"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_of_it_runs_on_just_these_nodes_and_has_the_agent(kind: str) -> None:
    """Also if one is cordoned. And no limit of all indexes together comes on top of each one's own."""
    submission = Submission(name="look-p", chain_id="look", attempt=0, excluded_nodes=("n4",))
    made = built(probe(manifest(kind)), submission)
    pod = made.manifest["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"][affinity.REQUIRED]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n1"], ["n2"], ["n3"]]
    assert not any("matchExpressions" in term for term in terms), "who else is in the pool doesn't matter then"
    assert {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"} in pod[
        "tolerations"
    ]
    assert made.agents
    assert pod["containers"][0]["command"][-3:] == list(COMMAND)
    assert "backoffLimit" not in made.manifest["spec"]


def test_what_the_training_would_have_had_is_what_is_tested() -> None:
    """Its resources, volumes, queue; not what belongs to its life: probes of its health, other containers."""
    given = manifest("PyTorchJob", **GPUS, ports=[{"containerPort": 80}], livenessProbe={"exec": {"command": ["x"]}})
    given["metadata"] |= {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    worker = given["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    worker["metadata"] = {"annotations": {"k8s.v1.cni.cncf.io/networks": "ib0"}}
    worker["spec"] |= {
        "initContainers": [{"name": "data", "image": "i"}],
        "nodeSelector": {"gpu": "h200"},
        "affinity": {"nodeAffinity": {affinity.PREFERRED: []}, "podAffinity": {"mine": True}},
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    worker["spec"]["containers"].append({"name": "proxy", "image": "i"})
    made = probe(given).document
    assert made["metadata"] == {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}}
    pod = made["spec"]["template"]
    assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "ib0"}
    assert pod["spec"].keys() == {
        "restartPolicy", "containers", "affinity", "nodeSelector", "volumes", "tolerations"
    }  # fmt: skip
    assert pod["spec"]["affinity"].keys() == {"nodeAffinity", "podAntiAffinity"}
    (container,) = pod["spec"]["containers"]
    assert container.keys() == {"name", "image", "command", "resources"}


def test_what_the_user_asks_of_nodes_holds_on_each_of_them() -> None:
    """Their terms are alternatives: each of them for each node."""
    given = manifest("Job")
    wanted = [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": [kind]}]} for kind in ("h100", "h200")]
    pod = given["spec"]["template"]["spec"]
    pod["affinity"] = {"nodeAffinity": {affinity.REQUIRED: {"nodeSelectorTerms": wanted}}}
    made = probe(given, ("n1", "n2")).document["spec"]["template"]["spec"]
    terms = made["affinity"]["nodeAffinity"][affinity.REQUIRED]["nodeSelectorTerms"]
    told = [(one["matchExpressions"][0]["values"][0], one["matchFields"][0]["values"][0]) for one in terms]
    assert told == [("h100", "n1"), ("h200", "n1"), ("h100", "n2"), ("h200", "n2")]


def test_an_mpi_job_is_probed_with_what_has_the_gpus() -> None:
    """Its launcher has none."""
    given = manifest("MPIJob")
    walk(given, ("spec", "mpiReplicaSpecs", "Worker", "template", "spec", "containers"))[0].update(GPUS)
    assert probe(given).gpus() == 24


def test_a_train_job_without_an_image_is_refused_and_says_what_to_name() -> None:
    given = manifest("TrainJob")
    del given["spec"]["trainer"]["image"]
    with pytest.raises(SubmissionRefusedError, match=r"manifest\.spec\.trainer\.image"):
        probe(given)


def test_the_pods_of_a_preflight_are_told_where_they_meet_when_all_run() -> None:
    """The first one's address, and each one's own number."""

    async def story() -> None:
        api = FakeApi(pods=3)
        cluster.of("fake").api = api  # type: ignore[assignment]
        backend = KubernetesBackend()
        job = backend.probe_job(KubernetesJob(manifest=manifest("Job"), conn_id="fake"), ("true",), NODES)
        look: dict[str, object] = {"set": "standard"}
        ref = await backend.submit(job, Submission(name="look-p", chain_id="look", attempt=0, preflight=look))
        assert not await backend.introduce(ref), "nobody is seen yet"
        await backend.observe(ref)
        assert await backend.introduce(ref)
        told = [(pod, json.loads(argv[-2])) for pod, argv in api.executed if argv[-1].endswith("/meet.json")]
        assert told == [(f"look-p-{rank}", {"host": "10.0.0.1", "rank": rank}) for rank in range(3)]
        (made,) = (item for path, item in api.objects.items() if path.endswith("/jobs/look-p"))
        command = made["spec"]["template"]["spec"]["containers"][0]["command"]
        (given,) = (word for word in command if word.startswith("--preflight="))
        assert json.loads(given.partition("=")[2])["meet"] == {"count": 3, "told": True}
        await backend.close()

    asyncio.run(story())
