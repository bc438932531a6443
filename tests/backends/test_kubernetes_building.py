"""From a user's manifest to the object of one attempt: everything that is added, and that nothing else changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ft.backends.base import Submission
from airflow_ft.backends.kubernetes import affinity, building, wrapping
from airflow_ft.backends.kubernetes.building import ATTEMPT, CHAIN, built
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.kinds import TRAINS, walk
from tests.backends.kubernetes_manifests import CONTAINER, KINDS, manifest

NAME = "pretrain-abcdefghijkl-a2"
SUBMISSION = Submission(name=NAME, chain_id="pretrain-abcdefghijkl", attempt=2, hold=90, grace=20)


def make(
    kind: str, *, job: dict[str, Any] | None = None, container: dict[str, Any] | None = None, **fields: Any
) -> Any:
    spec = KubernetesJob(manifest=manifest(kind, **(container or {})), **(job or {}))
    return built(spec, SUBMISSION.but(**fields))


def pod_templates(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Every pod template of an object, wherever it is."""
    found = []

    def look(item: Any) -> None:
        if isinstance(item, dict):
            if isinstance(walk(item, ("spec", "containers")), list):
                found.append(item)
            for value in item.values():
                look(value)
        elif isinstance(item, list):
            for value in item:
                look(value)

    look(made)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_template_gets_the_labels_of_its_attempt(kind: str) -> None:
    """The labels of a job are not copied to its pods, and pods are all that a fence may believe."""
    made = make(kind).manifest
    assert made["metadata"]["name"] == NAME
    for owner in [made, *pod_templates(made)]:
        labels = owner["metadata"]["labels"]
        assert (labels[CHAIN], labels[ATTEMPT]) == ("pretrain-abcdefghijkl", "2")


@pytest.mark.row("P4")
@pytest.mark.parametrize("kind", KINDS)
def test_an_excluded_node_is_excluded_in_every_template(kind: str) -> None:
    """A rank that runs on it is enough to fail again."""
    made = make(kind, excluded_nodes=("n7", "n2")).manifest
    templates = pod_templates(made)
    assert templates
    for pod in templates:
        terms = pod["spec"]["affinity"]["nodeAffinity"][affinity.REQUIRED]["nodeSelectorTerms"]
        assert terms == [
            {"matchExpressions": [{"key": affinity.HOSTNAME, "operator": "NotIn", "values": ["n2", "n7"]}]}
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_job_is_never_changed(kind: str) -> None:
    """Two attempts of one job differ in their submission only."""
    job = KubernetesJob(manifest=manifest(kind))
    before = copy.deepcopy(job.manifest)
    first = built(job, SUBMISSION)
    assert built(job, SUBMISSION) == first
    assert job.manifest == before


def test_replicas_that_are_one_object_by_a_yaml_anchor_are_wrapped_once_each() -> None:
    """``Worker: {<<: *r}`` shares its template with the master."""
    text = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: &r {replicas: 1, template: {spec: {containers: [{name: pytorch, image: i, command: [python, t.py]}]}}}
    Worker: {<<: *r, replicas: 2}
"""
    made = built(KubernetesJob(manifest=text), SUBMISSION)
    for pod in pod_templates(made.manifest):
        assert len(pod["spec"]["volumes"]) == 2
        assert pod["spec"]["containers"][0]["command"].count("ft-agent") == 1
    assert made.pods == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_agent_is_put_around_the_command_and_args_stay(kind: str) -> None:
    """What the container would have run follows the two dashes."""
    made = make(kind, container={"args": ["--lr", "3e-4"]})
    assert made.agents
    if kind == "RayJob":
        entrypoint = made.manifest["spec"]["entrypoint"]
        assert entrypoint.endswith("-- sh -c 'python train.py'")
        return
    if kind == "TrainJob":
        owner = made.manifest["spec"]["trainer"]
    else:
        owner = next(
            one
            for pod in pod_templates(made.manifest)
            if pod["metadata"]["labels"][building.ROLE] == TRAINS
            for one in pod["spec"]["containers"]
        )
    command = owner["command"]
    assert command[command.index("--") + 1 :] == ["python", "train.py"]
    assert {"--hold=90", "--grace=20", f"--attempt={NAME}"} <= set(command)
    assert owner["args"] == ["--lr", "3e-4"]


def test_a_container_without_a_command_is_not_wrapped_and_that_is_said() -> None:
    """What an image runs by itself can't be known."""
    made = make("Job", container={"command": None})
    assert not made.agents
    assert any("has no command" in note for note in made.notes)
    assert "volumes" not in made.manifest["spec"]["template"]["spec"]


def test_kubernetes_reads_no_variable_in_the_wrapper() -> None:
    """``$(X)`` in a command is a variable of Kubernetes'."""
    wrapped = wrapping.wrapped(["python", "-c", "print(1)"], wrapping.AgentOptions("a", 1, 1))
    assert not any("$(" in word for word in wrapped)
    assert "$(" not in " ".join(wrapping.calling(["show"]))


@pytest.mark.story("RST-10")
@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PyTorchJob", "spec.pytorchReplicaSpecs.Worker.restartPolicy", "OnFailure"),
        ("PyTorchJob", "spec.runPolicy.backoffLimit", 0),
        ("Job", "spec.backoffLimit", 6),
        ("JobSet", "spec.failurePolicy", {"maxRestarts": 2}),
        ("RayJob", "spec.submitterConfig.backoffLimit", 2),
        ("MPIJob", "spec.runPolicy.backoffLimit", 6),
        ("VolcanoJob", "spec.maxRetry", 3),
    ],
)
def test_what_makes_the_platform_restart_is_set_to_never_and_said(kind: str, path: str, value: Any) -> None:
    """One party restarts, and which one is in the notes; with ``platform_restarts`` it is the platform."""
    document = manifest(kind)
    steps = path.split(".")
    owner = document
    for step in steps[:-1]:
        owner = owner.setdefault(step, {})
    owner[steps[-1]] = value
    made = built(KubernetesJob(manifest=document), SUBMISSION)
    assert walk(made.manifest, tuple(steps)) in (None, 0, "Never")
    assert any(note.startswith(path) for note in made.notes)
    kept = built(KubernetesJob(manifest=document, platform_restarts=True), SUBMISSION)
    assert walk(kept.manifest, tuple(steps)) == value
    assert "platform" in kept.notes[0]


def test_volcanos_policies_that_do_not_restart_stay() -> None:
    """A completed task has to complete the job."""
    document = manifest("VolcanoJob")
    stay = {"event": "TaskCompleted", "action": "CompleteJob"}
    document["spec"]["policies"] = [stay, {"event": "PodFailed", "action": "RestartJob"}]
    assert built(KubernetesJob(manifest=document), SUBMISSION).manifest["spec"]["policies"] == [stay]


TERM = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(
            st.fixed_dictionaries({"key": st.sampled_from(["gpu", "zone"]), "operator": st.just("Exists")}), max_size=2
        ),
        "matchFields": st.just([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]),
    },
)


@given(terms=st.lists(TERM, max_size=3), nodes=st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=3))
def test_an_exclusion_holds_in_each_of_the_users_alternatives(terms: list[Any], nodes: list[str]) -> None:
    """Terms are alternatives: one without the exclusion would let a pod onto the node. The user's own all stay."""
    spec: dict[str, Any] = {"affinity": {"nodeAffinity": {affinity.REQUIRED: {"nodeSelectorTerms": terms}}}}
    before = copy.deepcopy(spec)
    given_to = copy.deepcopy(spec)
    affinity.exclude(spec, nodes)
    after = spec["affinity"]["nodeAffinity"][affinity.REQUIRED]["nodeSelectorTerms"]
    if not nodes:
        assert spec == before
        return
    assert len(after) == max(1, len(terms))
    for old, new in zip(terms or [{}], after, strict=True):
        *theirs, ours = new["matchExpressions"]
        assert theirs == old.get("matchExpressions", [])
        assert new.get("matchFields") == old.get("matchFields")
        assert (ours["operator"], ours["values"]) == ("NotIn", sorted(set(nodes)))
    assert given_to == before


def test_a_soft_exclusion_is_one_preference_more() -> None:
    """The pod may still run there if there is nothing else."""
    spec: dict[str, Any] = {"affinity": {"nodeAffinity": {affinity.PREFERRED: [{"weight": 1, "preference": {}}]}}}
    affinity.exclude(spec, ["n2"], hard=False)
    assert affinity.REQUIRED not in spec["affinity"]["nodeAffinity"]
    assert [one["weight"] for one in spec["affinity"]["nodeAffinity"][affinity.PREFERRED]] == [1, affinity.WEIGHT]


@pytest.mark.story("EXC-01")
def test_nodes_that_are_only_wanted_out_are_preferred_out() -> None:
    """Beside the hard exclusions; with ``exclusion="soft"`` nothing is hard."""
    both = SUBMISSION.but(excluded_nodes=("n1",), soft_nodes=("n2",))
    for exclusion, hard, soft in (("hard", ["n1"], ["n2"]), ("soft", None, ["n1", "n2"])):
        job = KubernetesJob(manifest=manifest("Job"), exclusion=exclusion)
        node = built(job, both).manifest["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        terms = walk(node, (affinity.REQUIRED, "nodeSelectorTerms", 0, "matchExpressions", 0, "values"))
        assert terms == hard
        assert node[affinity.PREFERRED][0]["preference"]["matchExpressions"][0]["values"] == soft


def test_a_nodes_label_is_used_where_it_is_not_its_name() -> None:
    """Some clouds call a host otherwise than its node."""
    made = built(KubernetesJob(manifest=manifest("Job")), SUBMISSION.but(excluded_nodes=("n2",)), {"n2": "ip-10-0-0-2"})
    assert '"ip-10-0-0-2"' in json.dumps(made.manifest)


def test_pods_leave_a_lost_node_soon_unless_the_user_has_said_when() -> None:
    """The cluster's own patience is five minutes."""
    spec: dict[str, Any] = {
        "tolerations": [{"key": affinity.LOST_TAINTS[0], "operator": "Exists", "tolerationSeconds": 1}]
    }
    affinity.leave_lost_nodes(spec, 30)
    assert [(one["key"], one["tolerationSeconds"]) for one in spec["tolerations"]] == [
        (affinity.LOST_TAINTS[0], 1),
        (affinity.LOST_TAINTS[1], 30),
    ]


@given(st.text(max_size=120))
def test_a_label_value_is_legal_whatever_the_text(text: str) -> None:
    """Run ids have colons and pluses, task ids may be long."""
    import re

    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", building.label_value(text))
    assert len(building.label_value(text)) <= 63


def test_who_it_is_of_is_on_the_job() -> None:
    """In full as annotations, as the provider's labels have it in short; the chain's link and its restarts too."""
    tags = {"dag_id": "d", "task_id": "t", "run_id": "manual__2026-01-01T00:00:00+00:00", "restarts": "1/3"}
    made = make("Job", tags=tags).manifest["metadata"]
    assert made["labels"]["dag_id"] == "d"
    assert made["annotations"]["airflow-ft/run-id"] == "manual__2026-01-01T00:00:00+00:00"
    assert made["annotations"][building.RESTARTS] == "1/3"
    assert made["annotations"][building.PREVIOUS] == "pretrain-abcdefghijkl-a1"


def test_the_submitter_of_a_rayjob_is_found_by_our_labels() -> None:
    """The training's output is in its log, not in the head's."""
    made = make("RayJob").manifest
    submitter = made["spec"]["submitterPodTemplate"]
    assert submitter["metadata"]["labels"][building.PRINTS] == "yes"
    assert submitter["spec"]["containers"][0]["image"] == CONTAINER["image"]
