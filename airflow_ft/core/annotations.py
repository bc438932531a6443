"""The annotations of a job's metadata that switch fault tolerance on elsewhere (mission M7), read as policy fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_ft.core.settings import SettingsError, did_you_mean

MAX_RESTARTS = 128  # mission M2
ANNOTATIONS = "fault-tolerance/"  # mission M7


def has_annotations(metadata: Mapping[str, Any]) -> bool:
    """Whether ``metadata`` says anything about fault tolerance."""
    annotations = metadata.get("annotations", metadata) or {}
    return isinstance(annotations, Mapping) and any(str(key).startswith(ANNOTATIONS) for key in annotations)


def read_annotations(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's fields that the annotations give. Raises ``SettingsError`` with every mistake.

    :param metadata: ``{"annotations": {...}}`` as in a manifest, or the annotations themselves.
    """
    annotations = metadata.get("annotations", metadata) or {}
    given = {key: value for key, value in annotations.items() if str(key).startswith(ANNOTATIONS)}
    changes: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in given.items():
        name = key.removeprefix(ANNOTATIONS)
        if name not in _ANNOTATION:
            known = [ANNOTATIONS + known for known in _ANNOTATION]
            problems.append(f"{key}: there is no such annotation. {did_you_mean(key, known)}")
            continue
        field, read, allowed = _ANNOTATION[name]
        changes[field] = read(value) if isinstance(value, str) else None
        if changes[field] is None:
            problems.append(f"{key}: {value!r:.80} is not allowed. {allowed}")
    if problems:
        raise SettingsError(problems)
    changes["mode"] = "full" if changes.pop("hang", False) else "advanced"
    return changes


def _count(text: str) -> int | None:
    whole = int(text) if re.fullmatch("[0-9]{1,3}", text) else None
    return whole if whole is not None and whole <= MAX_RESTARTS else None


def _flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


_STRING_COUNT = 'Give a string from "1" to "128", or "0" to switch it off.'
_STRING_FLAG = 'Give the string "true" or "false".'
_ANNOTATION: dict[str, tuple[str, Any, str]] = {
    "job-retry-num": ("max_restarts", _count, _STRING_COUNT),
    "job-unconditional-retry": ("unconditional", _flag, _STRING_FLAG),
    "hang-retry": ("hang", _flag, _STRING_FLAG),
    "pod-retry-num": ("pod_restarts", _count, _STRING_COUNT),
}
