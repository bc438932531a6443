"""Pods that stay in ContainerCreating: what their events say, when that is a fault, and whose (story EXC-05).

The events are shaped as kubelet and attach-detach controller write them (core/v1 Event).
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.backends.base import JobState
from airflow_ft.backends.kubernetes import cluster, facts
from airflow_ft.backends.kubernetes.backend import KubernetesBackend
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.observation import Known, Picture, observe, suspected_nodes
from airflow_ft.backends.kubernetes.obstacles import Kind, obstacle_of
from airflow_ft.backends.kubernetes.pods import read_pod
from airflow_ft.backends.kubernetes.status import JobStatus
from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.decide import Situation, decide
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import Diagnosis, FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.diagnosis.signature_files import load_rules
from tests.backends.fake_kubernetes import FakeApi
from tests.backends.kubernetes_manifests import manifest
from tests.backends.test_kubernetes_many_pods import submission

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
NO_CONFIG = 'MountVolume.SetUp failed for volume "conf" : configmap "train-config" not found'
NO_SECRET = 'MountVolume.SetUp failed for volume "s3" : secret "s3-login" not found'
NO_KEY = 'MountVolume.SetUp failed for volume "conf" : configmap references non-existent config key: train.yaml'
SUMMED_UP = (
    "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[]: "
    "timed out waiting for the condition"
)
NFS = 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32 mount.nfs: Connection timed out'
NO_DRIVER = 'AttachVolume.Attach failed for volume "pvc-91" : CSINode n2 does not contain driver ebs.csi.aws.com'
ELSEWHERE = (
    'Multi-Attach error for volume "pvc-91" Volume is already exclusively attached to one node and can\'t be attached '
    "to another"
)
SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox: plugin "
    'type="calico" failed (add): timeout'
)
PULLING = 'Pulling image "registry/train:1"'


def event(reason: str, message: str, at: str, pod: str = "p1", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{pod}.17c{at[3:5]}", "namespace": "ns", "creationTimestamp": "2026-03-01T11:00:00Z"},
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": pod, "uid": f"u{pod[1:]}"},
        "type": "Normal" if reason in ("Scheduled", "Pulling", "Pulled", "SuccessfulAttachVolume") else "Warning",
        "reason": reason,
        "message": message,
        "count": 3,
        "firstTimestamp": "2026-03-01T11:00:01Z",
        "lastTimestamp": f"2026-03-01T{at}Z",
        "source": {"component": "kubelet", "host": "n2"},
        **more,
    }


def creating(index: int) -> dict[str, Any]:
    """A pod as the kubelet shows it while volumes are awaited."""
    return {
        "metadata": {
            "name": f"p{index}",
            "uid": f"u{index}",
            "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"containers": [{"name": "main"}], "nodeName": f"n{index + 1}"},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}],
        },
    }


def running(index: int) -> dict[str, Any]:
    state = {"running": {"startedAt": "2026-03-01T11:00:05Z"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}
    return {**creating(index), "status": status}


def stuck(index: int, *events: dict[str, Any], seconds: float = 900.0) -> Known:
    return Known(read_pod(creating(index)), stuck_seconds=seconds, obstacle=obstacle_of(events))


def runs(index: int) -> Known:
    return Known(read_pod(running(index)))


def picture(*pods: Known) -> Picture:
    return Picture(status=JobStatus(), pods=pods, expected=len(pods))


def diagnosed(seen: Picture) -> Diagnosis:
    """What is made of it: evidence and the cluster's lines, as the backend hands them over."""
    lines = [(known.pod, facts.pod_lines(known)) for known in seen.pods]
    logs = [LogText(f"pod/{pod.name}", "\n".join(said).encode(), pod.node) for pod, said in lines if said]
    evidence = tuple(facts.evidence(seen, observe(seen, NOON)))
    nodes = tuple(str(known.pod.node) for known in seen.pods)
    return classify(Facts(logs=tuple(logs), evidence=evidence, nodes=nodes, first_step_seen=False), load_rules())


def decided(diagnosis: Diagnosis) -> Any:
    pool = tuple(f"n{number}" for number in range(1, 9))
    return decide(FaultTolerancePolicy.full(), Situation(diagnosis=diagnosis, pool_nodes=pool, nodes_needed=2), NOON)


# --- what the events say -------------------------------------------------------------------------------------------


@pytest.mark.story("EXC-05")
@pytest.mark.parametrize(
    ("events", "kind", "what"),
    [
        ([("FailedMount", NO_CONFIG)], Kind.MISSING, "ConfigMap train-config"),
        ([("FailedMount", NO_SECRET)], Kind.MISSING, "Secret s3-login"),
        ([("FailedMount", NO_KEY)], Kind.MISSING, "key train.yaml"),
        ([("FailedMount", NO_CONFIG), ("FailedMount", SUMMED_UP)], Kind.MISSING, "ConfigMap train-config"),
        ([("FailedMount", SUMMED_UP)], Kind.VOLUME, ""),
        ([("FailedMount", NFS)], Kind.VOLUME, ""),
        ([("FailedAttachVolume", ELSEWHERE)], Kind.VOLUME, ""),
        ([("FailedAttachVolume", NO_DRIVER), ("FailedMount", SUMMED_UP)], Kind.VOLUME, ""),
        ([("FailedCreatePodSandBox", SANDBOX)], Kind.SANDBOX, ""),
    ],
)
def test_the_events_say_what_a_pod_waits_for(events: list[tuple[str, str]], kind: Kind, what: str) -> None:
    told = [event(reason, message, f"11:0{n + 1}:00") for n, (reason, message) in enumerate(events)]
    for order in (told, told[::-1]):  # a list has no order that one could trust
        found = obstacle_of(order)
        assert found is not None
        assert (found.kind, found.what) == (kind, what)


@pytest.mark.story("SUB-09")
@pytest.mark.parametrize(
    "events",
    [
        [],
        [event("Scheduled", "Successfully assigned ns/p1 to n2", "11:00:01"), event("Pulling", PULLING, "11:00:09")],
        [event("FailedMount", NO_CONFIG, "11:00:05"), event("Pulling", PULLING, "11:01:00")],
        [event("Pulling", PULLING, "11:00:05"), event("FailedMount", NFS, "11:00:05")],
        [event("FailedAttachVolume", ELSEWHERE, "11:00:05"), event("SuccessfulAttachVolume", "ok", "11:01:00")],
        [{"reason": None}, {}],
    ],
)
def test_what_has_passed_and_a_slow_image_are_no_obstacle(events: list[dict[str, Any]]) -> None:
    """An image is pulled after all volumes are there."""
    assert obstacle_of(events) is None


def test_an_object_that_was_missing_and_was_made_is_no_longer_what_a_pod_waits_for() -> None:
    """The kubelet tries again every two minutes at most."""
    found = obstacle_of([event("FailedMount", NO_CONFIG, "11:01:00"), event("FailedMount", NFS, "11:09:00")])
    assert found is not None
    assert found.kind is Kind.VOLUME


def test_an_event_of_the_newer_kind_is_read_too() -> None:
    """``events.k8s.io`` has a series, and no last time stamp."""
    newer = {"eventTime": "2026-03-01T11:00:00.123456Z", "series": {"lastObservedTime": "2026-03-01T11:08:00.000000Z"}}
    told = [event("FailedMount", NFS, "11:00:00", lastTimestamp=None, **newer), event("Pulled", "x", "11:04:00")]
    found = obstacle_of(told)
    assert found is not None
    assert found.line.startswith("FailedMount: MountVolume.SetUp")


# --- when it is a fault --------------------------------------------------------------------------------------------


@pytest.mark.story("EXC-05")
@pytest.mark.parametrize(
    ("message", "seconds", "state"),
    [
        (NO_CONFIG, 59.0, JobState.STARTING),
        (NO_CONFIG, 61.0, JobState.ENDED),
        (NFS, 61.0, JobState.STARTING),
        (NFS, 601.0, JobState.ENDED),
        ("", 86_400.0, JobState.STARTING),
    ],
)
def test_a_pod_that_is_not_made_in_its_time_ends_the_attempt(message: str, seconds: float, state: JobState) -> None:
    """A missing object has a minute; a volume has ten, since Kubernetes itself waits six for a silent node."""
    events = [event("FailedMount", message, "11:05:00")] if message else []
    seen = observe(picture(runs(0), stuck(1, *events, seconds=seconds)), NOON)
    assert (seen.state, seen.code) == (state, None)
    if state is JobState.ENDED:
        assert seen.reason.startswith("p1 can't start: ")


# --- whose fault it is ---------------------------------------------------------------------------------------------


@pytest.mark.story("EXC-05")
@pytest.mark.row("S13")
@pytest.mark.parametrize(("message", "name"), [(NO_CONFIG, "train-config"), (NO_SECRET, "s3-login")])
def test_a_missing_object_is_named_and_stops_the_chain(message: str, name: str) -> None:
    """One of two pods waits for it: no node's fault, and running again makes no ConfigMap."""
    told = [event("FailedMount", message, "11:05:00"), event("FailedMount", SUMMED_UP, "11:06:00")]
    diagnosis = diagnosed(picture(runs(0), stuck(1, *told)))
    assert (diagnosis.fault_class, diagnosis.suspects) == (FaultClass.ENV_ERROR, ())
    assert name in diagnosis.root.text  # type: ignore[union-attr]
    assert name in diagnosis.text
    assert "Make it in the job's namespace" in diagnosis.advice
    decision = decided(diagnosis)
    assert decision.action is Action.FAIL
    assert name in decision.reason


@pytest.mark.story("EXC-05")
@pytest.mark.parametrize(
    ("reason", "message"),
    [("FailedMount", NFS), ("FailedAttachVolume", NO_DRIVER), ("FailedCreatePodSandBox", SANDBOX)],
)
def test_what_comes_on_all_nodes_but_one_makes_that_one_the_suspect(reason: str, message: str) -> None:
    """So that the next attempt avoids it."""
    diagnosis = diagnosed(picture(runs(0), stuck(1, event(reason, message, "11:05:00"))))
    assert (diagnosis.fault_class, diagnosis.suspect_nodes) == (FaultClass.HW_NODE, ("n2",))
    assert message[:40] in diagnosis.text
    decision = decided(diagnosis)
    assert (decision.action, decision.excluded_nodes) == (Action.RESUBMIT_EXCLUDING, ("n2",))


@pytest.mark.story("EXC-05")
@pytest.mark.parametrize(
    "pods",
    [
        [stuck(0, event("FailedMount", NFS, "11:05:00")), stuck(1, event("FailedMount", NFS, "11:05:00"))],
        [stuck(0, event("FailedMount", NFS, "11:05:00"))],
        [runs(0), *(stuck(n, event("FailedMount", NFS, "11:05:00")) for n in (1, 2))],
        [runs(0), stuck(1, event("FailedAttachVolume", ELSEWHERE, "11:05:00"))],
        [runs(0), stuck(1, event("FailedMount", NFS, "11:05:00")), *(stuck(n) for n in (2, 3))],
    ],
)
def test_a_volume_that_comes_nowhere_or_is_held_elsewhere_blames_nobody(pods: list[Known]) -> None:
    """On all nodes, on most, or on the only one: the storage. Who waits for what another one holds did nothing.

    Pods that are still being made count, too: of a large job not all were asked why.
    """
    seen = picture(*pods)
    assert suspected_nodes(seen) == frozenset()
    diagnosis = diagnosed(seen)
    assert (diagnosis.fault_class, diagnosis.suspects) == (FaultClass.ENV_ERROR, ())
    decision = decided(diagnosis)
    assert (decision.action, decision.excluded_nodes) == (Action.RESUBMIT, ())
    assert decision.delay > 0  # storage that is away for a moment needs one


# --- how the events are asked for ----------------------------------------------------------------------------------


@pytest.mark.story("EXC-05")
def test_events_are_asked_for_only_of_pods_that_are_not_made_in_time_and_of_some_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large job that pulls a large image is no storm of questions; the one that is stuck is found all the same."""

    async def story() -> None:
        api = FakeApi(pods=40)
        cluster.of("fake").api = api  # type: ignore[assignment]
        backend = KubernetesBackend()
        made = manifest("Job")
        made["spec"] |= {"parallelism": 40, "completions": 40}
        job = KubernetesJob(manifest=made, conn_id="fake", namespace="ns", start_error_seconds=0.0)
        ref = await backend.submit(job, submission(0))
        for pod in api.pods():
            api.change_pod(pod["metadata"]["name"], "Pending", {"waiting": {"reason": "ContainerCreating"}})
        last = api.pods()[-1]["metadata"]
        about = {"kind": "Pod", "name": last["name"], "uid": last["uid"]}
        api.objects["/api/v1/namespaces/ns/events/e1"] = {
            **event("FailedMount", NO_CONFIG, "11:05:00", involvedObject=about),
            "metadata": {"name": "e1"},
        }
        asked: list[str] = []
        get = api.get

        async def counted(path: str, **query: Any) -> Any:
            found = await get(path, **query)
            if path.endswith("/events"):
                name = query["fieldSelector"].partition("=")[2]
                asked.append(name)
                found["items"] = [one for one in found["items"] if one["involvedObject"]["name"] == name]
            return found

        monkeypatch.setattr(api, "get", counted)
        seen = await backend.observe(ref)
        for looks in range(1, 5):
            assert len(asked) <= looks * cluster.EVENTS_AT_ONCE
            if seen.state is JobState.ENDED:
                break
            seen = await backend.observe(ref)
        assert seen.state is JobState.ENDED
        assert "ConfigMap train-config" in seen.reason
        assert len(asked) == len(set(asked))  # nobody is asked twice within seconds
        await backend.close()

    asyncio.run(story())
