"""Policy files: YAML in, YAML out. The one module of the core that knows YAML, and that opens a file.

YAML 1.1 takes ``off``, ``no`` and ``yes`` for truth values, so ``mode: off`` would mean ``false``; the last of two
equal keys would silently win. Neither is what a person meant: only ``true`` and ``false`` are truth values here,
numbers like ``1e3`` are numbers, and a key that is given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from airflow_ft.core.settings import SettingsError

MAX_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Safe YAML with the truth values and numbers of YAML 1.2."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping. A key that is given twice is an error."""
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = key.value, key.start_mark.line + 1
            if isinstance(name, str) and name in seen:
                raise SettingsError([f"{name}: given twice, in lines {seen[name]} and {line}. Keep one of them."])
            if isinstance(name, str):
                seen[name] = line
        return super().construct_mapping(node, deep)


_NUMBER = re.compile(
    r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$|^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)$|^[-+]?\.inf$|^\.nan$"
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """Quotes a text that YAML 1.1 *or* our reader would take for something else, as ``0E0``."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))


def read_document(path: str | Path) -> Any:
    """Return what a YAML file holds. Raises ``SettingsError`` that names the file and, for bad YAML, the line."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SettingsError([f"{path}: larger than {MAX_BYTES:,} bytes. That is no policy."])
        return parse_document(data.decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError([f"{path}: can't be read: {error.strerror}."]) from None
    except UnicodeDecodeError:
        raise SettingsError([f"{path}: no UTF-8 text."]) from None
    except SettingsError as error:
        named = str(path)
        raise SettingsError(one if one.startswith(named) else f"{named}: {one}" for one in error.problems) from None


def parse_document(text: str) -> Any:
    """Return what a YAML text holds. Raises ``SettingsError``."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise SettingsError([f"{where}no YAML: {getattr(error, 'problem', None) or str(error)[:200]}."]) from None
    except RecursionError:
        raise SettingsError(["no YAML: nested too deep."]) from None


def write_document(document: dict[str, Any]) -> str:
    """Return YAML that ``read_document`` reads back, also in a reader of YAML 1.1."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
