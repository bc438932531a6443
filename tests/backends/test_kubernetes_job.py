"""What a user may write into a ``KubernetesJob``, and how what is wrong with it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.core.policy import FaultTolerancePolicy
from tests.backends.kubernetes_manifests import KINDS, manifest


@pytest.mark.row("S5")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_training_job_is_taken(kind: str) -> None:
    """As a dictionary, as YAML text, and the number of pods that train is known."""
    job = KubernetesJob(manifest=manifest(kind))
    assert KubernetesJob(manifest=yaml.safe_dump(manifest(kind))).document == job.document
    pods = {"Job": 2, "PyTorchJob": 4, "JobSet": 4, "TrainJob": 2, "RayJob": 1, "MPIJob": 1, "VolcanoJob": 3}
    assert job.nodes_needed() == pods[kind]


def test_a_file_is_found_beside_the_dag_that_names_it(tmp_path: Path) -> None:
    """And read when the DAG is parsed."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest("Job")))
    dag = tmp_path / "dag.py"
    dag.write_text(
        "from airflow_ft.backends.kubernetes.job import KubernetesJob\njob = KubernetesJob(manifest='job.yaml')\n"
    )
    names: dict[str, Any] = {}
    exec(compile(dag.read_text(), str(dag), "exec"), names)
    assert names["job"].document["kind"] == "Job"
    assert KubernetesJob(manifest=str(tmp_path / "job.yaml")).document["kind"] == "Job"


def broken(kind: str, path: str, value: Any) -> dict[str, Any]:
    document: Any = manifest(kind)
    steps = [int(step) if step.isdigit() else step for step in path.split(".")]
    owner = document
    for step in steps[:-1]:
        owner = owner[step]
    if value is None:
        owner.pop(steps[-1])
    else:
        owner[steps[-1]] = value
    return dict(document)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("no-such-file.yaml", "no such file"),
        ("kind: [", "is no YAML"),
        ("kind: Job\n---\nkind: Job\n", "2 documents are not allowed"),
        (broken("Job", "kind", "CronJob"), "manifest.kind: 'batch/v1 CronJob' is not allowed"),
        (broken("MPIJob", "apiVersion", "kubeflow.org/v1"), "manifest.kind: 'kubeflow.org/v1 MPIJob' is not allowed"),
        (
            broken("Job", "spec.template.spec.containers", []),
            "manifest.spec.template.spec.containers: [] is not allowed",
        ),
        (
            broken("JobSet", "spec.replicatedJobs.0.template.spec.template.spec.containers.0.image", None),
            "manifest.spec.replicatedJobs[0].template.spec.template.spec.containers[0].image: is missing",
        ),
        (
            broken("PyTorchJob", "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.name", "main"),
            "manifest.spec.pytorchReplicaSpecs.Worker.template.spec.containers: none is named 'pytorch'",
        ),
        (broken("RayJob", "spec.entrypoint", None), "manifest.spec.entrypoint: is missing"),
        (broken("PyTorchJob", "spec.pytorchReplicaSpecs", {}), "manifest.spec: has no pod templates"),
        (
            broken("Job", "spec.template.spec.containers.0.command", "python train.py"),
            "manifest.spec.template.spec.containers[0].command: 'python train.py' is not allowed",
        ),
        (
            broken("Job", "spec.template.spec.containers.0.env", [{"name": "FT_CHAIN_ID", "value": "x"}]),
            "the name 'FT_CHAIN_ID' is not allowed",
        ),
        (
            broken("Job", "spec.template.spec.volumes", [{"name": "airflow-ft-agent"}]),
            "manifest.spec.template.spec.volumes: the names ['airflow-ft-agent'] are not allowed",
        ),
    ],
)
def test_what_is_wrong_names_its_path_in_the_manifest(given: Any, told: str) -> None:
    """At construction, so when the DAG is parsed."""
    with pytest.raises(ValueError) as error:
        KubernetesJob(manifest=given)
    assert told in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    """Not the first one, then the next."""
    document = broken("PyTorchJob", "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.image", None)
    document["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"] = None
    with pytest.raises(ValueError) as error:
        KubernetesJob(manifest=document)
    assert "Worker" in str(error.value)
    assert "Master" in str(error.value)


def test_templates_in_text_and_in_values_are_rendered_into_a_copy() -> None:
    """Text is understood after rendering; until then it is only kept."""

    def render(text: object) -> object:
        return str(text).replace("{{ params.nodes }}", "4").replace("{{ ds }}", "2026-01-01")

    text = yaml.safe_dump(manifest("Job")).replace("parallelism: 2", "parallelism: {{ params.nodes }}")
    text = text.replace("completions: 2", "completions: {{ params.nodes }}")
    job = KubernetesJob(manifest=text)
    assert job.rendered(render).nodes_needed() == 4
    named = KubernetesJob(manifest=manifest("Job", command=["python", "train.py", "{{ ds }}"]))
    container = named.rendered(render).document["spec"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "2026-01-01"
    assert "{{ ds }}" in str(named.manifest)


@pytest.mark.story("SEC-01")
def test_no_value_of_the_environment_is_shown() -> None:
    """In the rendered fields; and what has a telling name is masked everywhere."""
    env = [{"name": "HF_TOKEN", "value": "hf_abcdefgh"}, {"name": "MODE", "value": "quiet-one"}]
    job = KubernetesJob(manifest=manifest("PyTorchJob", env=env, command=["train", "--token=hf_abcdefgh"]))
    assert job.secrets() == ("hf_abcdefgh",)
    shown = str(job.serialize())
    assert "hf_abcdefgh" not in shown
    assert "quiet-one" not in shown
    assert "quiet-one" in str(job.manifest)


@pytest.mark.row("M7")
def test_annotations_of_the_manifest_are_a_policy() -> None:
    """``fault-tolerance/…``, read when the task gives none."""
    document = manifest("PyTorchJob")
    document["metadata"]["annotations"] = {"fault-tolerance/job-retry-num": "5", "other": "x"}
    job = KubernetesJob(manifest=document)
    assert FaultTolerancePolicy.from_annotations(job.policy_annotations()).max_restarts == 5
    assert KubernetesJob(manifest=manifest("Job")).policy_annotations() == {}


def test_the_container_that_asks_for_gpus_trains() -> None:
    """In a pod with several, unless somebody says otherwise."""
    from airflow_ft.backends.kubernetes.job import training_container

    gpu = {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    spec = {"containers": [{"name": "a"}, gpu]}
    assert training_container(spec)["name"] == "b"
    assert training_container(spec, "a")["name"] == "a"
    assert training_container({"containers": [{"name": "a"}, {"name": "c"}]})["name"] == "a"
