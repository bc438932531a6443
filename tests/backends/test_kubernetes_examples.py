"""The example DAGs for Kubernetes: what they submit is a whole object, and what is documented is what is asked for."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_ft.backends.base import Submission
from airflow_ft.backends.kubernetes import permissions
from airflow_ft.backends.kubernetes.building import built
from airflow_ft.backends.kubernetes.job import KubernetesJob

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "dags" / "kubernetes").glob("*.yaml"))
SUBMISSION = Submission(name="pretrain-abcdefghijkl-a0", chain_id="pretrain-abcdefghijkl", attempt=0)


@pytest.mark.row("S5")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_becomes_a_whole_object_after_its_templates_are_rendered(example: Path) -> None:
    """With an agent around its command."""

    def render(text: object) -> object:
        return str(text).replace("{{ params.steps }}", "100")

    job = KubernetesJob(manifest=str(example)).rendered(render)
    made = built(job, SUBMISSION)
    assert made.agents
    assert "{{" not in str(made.manifest)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_has_a_dag_beside_it(example: Path) -> None:
    """Which finds its manifest wherever Airflow runs."""
    names: dict[str, Any] = runpy.run_path(str(example.with_name(f"pretrain_{example.stem}.py")))
    (dag,) = [value for value in names.values() if type(value).__name__ == "DAG"]
    assert dag.dag_id == f"pretrain_{example.stem}"
    assert isinstance(dag.get_task("pretrain").job, KubernetesJob)


def test_the_documented_role_is_what_is_asked_for() -> None:
    """The page has the very rules that ``doctor`` checks."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (shown,) = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", text, re.DOTALL)
    assert list(yaml.safe_load_all(shown)) == permissions.role()


def test_no_verb_is_asked_for_that_nobody_explains() -> None:
    """Each permission says what it is for."""
    for one in (*permissions.NAMESPACED, *permissions.CLUSTER_WIDE, *permissions.job_permissions()):
        assert one.why
        assert one.verbs
