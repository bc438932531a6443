"""A policy on its way through records: written with a deferral, read by a trigger of the same or another version.

What a person writes is strict (``policy``): an unknown key is a mistake. What a *newer version of ourselves* wrote is
not: keys and values that this version doesn't know fall back to their defaults, because an upgrade in the middle of a
training must not leave it without a watch.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.sanitise import size_of
from airflow_ft.core.settings import SettingsError

MAX_RECORDED_BYTES = 3_000  # of the 16 kB of an attempt's record


def write_policy(policy: FaultTolerancePolicy) -> dict[str, Any]:
    """Return the policy as plain JSON values."""
    return policy.model_dump(mode="json")


def read_policy(record: Any) -> FaultTolerancePolicy:
    """Return the policy of a record. Fields that can't be read have their default."""
    known = _known(FaultTolerancePolicy, record)
    try:
        return FaultTolerancePolicy(**known)
    except SettingsError:
        readable = {name: value for name, value in known.items() if _readable({name: value})}
        return FaultTolerancePolicy(**readable) if _readable(readable) else FaultTolerancePolicy.advanced()


def _readable(fields: dict[str, Any]) -> bool:
    try:
        FaultTolerancePolicy(**fields)
    except SettingsError:
        return False
    return True


def _known(model: type[BaseModel], record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        return {}
    fields = {name: value for name, value in record.items() if name in model.model_fields}
    for name, value in fields.items():
        kind = model.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
            fields[name] = _known(kind, value)
    if record.get("mode") != "full":
        fields.pop("hang", None)
    return fields


def recorded_policy(policy: FaultTolerancePolicy) -> dict[str, Any]:
    """Return what the chain keeps of the policy: what is not at its default; nothing if that is too much."""
    record = policy.to_dict()
    return record if size_of(record) <= MAX_RECORDED_BYTES else {}
