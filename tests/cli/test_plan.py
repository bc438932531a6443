"""``airflow ft plan``: who would restart what is said before anything is submitted."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.cli import plan as command
from airflow_ft.core.policy import FaultTolerancePolicy
from tests.backends.kubernetes_manifests import manifest

FULL = FaultTolerancePolicy.full(max_restarts=7)


def task(job: Any, policy: Any = FULL, name: str = "train") -> Any:
    return SimpleNamespace(task_id=name, job=job, policy=policy)


def restarting() -> dict[str, Any]:
    """A manifest whose operator would restart by itself, with a secret in its environment."""
    made = manifest("PyTorchJob")
    made["spec"]["runPolicy"] = {"backoffLimit": 5}
    for replica in made["spec"]["pytorchReplicaSpecs"].values():
        replica["restartPolicy"] = "OnFailure"
        replica["template"]["spec"]["containers"][0]["env"] = [{"name": "HF_TOKEN", "value": "hf_canary_1234"}]
    return made


@pytest.mark.story("RST-10")
def test_who_restarts_is_said_and_which_settings_are_changed_for_that() -> None:
    """One party restarts: the operator's own limits are set to never, each of them by its name."""
    (one,) = command.planned([task(KubernetesJob(manifest=restarting(), conn_id="k"))])
    text = command.as_text(one)
    assert "airflow_ft restarts in place" in text
    assert "submits it again (7 times at most)" in text
    assert "spec.runPolicy.backoffLimit: 5, left out" in text
    assert "restartPolicy: 'OnFailure', set to 'Never'" in text
    assert "hf_canary" not in json.dumps(one)


@pytest.mark.story("RST-10")
def test_a_platform_that_is_left_to_restart_is_said() -> None:
    job = KubernetesJob(manifest=restarting(), conn_id="k", platform_restarts=True)
    (one,) = command.planned([task(job)])
    assert one["changed"] == [
        "The platform restarts this job by its own rules (platform_restarts); airflow_ft only resubmits."
    ]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (FaultTolerancePolicy.off(), "Nobody: fault tolerance is off."),
        (FaultTolerancePolicy.basic(max_restarts=2), "airflow_ft submits it again, 2 times at most, whatever it was."),
    ],
)
def test_each_mode_says_what_it_does(policy: FaultTolerancePolicy, said: str) -> None:
    (one,) = command.planned([task(LocalJob(command="true", nodes=2), policy)])
    assert (one["restarts"], one["nodes"]) == ([said], 2)


@pytest.mark.story("PRG-05")
@pytest.mark.parametrize(
    ("job", "times"),
    [
        (LocalJob(command="torchrun --max-restarts=3 train.py"), "3 times"),
        (LocalJob(command=["torchrun", "--max_restarts", "12", "train.py"]), "12 times"),
        (LocalJob(command="torchrun --max-restarts=0 train.py"), ""),
        (LocalJob(command="torchrun train.py"), ""),
    ],
)
def test_a_launcher_that_restarts_by_itself_is_said(job: LocalJob, times: str) -> None:
    (one,) = command.planned([task(job)])
    assert len(one["changed"]) == bool(times)
    assert times in " ".join(one["changed"])


def test_a_manifest_with_templates_and_tasks_that_do_not_train(tmp_path: Path) -> None:
    """What is not known yet is said to be so; other tasks are left out."""
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: '{{ ds }}'}\n"
    plans = command.planned([task(KubernetesJob(manifest=text, conn_id="k")), SimpleNamespace(task_id="other")])
    assert [one["changed"] for one in plans] == [[command.UNKNOWN_YET]]
    assert "nodes as the manifest says" in command.as_text(plans[0])


def test_a_dag_without_training_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And one with several trainings shows the one that was asked for."""
    tasks = [task(LocalJob(command="true"), name=name) for name in ("a", "b")]
    monkeypatch.setattr("airflow.utils.cli.get_bagged_dag", lambda _bundles, _dag: SimpleNamespace(tasks=tasks))
    command.plan(Namespace(dag_id="d", task_id="b", json=True))
    assert [one["task"] for one in json.loads(capsys.readouterr().out)] == ["b"]
    with pytest.raises(SystemExit) as ended:
        command.plan(Namespace(dag_id="d", task_id="c", json=False))
    assert ended.value.code == command.CANNOT
    assert capsys.readouterr().out == "d.c: no training of airflow_ft. Give a DAG with one, and the id of its task.\n"
