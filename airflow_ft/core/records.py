"""The base of everything that crosses a border: trigger arguments, events, chain records, files of the backends.

A record is frozen, validated at construction and read *tolerantly*: a record written by a newer version may have keys
that we don't know (ignored), one written by an older version may lack keys (defaults). So an upgrade while jobs are
deferred loses nothing. Enums that travel in records say in ``_missing_`` what an unknown word means.

Settings that a person writes are the opposite: there an unknown key is a mistake. They derive from ``Settings``.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

RECORD_VERSION = 1


class Record(BaseModel):
    """A frozen value that is stored or sent. Unknown keys are ignored when it is read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON values. Keys that hold their default are left out: records have to stay small."""
        record = self.model_dump(mode="json", exclude_defaults=True)
        version = getattr(self, "version", None)
        return record if version is None else {**record, "version": version}

    @classmethod
    def from_record(cls, data: Any) -> Self:
        """Read what ``to_record`` of this or another version wrote. Raises ``UnreadableRecordError``."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UnreadableRecordError(f"{cls.__name__}: {explain(error)}") from error

    def but(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated like a new one."""
        return self.__class__.model_validate({**dict(self), **changes})


class Settings(BaseModel):
    """Something that a person wrote: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class UnreadableRecordError(ValueError):
    """A stored record can't be understood. The caller reconciles with the cluster; it never guesses."""


def explain(error: ValidationError) -> str:
    """Say every problem of a validation in one line: field, what is wrong, what was given."""
    parts = []
    for problem in error.errors():
        field = ".".join(str(step) for step in problem["loc"]) or "value"
        given = "" if isinstance(problem["input"], dict) else f" (given: {problem['input']!r:.80})"
        parts.append(f"{field}: {problem['msg'].removeprefix('Value error, ')}{given}")
    return "; ".join(parts)
