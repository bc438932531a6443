"""Settings that say what is wrong with them, all at once and in words.

The form of every problem is *what was given, what is allowed, what to do*, the field's name first::

    max_restarts: 129 is not allowed. Give a number from 1 to 128, or 0 to switch fault tolerance off.

``CheckedSettings`` raises one ``SettingsError`` with every problem, also those of settings inside settings. What is
allowed stands beside each field: ``setting(3, allowed="Give …", ge=0)``. An unknown key names the one likely meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AllowInfNan, Field, Strict, ValidationError, ValidationInfo
from typing_extensions import Self

from airflow_ft.core.records import Settings

# What a person may write for them: 3 is a number, "3", True and NaN are not; a flag is true or false, not "yes".
Whole = Annotated[int, Strict()]
Seconds = Annotated[float, Strict(), AllowInfNan(False)]
Flag = Annotated[bool, Strict()]


class SettingsError(ValueError):
    """Something that a person wrote is wrong. ``problems`` has one sentence for each mistake."""

    def __init__(self, problems: Iterable[str]):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def setting(default: Any, *, allowed: str, **limits: Any) -> Any:
    """Declare a field: its default, what is allowed (a whole sentence), and pydantic's limits."""
    return Field(default=default, json_schema_extra={"allowed": allowed}, **limits)


def at_least(value: float | None, info: ValidationInfo, other: str) -> float | None:
    """Return ``value``; raise if it is below the field ``other``, which stands before it."""
    least = info.data.get(other)
    if value is not None and least is not None and value < least:
        raise ValueError(f"{value:g} is not allowed. Give at least {other} ({least:g}).")
    return value


class CheckedSettings(Settings):
    """The base of settings that report every problem at once."""

    if not TYPE_CHECKING:  # the type checker keeps the signature that is made from the fields

        def __init__(self, **given: Any):
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise SettingsError(_problems(type(self), error)) from None

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read what ``to_dict`` wrote, or a person in YAML."""
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise SettingsError([f"{cls.__name__}: {data!r:.80} is not allowed. Give settings by name."])
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; settings at their default are left out."""
        return self.model_dump(mode="json", exclude_defaults=True)


def by_name(settings: type[CheckedSettings]) -> str:
    """Say what is allowed for a field that holds settings of its own."""
    return f"Give settings by name: {', '.join(settings.model_fields)}."


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Name the likely meant one of ``known``, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(given).lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    meant = next((name for name in names if close and name.lower() == close[0]), None)
    return f"Did you mean {meant}?" if meant else f"There are {', '.join(names)}."


def _problems(model: type[CheckedSettings], error: ValidationError) -> list[str]:
    problems: list[str] = []
    for one in error.errors():
        cause = one.get("ctx", {}).get("error")
        path = ".".join(str(step) for step in one["loc"])
        if isinstance(cause, SettingsError):  # settings inside settings, or a check that found several things
            problems += [f"{path}.{problem}" if path else problem for problem in cause.problems]
        elif isinstance(cause, ValueError):  # a check of ours: its text is already whole sentences
            problems.append(f"{path}: {cause}")
        elif one["type"] == "extra_forbidden":
            problems.append(f"{path}: there is no such setting. {did_you_mean(one['loc'][-1], model.model_fields)}")
        elif one["type"] == "missing":
            problems.append(f"{path}: nothing is given, and it is needed. {_allowed(model, one)}")
        else:
            problems.append(f"{path}: {one['input']!r:.80} is not allowed. {_allowed(model, one)}")
    return problems


def _allowed(model: type[CheckedSettings], problem: Any) -> str:
    field = model.model_fields.get(str(problem["loc"][0])) if problem["loc"] else None
    extra = field.json_schema_extra if field else None
    return str(extra["allowed"]) if isinstance(extra, dict) and "allowed" in extra else f"{problem['msg']}."
