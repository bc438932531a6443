"""One run, opened: stacks with the odd ones first, and what of a preflight did not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_ft.backends.base import StackGroup
from airflow_ft.backends.preflight_reports import evidence
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.core.preflight import diagnosis_of
from airflow_ft.views.run_detail import run_detail
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task
from tests.views.chains import BUG, ended, stored

QUICK = HangSettings(floor_seconds=60.0, ceiling_seconds=120.0, check_interval_seconds=5.0)
READING = 'Thread 7 (active): "MainThread"\n    read (data.py:44)\n    get hf_abcdefghijklmnopqrstuv (train.py:9)\n'


@pytest.mark.row("P9")
def test_stacks_of_a_hang_are_shown_with_the_odd_one_first_and_without_secrets() -> None:
    task = Task(
        [Run(last=30, code=None), Run(first=31, last=60)], policy=FaultTolerancePolicy.full(hang=QUICK), nodes=2
    )
    waits = 'Thread 7 (idle): "MainThread"\n    all_reduce (torch/distributed/c10d.py:7)\n'
    task.backend.stacks = (
        StackGroup(node="n1", ranks=(0, 1), stack=waits),
        StackGroup(node="n2", ranks=(2,), stack=waits),
        StackGroup(node="n2", ranks=(3,), stack=READING),
    )
    task.run_to_the_end()
    detail = run_detail(stored(task), "0-0")
    assert detail is not None
    odd, others = detail.stacks
    assert (odd.who, odd.odd, odd.frames) == ("Rank 3 on n2", True, ("read (data.py:44)", "get *** (train.py:9)"))
    assert (others.who, others.odd) == ("3 ranks: 0-2 on 2 nodes", False)
    assert "Rank 3 on n2 differs from the others. It is in read (data.py:44)." in detail.text


@pytest.mark.row("M8")
def test_what_of_a_preflight_did_not_hold_is_a_table_of_items() -> None:
    failed = [
        ["disk-free root", "failed", "2.1 GB", "> 10 GB", "Clean the disk of the node.", 2.1, ""],
        ["dns", "ok", "resolves", "", "", None, ""],
        ["gpu check", "failed", "7 of 8 GPUs", "8", "Have the node checked: xid 79 <b>", None, ""],
    ]
    task = ended([Run(code=1, words=BUG)])
    chain = stored(task)
    (attempt,) = chain.attempts
    (incident,) = attempt.incidents
    told = diagnosis_of(evidence("n3", {"items": failed}), ("n3", "n4"))
    assert told is not None
    records = replace(chain, attempts=(attempt.but(incidents=(incident.but(diagnosis=told),)),))
    detail = run_detail(records, "0-0")
    assert detail is not None
    assert detail.evidence == (), "nothing is told twice"
    assert [tuple(item.model_dump().values()) for item in detail.preflight] == [
        ("disk-free root", "n3", "failed", "2.1 GB", "> 10 GB", "Clean the disk of the node."),
        ("gpu check", "n3", "failed", "7 of 8 GPUs", "8", "Have the node checked: xid 79 <b>"),
    ]
    cut = told.but(root=None, evidence=(told.evidence[0].but(text="item=disk-free ro"),))
    records = replace(chain, attempts=(attempt.but(incidents=(incident.but(diagnosis=cut),)),))
    detail = run_detail(records, "0-0")
    assert detail is not None
    assert [item.item for item in detail.preflight] == ["item=disk-free ro"]
