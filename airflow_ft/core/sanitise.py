"""The one sanitiser: what comes out can be an event of a trigger and a row of any of Airflow's databases.

A NaN, a NUL, a lone surrogate or an integer beyond 64 bit in one event stops the whole triggerer, some of them again
after each restart; PostgreSQL's ``jsonb`` refuses NUL and lone surrogates; records must stay small. So every event and
every record passes here. Nothing raises, whatever comes in.

How something is made smaller: strings are cut and lists lose their middle, the longest first; a dictionary loses its
largest members only when nothing else is left. Each place says what was cut, and a trimmed dictionary says so under
``_trimmed``. What fits is returned unchanged, so the function can be applied twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any

from pydantic import BaseModel, JsonValue

DEFAULT_LIMIT = 16_000  # DESIGN §3: an event and a chain record are at most 16 kB
SMALLEST_LIMIT = 256
MAX_DEPTH = 24
MAX_NODES = 20_000
TRIMMED = "_trimmed"

_INT_LIMIT = 2**63
_KEPT_CHARACTERS = 40  # a string is never cut below this: names and numbers survive


def sanitise(value: object, limit_bytes: int = DEFAULT_LIMIT) -> JsonValue:
    """Return ``value`` as JSON that Airflow and PostgreSQL take, at most ``limit_bytes`` long when dumped.

    :param limit_bytes: at least 256.
    """
    limit = max(limit_bytes, SMALLEST_LIMIT)
    plain = _Converter(limit).convert(value)
    size = size_of(plain)
    return plain if size <= limit else _trim(plain, size, limit)


def size_of(value: JsonValue) -> int:
    """Return the bytes of the value as JSON with every character outside ASCII escaped, the longest form."""
    return len(json.dumps(value, allow_nan=False))


# --- to JSON -----------------------------------------------------------------------------------------------------


class _Converter:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nodes = 0
        self.path: set[int] = set()

    def convert(self, value: object, depth: int = 0) -> JsonValue:
        self.nodes += 1
        scalar = self._scalar(value)
        if scalar is not _NOT_SCALAR:
            return scalar  # type: ignore[return-value]
        if depth >= MAX_DEPTH or self.nodes > MAX_NODES or id(value) in self.path:
            return f"<{type(value).__name__}>"
        self.path.add(id(value))
        try:
            return self._container(value, depth)
        finally:
            self.path.discard(id(value))

    def _scalar(self, value: object) -> object:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if -_INT_LIMIT <= value < _INT_LIMIT else _digits(value)
        if isinstance(value, float):
            return _finite(float(value))
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, (bytes, bytearray)):
            return self._text(bytes(value[: self.limit * 4]).decode("utf-8", "replace"))
        if isinstance(value, (datetime, date, time)):
            return value.isoformat()
        if isinstance(value, timedelta):
            return value.total_seconds()
        return _NOT_SCALAR

    def _container(self, value: object, depth: int) -> JsonValue:
        if isinstance(value, BaseModel):
            value = {name: getattr(value, name) for name in type(value).model_fields}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return self._dictionary(value, depth)
        if isinstance(value, (set, frozenset)):
            return [self.convert(item, depth + 1) for item in sorted(value, key=repr)]
        if isinstance(value, (list, tuple)):
            kept, gone = _middle_out(list(value), self.limit // 2)
            items = [self.convert(item, depth + 1) for item in kept]
            return items if not gone else _with_gap(items, gone)
        return self._text(_describe(value))

    def _dictionary(self, value: Mapping[Any, Any], depth: int) -> JsonValue:
        result: dict[str, JsonValue] = {}
        for key, item in value.items():
            name = self._text(key if isinstance(key, str) else _describe(key))[:500]
            while name in result:
                name += "'"
            result[name] = self.convert(item, depth + 1)
            if self.nodes > MAX_NODES:
                break
        return result

    def _text(self, text: str) -> str:
        most = self.limit * 2
        if len(text) > most:
            text = f"{text[:most]}… [{len(text) - most} characters cut]"
        if text.isascii() and "\0" not in text:
            return text
        return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


_NOT_SCALAR = object()


def _finite(number: float) -> float | str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _digits(number: int) -> str:
    # str() of an integer with more than 4,300 digits raises ValueError.
    return str(number) if number.bit_length() < 10_000 else hex(number)


def _describe(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(value)
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - foreign __str__: an event must leave, whatever is in it
        return f"<{type(value).__name__}>"


# --- smaller -----------------------------------------------------------------------------------------------------


def _trim(value: JsonValue, size: int, limit: int) -> JsonValue:
    note = f"{size} bytes were more than {limit}"
    room = limit - size_of({TRIMMED: note}) if isinstance(value, dict) else limit
    while size_of(value) > room:
        smaller = _halve_largest(value)
        if smaller is None:
            value = {} if isinstance(value, dict) else f"<{type(value).__name__}>"
            break
        value = smaller
    if isinstance(value, dict):
        value.pop(TRIMMED, None)
        value[TRIMMED] = note
    return value


def _halve_largest(value: JsonValue) -> JsonValue | None:
    """Make the largest thing smaller: a string or a list, else a dictionary. ``None``: nothing is left to cut."""
    best_cost, best_place = 0, None
    best_dict: tuple[int, dict[str, JsonValue]] = (1, {})
    places: list[tuple[Any, Any]] = [({"": value}, "")]
    root = places[0][0]
    while places:
        parent, key = places.pop()
        item = parent[key]
        cost = _cuttable(item)
        if cost > best_cost:
            best_cost, best_place = cost, (parent, key)
        if isinstance(item, dict):
            if len(item) > best_dict[0]:
                best_dict = (len(item), item)
            places.extend((item, name) for name in item)
        elif isinstance(item, list):
            places.extend((item, index) for index in range(len(item)))
    if best_place is not None:
        parent, key = best_place
        parent[key] = _halved(parent[key])
        return root[""]  # type: ignore[no-any-return]
    if best_dict[0] > 1:
        _drop_half(best_dict[1])
        return root[""]  # type: ignore[no-any-return]
    return None


def _cuttable(item: JsonValue) -> int:
    if isinstance(item, str):
        return len(item) if len(item) > _KEPT_CHARACTERS * 2 else 0
    if isinstance(item, list) and len(item) > 3:
        return size_of(item) // 2  # a string of the same size goes first: a list's head and tail are worth more
    return 0


def _halved(item: Any) -> JsonValue:
    if isinstance(item, str):
        keep = max(_KEPT_CHARACTERS, len(item) // 2 - 30)
        return f"{item[:keep]}… [{len(item) - keep} characters cut]"
    kept, gone = _middle_out(item, max(2, len(item) // 2 - 1))
    return _with_gap(kept, gone)


def _middle_out(items: list[Any], most: int) -> tuple[list[Any], int]:
    """Return the first and the last of the items, ``most`` in all, and how many are gone."""
    if len(items) <= most:
        return items, 0
    head = most - most // 2
    return items[:head] + items[len(items) - most // 2 :], len(items) - most


def _with_gap(items: list[JsonValue], gone: int) -> list[JsonValue]:
    middle = len(items) - len(items) // 2
    return [*items[:middle], f"… [{gone} items cut]", *items[middle:]]


def _drop_half(members: dict[str, JsonValue]) -> None:
    by_size = sorted(members, key=lambda name: size_of({name: members[name]}), reverse=True)
    for name in by_size[: max(1, len(by_size) // 2)]:
        del members[name]
