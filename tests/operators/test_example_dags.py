"""Every example DAG can be parsed, serialised and found in the documentation.

Those that can run here are run in ``tests/airflow`` (``test_airflow_examples``, ``test_airflow_health``).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted({*(ROOT / "dags").glob("*.py"), *(ROOT / "dags" / "kubernetes").glob("*.py")})


@pytest.mark.row("S1")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_parsed_and_serialised_as_airflow_does(example: Path) -> None:
    found = DagBag(example, collect_dags=False)
    dags = found.process_file(str(example))
    assert found.import_errors == {}
    assert dags
    for dag in dags:
        assert dag.tasks
        assert DagSerialization.to_dict(dag)["dag"]["dag_id"] == dag.dag_id


def test_every_example_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "examples.md").read_text()
    assert [path.name for path in EXAMPLES if f"(../{path.relative_to(ROOT)})" not in text] == []
