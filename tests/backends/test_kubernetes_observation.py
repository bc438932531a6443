"""What is made of pods, agents, nodes and a job's own word: the pods decide, and doubt is never an end."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.backends.base import PERSON, JobState
from airflow_ft.backends.kubernetes import facts
from airflow_ft.backends.kubernetes.agents import AgentState
from airflow_ft.backends.kubernetes.kinds import KINDS
from airflow_ft.backends.kubernetes.observation import Closed, Known, Picture, newest, observe
from airflow_ft.backends.kubernetes.pods import read_pod, signed
from airflow_ft.backends.kubernetes.status import JobStatus, read_status
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.preflight import diagnosis_of

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
RUNS, GOES_ON = {"running": {"startedAt": "2026-01-01T11:00:00Z"}}, JobStatus()
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
TAINTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
SILENT = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}


def ended(code: int, at: str = "11:30:00", reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {
        "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": f"2026-01-01T{at}Z"},
    }


def pod(index: int = 0, state: dict[str, Any] | None = None, node: str | None = "", **status: Any) -> dict[str, Any]:
    """A pod of an indexed Job. ``node=None``: not placed yet."""
    spec = {"containers": [{"name": "main"}], "nodeName": f"n{index + 1}" if node == "" else node}
    statuses = [{"name": "main", "state": state}] if state is not None else []
    return {
        "metadata": {
            "name": f"p{index}",
            "uid": f"u{index}",
            "creationTimestamp": "2026-01-01T11:00:00Z",
            "labels": {"batch.kubernetes.io/job-completion-index": str(index), "airflow-ft/agent": "yes"},
            "annotations": {"airflow-ft/container": "main"},
        },
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": statuses, **status},
    }


def agent(phase: str, code: int | None = None, **fields: Any) -> AgentState:
    return AgentState({"phase": phase, "code": code, "generation": 0, **fields}, lives=True, command_lives=True)


def known(document: dict[str, Any], **fields: Any) -> Known:
    return Known(read_pod(document), **fields)


def see(*pods: Known, status: JobStatus | None = GOES_ON, nodes: Any = None, **fields: Any) -> Any:
    return observe(Picture(status=status, pods=pods, nodes=nodes, expected=fields.pop("expected", 2), **fields), NOW)


def test_a_held_agent_holds_the_job() -> None:
    """The others usually still run."""
    seen = see(known(pod(0, RUNS), agent=agent("held", 3)), known(pod(1, RUNS), agent=agent("running")))
    assert (seen.state, [node.code for node in seen.nodes]) == (JobState.HELD, [3, None])


@pytest.mark.row("S2")
def test_containers_decide_and_the_first_to_end_gives_the_code() -> None:
    """Phase and conditions come later; who is killed for it ends later."""
    seen = see(known(pod(0, ended(137, "11:30:05"))), known(pod(1, ended(3, "11:30:00"))))
    assert (seen.state, seen.code) == (JobState.ENDED, 3)
    assert [node.code for node in seen.nodes] == [-9, 3]


def test_the_agents_last_words_are_its_own_report() -> None:
    """A TERM makes an end a planned one, whatever the code."""
    report = {"end": True, "code": -15, "term": True, "generation": 2, "unkillable": []}
    seen = see(known(pod(0, ended(143, message=json.dumps(report)))), expected=1)
    assert (seen.nodes[0].code, seen.nodes[0].term, seen.nodes[0].generation) == (-15, True, 2)


def test_a_job_that_succeeded_while_a_worker_trains_goes_on() -> None:
    """A PyTorchJob is Succeeded as soon as its master ends (seen)."""
    pods = (known(pod(0, ended(0, reason="Completed"))), known(pod(1, RUNS), agent=agent("running")))
    assert see(*pods, status=JobStatus(ended=0)).state is JobState.RUNNING


def test_waiting_for_a_node_is_queued_with_the_schedulers_reason() -> None:
    """And not starting, and not hanging."""
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    seen = see(known(pod(0, None, None, conditions=[why])), known(pod(1, RUNS), agent=agent("running")))
    assert (seen.state, seen.reason) == (JobState.QUEUED, "0/3 nodes are available")


@pytest.mark.story("EXC-04")
def test_a_job_that_its_queue_suspends_is_queued() -> None:
    """Its pods are gone, and nothing has failed."""
    gone = known(pod(0, RUNS), vanished=True)
    assert see(gone, status=JobStatus(suspended=True), expected=1).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("reason", "seconds", "state"),
    [
        ("ImagePullBackOff", 5.0, JobState.STARTING),
        ("ImagePullBackOff", 61.0, JobState.ENDED),
        ("InvalidImageName", 0.0, JobState.ENDED),
        ("CreateContainerConfigError", 61.0, JobState.ENDED),
    ],
)
def test_what_can_not_start_is_over_when_patience_is(reason: str, seconds: float, state: JobState) -> None:
    """A registry may be away for a moment; a name that is none will never be one."""
    waits = known(pod(0, {"waiting": {"reason": reason, "message": "m"}}), stuck_seconds=seconds)
    seen = see(waits, expected=1)
    assert (seen.state, seen.code) == (state, None)
    if state is JobState.ENDED:
        assert reason in seen.reason


@pytest.mark.story("WAT-14")
@pytest.mark.parametrize(
    ("nodes", "status", "lost"),
    [
        ({"n1": READY}, {}, False),
        ({"n1": SILENT}, {}, True),
        ({"n2": READY}, {}, True),
        (None, {}, False),
        (
            None,
            {"conditions": [TAINTED]},
            True,
        ),
        ({"n1": {"status": {"conditions": [{"type": "Ready", "status": "Purple"}]}}}, {}, False),
    ],
)
def test_a_node_is_lost_when_the_control_plane_says_so(nodes: Any, status: dict[str, Any], lost: bool) -> None:
    """Not seen is not lost, and a word that nobody knows means nothing."""
    seen = see(known(pod(0, RUNS, **status), agent=agent("running")), nodes=nodes, expected=1)
    assert seen.nodes[0].lost is lost


def test_a_node_that_is_lost_after_its_command_ended_took_nothing_with_it() -> None:
    """An end is an end."""
    seen = see(known(pod(0, ended(0, reason="Completed"))), nodes={"n1": SILENT}, expected=1)
    assert (seen.state, seen.code, seen.nodes[0].lost) == (JobState.ENDED, 0, False)


def test_who_deleted_a_job_is_known_by_its_record() -> None:
    """A record that nobody closed: a person. A manifest with a time to live removes itself."""
    gone = known(pod(0, RUNS), vanished=True)
    assert see(gone, status=None).cancelled_by == PERSON
    assert see(gone, status=None).state is JobState.GONE
    assert see(gone, status=None, closed=Closed("airflow_ft")).cancelled_by == "airflow_ft"
    assert not see(gone, status=None, removes_itself=True).cancelled
    assert see(known(pod(0, RUNS), agent=agent("running")), status=JobStatus(deleting=True), expected=1).cancelled
    assert not see(replaced=True).cancelled


def test_of_a_place_the_newest_pod_counts() -> None:
    """Operators make a new pod beside the old one."""
    old, new = pod(0, ended(1)), pod(0, RUNS)
    new["metadata"].update(name="p0-new", uid="new", creationTimestamp="2026-01-01T11:40:00Z")
    assert [one.pod.uid for one in newest([known(new), known(old)])] == ["new"]


def test_pods_of_a_jobset_have_places_of_their_own() -> None:
    """The global index is the job's, the same for all of its pods."""
    labels = {
        "jobset.sigs.k8s.io/replicatedjob-name": "w",
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/job-global-index": "0",
    }
    pods = [pod(0, RUNS), pod(1, RUNS)]
    for one in pods:
        one["metadata"]["labels"].update(labels)
    assert len({read_pod(one).slot for one in pods}) == 2


@pytest.mark.parametrize(("code", "own"), [(0, 0), (3, 3), (137, -9), (143, -15), (255, 255)])
def test_a_code_beyond_128_is_a_signal(code: int, own: int) -> None:
    """As far as there are signals."""
    assert signed(code) == own


# --- the job's own word ------------------------------------------------------------------------------------------


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Created", "status": "True"}, {"type": kind, "status": status}]}}


@pytest.mark.parametrize(
    ("kind", "job", "end"),
    [
        ("batch/v1 Job", condition("Complete"), 0),
        ("batch/v1 Job", condition("FailureTarget"), 1),
        ("kubeflow.org/v1 PyTorchJob", condition("Succeeded"), 0),
        ("kubeflow.org/v1 PyTorchJob", condition("Failed", "False"), None),
        ("kubeflow.org/v1 PyTorchJob", condition("Restarting"), None),
        ("jobset.x-k8s.io/v1alpha2 JobSet", condition("Completed"), 0),
        ("jobset.x-k8s.io/v1alpha2 JobSet", condition("Exploded"), None),
        ("ray.io/v1 RayJob", {"status": {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}}, 0),
        ("ray.io/v1 RayJob", {"status": {"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed"}}, None),
        ("ray.io/v1 RayJob", {"status": {"jobStatus": "Failure"}}, None),
        ("batch.volcano.sh/v1alpha1 Job", {"status": {"state": {"phase": "Aborted"}}}, 1),
        ("batch.volcano.sh/v1alpha1 Job", {"status": {"state": {"phase": "Pending"}}}, None),
        ("batch/v1 Job", {}, None),
    ],
)
def test_each_operators_words_are_read_and_unknown_ones_mean_nothing(kind: str, job: Any, end: int | None) -> None:
    """Neither success nor failure."""
    version, name = kind.split(" ")
    assert read_status(KINDS[version, name], job).ended == end


# --- what the cluster knows --------------------------------------------------------------------------------------


def test_a_container_over_its_limit_and_an_image_that_is_not_there_are_evidence() -> None:
    """Both have one meaning only."""
    pods = [known(pod(0, ended(137, reason="OOMKilled"))), known(pod(1, {"waiting": {"reason": "ErrImagePull"}}))]
    picture = Picture(status=GOES_ON, pods=pods)
    classes = [one.fault_class for one in facts.evidence(picture, observe(picture, NOW))]
    assert classes[:2] == [FaultClass.OOM_HOST, FaultClass.ENV_ERROR]


def test_an_innocent_that_was_deleted_says_nothing_by_its_code() -> None:
    """Most kinds delete the others seconds after one has failed."""
    victim = pod(0, ended(137))
    victim["metadata"]["deletionTimestamp"] = "2026-01-01T11:29:58Z"
    assert facts.pod_lines(known(victim)) == []
    assert facts.pod_lines(known(pod(0, ended(137)))) == ["Container main Reason: Error Exit Code: 137"]


def test_a_disruption_is_told_in_the_words_of_the_signatures() -> None:
    """So that it is free of charge."""
    why = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}
    assert facts.pod_lines(known(pod(0, RUNS, conditions=[why])))[0].startswith("DisruptionTarget True EvictionBy")


@pytest.mark.row("S3")
def test_the_node_whose_preflight_failed_is_named_by_the_agents_last_words() -> None:
    """The others' containers were ended for it, or have trained: only the item's own words blame."""
    item = ["disk-size root", "failed", "8.2 GB", "> 32 GB", "Give it a larger disk.", None, ""]
    words = json.dumps({"end": True, "code": 78, "generation": 0, "preflight": [item, "nonsense"]})
    pods = (known(pod(0, ended(78, message=words))), known(pod(1, ended(143))), known(pod(2, ended(78, message="x"))))
    picture = Picture(status=GOES_ON, pods=pods, nodes=None, expected=3)
    found = [one for one in facts.evidence(picture, observe(picture, NOW)) if one.source == "preflight"]
    assert [(one.node, one.signature) for one in found] == [("n1", "preflight.disk-size root")]
    diagnosis = diagnosis_of(found, ("n1", "n2", "n3"))
    assert diagnosis is not None and diagnosis.suspect_nodes == ("n1",)
    assert diagnosis.advice == "Give it a larger disk."


def test_our_own_events_are_no_evidence() -> None:
    """Nor are those of a healthy life."""
    events = [
        {"type": "Normal", "reason": "Submitted", "message": "x", "source": {"component": "airflow-ft"}},
        {"type": "Normal", "reason": "Pulled", "message": "x", "source": {"component": "kubelet"}},
        {"type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes are available", "source": {}},
    ]
    assert facts.event_lines(events) == ["Warning  FailedScheduling  0/3 nodes are available"]


@pytest.mark.story("CLS-13")
@pytest.mark.parametrize(("codes", "state", "code"), [((1, 0), JobState.ENDED, 1), ((None, 1), JobState.RUNNING, None)])
def test_a_controller_that_restarts_for_ever_on_paper(
    codes: tuple[int | None, int], state: JobState, code: object
) -> None:
    """Its condition Restarting stays True long after no training container lives: the pods' states decide."""
    on_paper = {
        "metadata": {"name": "j"},
        "status": {
            "conditions": [
                {"type": "Running", "status": "False", "reason": "PyTorchJobRestarting"},
                {"type": "Restarting", "status": "True", "lastTransitionTime": "2026-01-01T09:00:00Z"},
            ]
        },
    }
    status = read_status(KINDS["kubeflow.org/v1", "PyTorchJob"], on_paper)
    assert status.ended is None
    pods = [known(pod(n, RUNS if one is None else ended(one))) for n, one in enumerate(codes)]
    seen = see(*pods, status=status)
    assert (seen.state, seen.code) == (state, code)
