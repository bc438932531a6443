"""Nothing of our own, printed into a training log, is taken for a fault (SEC-05, P3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.core.classify import classify
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import facts_of_text
from airflow_ft.diagnosis.signature_files import load_rules, load_signatures

ROOT = Path(__file__).resolve().parents[2]
SIGNATURES = sorted((ROOT / "airflow_ft" / "core" / "signatures").glob("*.yaml"))
DAGS = sorted((ROOT / "dags").glob("*.py"))
PREFIXES = ("", "[rank3]: ", "2026-03-01 10:00:00,123 INFO - ", "[default1]:", "0: ")


@pytest.mark.row("P3")
@pytest.mark.story("SEC-05")
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("file", [*SIGNATURES, *DAGS], ids=lambda file: file.name)
def test_our_own_files_printed_into_a_log_are_no_fault(file: Path, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in file.read_text().splitlines())
    told = as_answer(classify(facts_of_text(text, load_rules()), load_rules()))
    assert told["signature"] is None
    assert told["exclude"] == []
    assert told["retry"] != "useless"


@pytest.mark.row("P3")
@pytest.mark.story("SEC-05")
@pytest.mark.parametrize("form", ["repr", "json"])
def test_loaded_signatures_printed_into_a_log_are_no_fault(form: str) -> None:
    dump = repr if form == "repr" else lambda signature: signature.model_dump_json()
    text = "\n".join(dump(signature) for signature in load_signatures())
    told = as_answer(classify(facts_of_text(text, load_rules()), load_rules()))
    assert (told["signature"], told["exclude"]) == (None, [])
