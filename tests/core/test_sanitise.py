from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.core.faults import Evidence, FaultClass
from airflow_ft.core.sanitise import TRIMMED, sanitise, size_of

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats()
    | st.text(st.characters(), max_size=300)  # lone surrogates and NUL too
    | st.binary(max_size=50)
    | st.datetimes()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(st.characters(), max_size=20) | st.integers() | st.none(), inner, max_size=6)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=30,
)


def walk(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *value.keys(), *(x for item in value.values() for x in walk(item))]
    if isinstance(value, list):
        return [value, *(x for item in value for x in walk(item))]
    return [value]


@pytest.mark.row("P12")
@given(value=VALUES, limit=st.integers(256, 3_000))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_in_can_be_stored(value: object, limit: int) -> None:
    clean = sanitise(value, limit)
    text = json.dumps(clean, allow_nan=False)
    assert json.loads(text) == clean
    assert len(text) <= limit
    for item in walk(clean):
        if isinstance(item, str):
            item.encode("utf-8")
            assert "\0" not in item
        if isinstance(item, int):
            assert -(2**63) <= item < 2**63
        if isinstance(item, float):
            assert math.isfinite(item)
    assert sanitise(clean, limit) == clean


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: object


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_each_kind_has_its_json() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    value = {
        "nan": math.nan, "inf": -math.inf, "big": 2**70, "nul": "a\0b", "half": "x\ud800y", 1: (1, 2), "set": {2, 1},
        "bytes": b"\xffok", "at": at, "enum": Colour.RED, "point": Point(1.5, Point(2.0, None)), "rude": Rude(),
        "record": Evidence(source="exit", fault_class=FaultClass.HW_NODE),
    }  # fmt: skip
    clean = sanitise(value)
    assert isinstance(clean, dict)
    assert clean["record"]["fault_class"] == "HW_NODE"  # type: ignore[index, call-overload]
    del clean["record"]
    assert clean == {
        "nan": "NaN", "inf": "-Infinity", "big": str(2**70), "nul": "a\ufffdb", "half": "x?y", "1": [1, 2],
        "set": [1, 2], "bytes": "\ufffdok", "at": "2026-01-01T00:00:00+00:00", "enum": "red", "rude": "<Rude>",
        "point": {"x": 1.5, "y": {"x": 2.0, "y": None}},
    }  # fmt: skip


def test_the_longest_is_cut_first_and_it_says_so() -> None:
    value = {"version": 1, "chain_id": "c" * 40, "log": "x" * 100_000, "items": list(range(10_000)), "end": "fault"}
    clean = sanitise(value, 2_000)
    assert isinstance(clean, dict)
    assert (clean["version"], clean["chain_id"], clean["end"]) == (1, "c" * 40, "fault")
    assert "characters cut" in str(clean["log"])
    assert "items cut" in str(clean["items"])
    assert TRIMMED in clean
    assert size_of(clean) <= 2_000


def test_circles_depth_and_width_end() -> None:
    circle: dict[str, Any] = {"a": 1}
    circle["self"] = circle
    assert sanitise(circle) == {"a": 1, "self": "<dict>"}
    deep: Any = "end"
    for _ in range(1_000):
        deep = [deep]
    assert size_of(sanitise(deep)) < 200
    assert size_of(sanitise({str(n): {str(m): m for m in range(300)} for n in range(300)})) <= 16_000
    assert sanitise(10**6_000) is not None
