"""What the machine knows about a fault, as evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.backends.base import JobState, NodeReport, Observation
from airflow_ft.backends.local import facts
from airflow_ft.backends.local.folder import JobFolder, now
from airflow_ft.core.faults import FaultClass, Role, Trust


def seen(**node: object) -> Observation:
    report = NodeReport.from_record({"node": "n2", "state": JobState.ENDED, **node})
    return Observation(state=JobState.ENDED, at=now(), nodes=(report,))


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(str(tmp_path), "job")
    Path(made.path).mkdir(parents=True)
    return made


def test_a_good_end_is_no_evidence(folder: JobFolder) -> None:
    """Nothing is said about nothing."""
    assert facts.evidence(folder, seen(code=0)) == []


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"code": 3}, "the command on n2 ended with code 3"),
        ({"code": -9}, "the command on n2 ended by SIGKILL"),
        ({"code": -99}, "the command on n2 ended by signal 99"),
        ({"code": 1, "term": True}, "the command on n2 ended with code 1 after a TERM"),
    ],
)
def test_an_exit_code_is_the_jobs_word(folder: JobFolder, node: dict[str, object], text: str) -> None:
    """A sentence for people, and the code for rules."""
    (fact,) = facts.evidence(folder, seen(**node))
    assert (fact.text, fact.code, fact.trust, fact.source) == (text, node["code"], Trust.JOB, "exit")


def test_unkillable_processes_make_the_node_a_suspect(folder: JobFolder) -> None:
    """By the agent's word only."""
    (fact,) = facts.evidence(folder, seen(unkillable=(7, 8)))
    assert (fact.fault_class, fact.trust, fact.role) == (FaultClass.HW_NODE, Trust.JOB, Role.AMBIGUOUS)
    assert "7, 8" in fact.text


def test_a_full_disk_is_the_platforms_word(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a disk, however many folders are on it."""
    monkeypatch.setattr(facts, "FULL_BYTES", 2**62)
    (fact,) = facts.evidence(folder, seen(), watched=[folder.root, "/nowhere"])
    assert (fact.fault_class, fact.trust, fact.role) == (FaultClass.ENV_ERROR, Trust.PLATFORM, Role.ROOT)
