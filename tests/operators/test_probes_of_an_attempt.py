"""``PreflightOperator`` and ``BisectOperator`` behind a stage of the explicit form: which nodes, which attempt."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.bisect import BisectResult
from airflow_ft.operators.bisect import BisectOperator, _result, result_of_value

JOB = LocalJob(command="true")
ATTEMPT = {"chain_id": "c", "number": 2, "generation": 1, "nodes": ["n1", "n2"], "text": "It failed."}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "free"),
        ({"attempt": ATTEMPT}, ["n1", "n2"]),
        ({"attempt": ATTEMPT, "nodes": "n3,n4"}, ["n3", "n4"]),
        ({"attempt": ATTEMPT, "nodes": "free"}, "free"),
        ({"attempt": {**ATTEMPT, "nodes": []}}, "free"),
        ({"attempt": None}, "free"),
    ],
)
def test_the_nodes_are_the_attempts_unless_others_are_named(given: dict[str, Any], wanted: Any) -> None:
    assert BisectOperator(task_id="search", job=JOB, **given)._wanted() == wanted


def test_what_is_found_says_which_attempt_it_is_about() -> None:
    found = BisectOperator(task_id="search", job=JOB, attempt=ATTEMPT)._handed_on({"text": "Bisect: n1."})
    assert found == {"chain_id": "c", "number": 2, "generation": 1, "text": "Bisect: n1."}


def test_a_result_is_the_same_after_its_way_through_airflow() -> None:
    result = BisectResult(
        faulty_nodes=("n1",),
        faulty_links=(("n2", "n3"),),
        cleared_nodes=("n2", "n3"),
        inconclusive=("n4",),
        tests=5,
        rounds=3,
        confidence={"n1": 0.99, "n4": 0.5},
        nothing_wrong=0.1,
    )
    assert result_of_value(_result(result)) == result
