"""The scores on the labelled corpus and on the real logs beside the checkout stay above what is promised."""

from __future__ import annotations

import pytest

from airflow_ft.diagnosis.signature_files import load_rules
from benchmarks.classifier_scores import SHARED, read_corpus, score, summary, torch_logs
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
