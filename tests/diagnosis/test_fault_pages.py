from __future__ import annotations

from collections import Counter
from pathlib import Path

from airflow_ft.core.advice import ADVICE
from airflow_ft.core.faults import FaultClass
from airflow_ft.diagnosis.signature_files import load_signatures

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fault-classes.md"


def test_each_class_has_advice_and_a_page_that_says_the_same() -> None:
    page = PAGE.read_text()
    numbers = Counter(signature.fault_class for signature in load_signatures())
    for fault_class in FaultClass:
        section = page.split(f"## {fault_class.value}\n")[1].split("\n## ")[0]
        assert ADVICE[fault_class.value] in section
        assert f"{numbers[fault_class]} signatures" in section


def test_every_signature_says_where_it_comes_from_and_what_to_do() -> None:
    for signature in load_signatures():
        assert signature.reference, signature.id
        assert signature.advice.count(".") >= 1, signature.id
        assert len(signature.advice) <= 240, signature.id
