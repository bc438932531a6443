"""Signature files: those of the package, and those that a user's configuration names.

Read once per set of paths and kept: a triggerer watches many attempts with the same rules. A file that can't be read or
understood is an error that names it; it is never left out silently, since a missing rule would look like "no match".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from pathlib import Path

import yaml

from airflow_ft.core.rules import RuleSet, Signature, SignatureError, compile_signatures, parse_signatures


def load_signatures(user_files: Iterable[str | Path] = ()) -> tuple[Signature, ...]:
    """Return all signatures, the users' first. Raises ``SignatureError`` with every mistake of every file."""
    return load_rules(user_files).signatures


def load_rules(user_files: Iterable[str | Path] = ()) -> RuleSet:
    """Return all signatures, compiled. A folder stands for the ``*.yaml`` in it. Raises ``SignatureError``."""
    return _load(tuple(str(path) for path in user_files))


@lru_cache(maxsize=8)
def _load(user_files: tuple[str, ...]) -> RuleSet:
    found: list[Signature] = []
    mistakes: list[str] = []
    for name, text, user in [*_own_files(), *_user_files(user_files, mistakes)]:
        try:
            found += parse_signatures(yaml.safe_load(text), name, user=user)
        except yaml.YAMLError as error:
            mistakes.append(f"{name}: no YAML: {str(error)[:300]}")
        except SignatureError as error:
            mistakes.append(str(error))
    if mistakes:
        raise SignatureError("\n".join(mistakes))
    return compile_signatures(found)


def _own_files() -> list[tuple[str, str, bool]]:
    folder = resources.files("airflow_ft.core").joinpath("signatures")
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".yaml")), key=lambda item: item.name)
    if not files:
        raise SignatureError("airflow_ft.core/signatures: no files. The package is not installed completely.")
    return [(item.name, item.read_text(encoding="utf-8"), False) for item in files]


def _user_files(paths: tuple[str, ...], mistakes: list[str]) -> list[tuple[str, str, bool]]:
    found = []
    for given in paths:
        path = Path(given)
        files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not files:
            mistakes.append(f"{given}: a folder without a *.yaml file.")
        for file in files:
            try:
                found.append((str(file), file.read_text(encoding="utf-8"), True))
            except (OSError, UnicodeDecodeError) as error:
                mistakes.append(f"{file}: can't be read: {error}")
    return found
