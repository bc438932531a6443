from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.progress import ProgressReader
from airflow_ft.core.trainer_status import TrainerStatus, as_line, read_trainer_status

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
TOLD = {
    "progressPercentage": 45,
    "estimatedRemainingSeconds": 1200,
    "metrics": [
        {"name": "loss", "value": "2.31"}, {"name": "global_step", "value": "4500"},
        {"name": "max_steps", "value": "10000"},
    ],
    "lastUpdatedTime": "2026-01-01T00:00:00Z",
}  # fmt: skip


def test_a_step_among_the_metrics_is_better_than_the_percentage() -> None:
    found = read_trainer_status({"conditions": [], "trainerStatus": TOLD})
    assert found == TrainerStatus(step=4500, total=10000, loss=2.31, remaining_seconds=1200, updated_at=AT)
    assert read_trainer_status({**TOLD, "metrics": []}) == TrainerStatus(
        step=45, total=100, remaining_seconds=1200, updated_at=AT
    )


@pytest.mark.parametrize(
    "told",
    [None, {}, {"trainerStatus": None}, {"trainerStatus": "x"}, {"progressPercentage": 300}, {"metrics": [3, {}]}],
)  # fmt: skip
def test_what_says_nothing(told: object) -> None:
    assert read_trainer_status(told) is None


@pytest.mark.parametrize("value", ["nan", "inf", "x", True, None, "1e999"])
def test_odd_numbers_break_nothing(value: object) -> None:
    found = read_trainer_status({"progressPercentage": 7, "metrics": [{"name": "step", "value": value}]})
    assert found is not None
    assert found.step in (7, None)


def test_its_line_is_read_like_any_other() -> None:
    reader, found = ProgressReader(), read_trainer_status(TOLD)
    assert found is not None
    assert reader.feed(as_line(found), AT, "status")
    assert (reader.progress.step, reader.progress.total, reader.progress.loss) == (4500, 10000, 2.31)
    assert '"nan"' in as_line(TrainerStatus(step=1, loss=float("nan")))
