"""A TrainJob's ``status.trainerStatus``: what a trainer has told Kubeflow about its progress.

Pure; for whoever reads TrainJobs. The status has ``progressPercentage``, ``estimatedRemainingSeconds``, ``metrics``
(a list of ``{"name", "value"}``, the values as strings) and ``lastUpdatedTime``. A metric that is called like a step is
the step; else the percentage is, of 100. ``as_line`` makes the line that ``agent.report`` would print, so that a log
reader can hand it in beside the pods' logs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone

from airflow_ft.core.records import Record

_STEPS = ("step", "global_step", "train/global_step", "iteration", "current_step")
_TOTALS = ("total_steps", "max_steps", "train/max_steps", "total")
_LOSSES = ("loss", "train_loss", "train/loss")


class TrainerStatus(Record):
    """What was told. ``step`` and ``total`` are percent (of 100) if nothing better was."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    remaining_seconds: float | None = None
    updated_at: datetime | None = None


def read_trainer_status(status: object) -> TrainerStatus | None:
    """Read ``status.trainerStatus``, or a whole ``status`` that has it; ``None`` if nothing was told."""
    if not isinstance(status, Mapping):
        return None
    told = status.get("trainerStatus", status)
    if not isinstance(told, Mapping):
        return None
    metrics = _metrics(told.get("metrics"))
    step, total = _whole(metrics, _STEPS), _whole(metrics, _TOTALS)
    percent = _number(told.get("progressPercentage"))
    if step is None and percent is not None and 0 <= percent <= 100:
        step, total = math.floor(percent), 100
    found = TrainerStatus(
        step=step,
        total=total,
        loss=next((metrics[name] for name in _LOSSES if name in metrics), None),
        remaining_seconds=_number(told.get("estimatedRemainingSeconds")),
        updated_at=_time(told.get("lastUpdatedTime")),
    )
    return found if found != TrainerStatus() else None


def as_line(status: TrainerStatus) -> str:
    """Return the line that says the same in a log."""
    loss = status.loss if status.loss is None or math.isfinite(status.loss) else str(status.loss)
    fields = {"step": status.step, "total": status.total, "loss": loss}
    return f"ft-progress {json.dumps({name: value for name, value in fields.items() if value is not None})}"


def _metrics(entries: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in entries if isinstance(entries, list) else ():
        value = _number(entry.get("value")) if isinstance(entry, Mapping) else None
        if isinstance(entry, Mapping) and value is not None:
            found[str(entry.get("name"))] = value
    return found


def _whole(metrics: Mapping[str, float], names: tuple[str, ...]) -> int | None:
    value = next((metrics[name] for name in names if name in metrics), None)
    return int(value) if value is not None and math.isfinite(value) and 0 <= value < 2**62 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
