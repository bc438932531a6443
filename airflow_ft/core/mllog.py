"""MLPerf's log lines: ``:::MLLOG {json}``, with a clock, a key and a counter of their own.

Feeds ``steplines``. ``tracked_stats``, ``train_loss``, ``throughput``, the ends of blocks and epochs, and the starts of
evaluations carry how far training has come, in steps, samples or epochs.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

MARK = ":::MLL"
_JSON = re.compile(r":::MLL(?:OG)?\s+(?:[\d.]+\s+)?(\{.*\})")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_COUNTERS = (
    "step_num",
    "step",
    "samples_count",
    "samples_num",
    "iteration",
    "first_step_num",
    "epoch_num",
    "first_epoch_num",
    "epoch_count",
    "block_num",
)
_TRAIN_KEYS = frozenset(
    {"tracked_stats", "train_loss", "throughput", "tracked_metrics", "train_step", "trained_samples"}
)
# Evaluation and the ends of blocks say how far training has come; some logs say it nowhere else, or without a number.
_TOLD_BESIDE = frozenset({"eval_start", "block_stop", "epoch_stop"})
_PHASES = {
    "init_start": "startup",
    "init_stop": "train",
    "run_start": "train",
    "block_start": "train",
    "block_stop": "train",
    "epoch_start": "train",
    "eval_start": "eval",
    "eval_stop": "train",
    "checkpoint_start": "checkpoint",
    "save_checkpoint_start": "checkpoint",
    "checkpoint_stop": "train",
    "save_checkpoint_stop": "train",
    "run_stop": "finish",
}


class MlLine(NamedTuple):
    """What a line says. ``counter`` names what ``step`` counts: steps, samples and epochs can't be compared."""

    key: str
    seconds: float | None = None
    step: int | None = None
    counter: str | None = None
    loss: float | None = None
    phase: str | None = None
    counts: bool = False  # training has advanced, also where no number says how far


def read_mllog(line: str) -> MlLine | None:
    """Return what a line of MLPerf's log says; ``None`` if it is none, or a broken one."""
    found = _JSON.search(line)
    if found is None:
        return None
    try:
        entry = json.loads(found[1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
        return None
    key = entry["key"]
    seconds = entry.get("time_ms")
    counts = key in _TRAIN_KEYS or key in _TOLD_BESIDE
    counter, step = _count(entry.get("metadata")) if counts else (None, None)
    return MlLine(
        key=key,
        seconds=seconds / 1000 if isinstance(seconds, (int, float)) and math.isfinite(seconds) else None,
        step=step,
        counter=counter,
        loss=_loss(key, entry.get("value")),
        phase=_PHASES.get(key) or ("train" if key in _TRAIN_KEYS and step is not None else None),
        counts=counts,
    )


def _count(metadata: Any) -> tuple[str | None, int | None]:
    if not isinstance(metadata, dict):
        return None, None
    for name in _COUNTERS:
        if name in metadata and (step := _whole(metadata[name])) is not None:
            return name, step
    return None, None


def _whole(value: object) -> int | None:
    """Return a counter as an integer. Some print ``"[2, 608]"``: the last number moves."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return int(value) if math.isfinite(value) and 0 <= value < 2**62 else None
    numbers = _NUMBER.findall(str(value)[:200])
    return int(float(numbers[-1][:18])) if numbers else None


def _loss(key: str, value: object) -> float | None:
    if isinstance(value, dict):
        value = next((value[name] for name in ("train_loss", "reduced_train_loss", "loss") if name in value), None)
    elif key != "train_loss":
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
