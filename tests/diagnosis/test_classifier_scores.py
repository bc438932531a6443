"""The scores on the labelled corpus and on the real logs beside the checkout stay above what is promised."""

from __future__ import annotations

import json

import pytest

from airflow_ft.core import calibration
from airflow_ft.diagnosis.signature_files import load_rules
from benchmarks import classifier_accuracy
from benchmarks.classifier_scores import (
    SHARED,
    cross_validated,
    evidence,
    first_tries,
    read_cases,
    read_corpus,
    score,
    summary,
    torch_logs,
)
from tests.shared_inputs import shared


@pytest.mark.row("P14")
@pytest.mark.row("S13")
def test_scores_on_the_corpus() -> None:
    shared("corpus")
    told = summary(score(read_corpus(SHARED), load_rules()))
    assert told["strict"] >= 0.92
    assert told["lenient"] >= 0.97
    assert told["macro_f1"] >= 0.90
    assert told["false_stop"] <= 0.01
    assert told["false_exclude"] <= 0.02
    assert told["culprit"] >= 0.85


@pytest.mark.row("P2")
@pytest.mark.row("P14")
def test_every_real_torchrun_log_gets_its_class_and_its_culprit() -> None:
    shared("torch-logs")
    told = torch_logs(SHARED, load_rules())
    assert told["wrong"] == []
    assert told["n"] >= 20


@pytest.mark.row("P14")
def test_what_is_said_of_confidence_is_what_was_measured_at_first_sight() -> None:
    """The table of chances is the record of first tries, and is honest on rounds that it was not made from."""
    rules = load_rules()
    unseen = first_tries(read_cases())
    assert len(unseen) >= 200
    assert evidence(unseen, rules) == calibration.SEEN
    assert cross_validated(unseen, rules)["expected_error"] <= 0.10


@pytest.mark.row("P14")
def test_the_projects_own_cases_stay_solved() -> None:
    told = summary(score(read_cases(), load_rules()))
    assert told["strict"] >= 0.97
    assert told["false_stop"] <= 0.01
    assert told["false_exclude"] <= 0.02
    assert told["culprit"] >= 0.85


@pytest.mark.row("P14")
def test_the_published_accuracy_is_what_was_recorded() -> None:
    published = json.loads(classifier_accuracy.TARGET.read_text())
    assert published["unseen"] == classifier_accuracy.accuracy(first_tries(read_cases()))
