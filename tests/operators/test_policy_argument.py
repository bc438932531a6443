"""What a task may give as ``policy=``, and where it comes from when it gives none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.settings import SettingsError
from airflow_ft.operators.settings import TrainingSettingsError, policy_from


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set options of Airflow's section ``[fault_tolerance]``."""

    def configure(**options: str) -> None:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__FAULT_TOLERANCE__{name.upper()}", value)

    return configure


def annotated(**annotations: str) -> SimpleNamespace:
    named = {f"fault-tolerance/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return SimpleNamespace(policy_annotations=lambda: named)


def test_an_object_a_dictionary_a_preset_and_a_file_are_policies(tmp_path: Path) -> None:
    (tmp_path / "training.yaml").write_text("preset: multi_node\nmax_restarts: 9\n")
    nine = FaultTolerancePolicy.multi_node(max_restarts=9)
    for given in (nine, nine.to_dict(), {"preset": "multi_node", "max_restarts": 9}, tmp_path / "training.yaml"):
        assert policy_from(given) == nine
    assert policy_from("multi_node") == FaultTolerancePolicy.multi_node()
    assert policy_from("training.yaml", folder=str(tmp_path)) == nine, "beside the DAG file"


@pytest.mark.row("M7")
def test_the_annotations_of_a_manifest_hold_where_a_task_gives_no_policy(configured: Any) -> None:
    configured(policy="basic")
    job = annotated(job_retry_num="5", hang_retry="true")
    assert policy_from(None, job) == FaultTolerancePolicy.full(max_restarts=5)
    assert policy_from("single_node", job) == FaultTolerancePolicy.single_node()
    assert policy_from(None, annotated()) == FaultTolerancePolicy.basic(), "no annotations: the configuration"


def test_the_default_is_the_configurations_policy_then_its_mode(configured: Any, tmp_path: Path) -> None:
    configured(mode="advanced", max_restarts="7")
    assert policy_from(None) == FaultTolerancePolicy.advanced(max_restarts=7)
    file = tmp_path / "default.yaml"
    file.write_text("preset: long_running\n")
    configured(policy=str(file))
    assert policy_from(None) == FaultTolerancePolicy.long_running()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("multi_nod", r"policy: 'multi_nod' is no preset\. Did you mean multi_node\?"),
        ("nothing.yaml", r"policy: nothing\.yaml: can't be read"),
        ({"max_restart": 3}, r"policy: max_restart: there is no such setting\. Did you mean max_restarts\?"),
        (3, r"policy: 3 is not allowed\. Give a FaultTolerancePolicy"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(given: object, told: str) -> None:
    with pytest.raises(TrainingSettingsError, match=told):
        policy_from(given)


def test_a_wrong_default_names_the_option(configured: Any) -> None:
    configured(policy="multi_nod")
    with pytest.raises((TrainingSettingsError, SettingsError), match=r"\[fault_tolerance\] policy: 'multi_nod'"):
        policy_from(None)
