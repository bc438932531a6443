"""Families of messages, one line each, and lines that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.core.classify import classify
from airflow_ft.core.facts import Facts, LogText
from airflow_ft.core.faults import Retry, Role, Trust
from airflow_ft.diagnosis.signature_files import load_rules

DATA = Path(__file__).resolve().parents[1] / "data"


def lines(name: str) -> list[str]:
    return [line for line in (DATA / name).read_text().splitlines() if line and not line.startswith("#")]


KINDS = [tuple(line.split("|", 1)) for line in lines("message_kinds.txt")]


@pytest.mark.row("S13")
@pytest.mark.parametrize(("fault_class", "line"), KINDS, ids=[line[:60] for _, line in KINDS])
def test_a_message_alone_is_read_as_its_kind(fault_class: str, line: str) -> None:
    platform = "NotReady" in line or "Admission" in line
    log = LogText("-", f"{line}\n".encode(), trust=Trust.PLATFORM if platform else Trust.JOB)
    diagnosis = classify(Facts(logs=(log,), scheduler_in_log=True), load_rules())
    assert diagnosis.fault_class.value == fault_class
    if fault_class in ("HW_NODE", "NET_FABRIC", "COMM_HANG", "OOM_HOST", "UNKNOWN"):
        assert diagnosis.retry is not Retry.USELESS, "running again, perhaps elsewhere, is what cures these"


@pytest.mark.parametrize("line", lines("harmless_lines.txt"), ids=lambda line: line[:60])
def test_a_harmless_line_is_the_cause_of_nothing(line: str) -> None:
    diagnosis = classify(Facts(logs=(LogText("-", f"{line}\n".encode()),)), load_rules())
    root = diagnosis.root
    assert root is None or root.role is not Role.ROOT or root.signature is None
    assert diagnosis.retry is not Retry.USELESS
    assert not diagnosis.suspects
