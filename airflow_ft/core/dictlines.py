"""Lines that are dictionaries: JSON or Python, of loggers, of the Hugging Face Trainer, of fairseq, of DLLogger.

Feeds ``steplines``, which finds where in a line a dictionary begins. An evaluation says so by its keys or by its split.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

from airflow_ft.core.sightings import ENTRIES, Sighting

_T = TypeVar("_T")
LONGEST_PATH = 1_000
_REAL = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,18})?(?:e[-+]?\d{1,3})?")
# What Python prints in a dictionary and doesn't read again: numbers of NumPy and PyTorch, and a loss that has diverged.
_NO_LITERAL = re.compile(
    r"(?<![\w.'\"])(?:(?:np\.|numpy\.)?u?(?:float|int|bfloat)\d+\(([^()]+)\)|tensor\(([^(),]+)[^()]*\)"
    r"|(-?(?:nan|inf))(?![\w'\"]))"
)
_STEP_KEYS = (
    "step", "global_step", "iteration", "iter", "num_updates", "train/global_step", "train_num_updates",
    "current_steps", "trainer/global_step", "training/global_step", "train_step", "update", "_step",
)  # fmt: skip
_TOTAL_KEYS = ("total", "max_steps", "total_steps")
_FRACTION = re.compile(r"(\d{1,12})/(\d{1,12})")
_EVAL_KEYS = ("eval_", "eval/", "val_", "val/", "test_", "valid_", "validation_", "valid/", "validation/", "test/")
_SPLIT_KEYS = ("split", "mode", "stage", "subset", "dataset")
_EVAL_SPLITS = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
_INNER = ("data", "metrics", "train", "scalars")  # loggers put the numbers one level down
_LOSS_KEYS = ("loss", "train_loss", "train/loss", "lm loss")


def parse_mapping(text: str) -> object:
    """Return what the text spells, if it ends like a dictionary; ``None`` if nothing."""
    if len(text) > 4_000 or not text.endswith("}"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if "\\" in text:
        return None  # a Python literal with escapes: Python would warn about the wrong ones
    try:
        return ast.literal_eval(_NO_LITERAL.sub(_literal, text))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _literal(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    return f"'{number}'" if number.lstrip("-") in ("nan", "inf") else number


def from_mapping(found: object) -> Sighting | None:
    """Return what a dictionary says; ``None`` if it is none, or says nothing."""
    if not isinstance(found, dict):
        return None
    inner = next((value for key in _INNER if isinstance(value := found.get(key), dict)), None)
    found = {**inner, **found} if inner is not None else found
    if "train_runtime" in found:
        return Sighting(phase="finish")
    step = _first(found, _STEP_KEYS, _whole)
    of = _FRACTION.fullmatch(str(found.get("global_step/max_steps", "")))  # ms-swift: "5/600"
    step = int(of[1]) if of else step
    loss = _first(found, _LOSS_KEYS, _real)
    split = next((found[key] for key in _SPLIT_KEYS if isinstance(found.get(key), str)), "")
    if split.lower() in _EVAL_SPLITS or (
        (step is None or loss is None) and any(str(key).startswith(_EVAL_KEYS) for key in found)
    ):
        return Sighting(phase="eval")
    epoch = None
    if step is None and isinstance(pair := found.get("step"), list) and pair:  # DLLogger: [epoch, iteration]
        numbers = [_whole(number) for number in pair[:2]]
        epoch, step = (numbers[0], numbers[-1]) if len(numbers) > 1 else (None, numbers[0])
    counts = step is None and loss is not None and _real(found.get("epoch")) is not None
    phase = found.get("phase")
    sighting = Sighting(
        counter=ENTRIES if counts else None,
        epoch=epoch,
        restarts=epoch is not None,
        step=step,
        total=int(of[2]) if of else _first(found, _TOTAL_KEYS, _whole) if step is not None else None,
        loss=loss,
        phase=str(phase)[:40] if isinstance(phase, str) else ("train" if step is not None else None),
        saved=_first(found, ("checkpoint", "saved"), _whole),
        path=_first(found, ("checkpoint_path",), _path_text),
        loaded=_first(found, ("loaded", "resumed_from"), _whole),
        from_scratch=found.get("from_scratch") is True,
        lr=_first(found, ("lr", "learning_rate", "train/lr", "train/learning_rate"), _real),
    )
    return sighting if sighting.says_something else None


def _first(found: dict[object, object], keys: tuple[str, ...], read: Callable[[object], _T | None]) -> _T | None:
    return next((value for key in keys if (value := read(found.get(key))) is not None), None)


def _whole(value: object) -> int | None:
    is_text = isinstance(value, str) and value.isdecimal() and len(value) < 19  # fairseq's numbers are strings
    if is_text or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # type: ignore[call-overload]
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:  # fairseq prints strings
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _real(value: object) -> float | None:
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity"):
        return math.nan
    if isinstance(value, str) and _REAL.fullmatch(value):
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _path_text(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= LONGEST_PATH else None
