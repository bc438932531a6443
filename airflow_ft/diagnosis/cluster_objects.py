"""What a cluster says about a job as JSON (pods, events), as lines that signatures can read. Feeds ``inputs``.

No schema is asked for: ``kubectl get … -o json``, a list of pods by name, one status or one event are all walked the
same way. Each pod (an object that names a node, or has a status of its own) becomes a text of the platform with its
reasons, messages, conditions and exit codes; what a container printed (``log``, ``log_tail``) stays the job's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from airflow_ft.core.facts import LogText
from airflow_ft.core.faults import Evidence, Trust

MAX_DEPTH, MAX_TEXTS = 40, 2_000
_LOGS = ("log", "log_tail", "logs")
_TOLD = ("reason", "message", "phase", "waiting", "condition", "type", "status", "signal")
_NODES = ("nodeName", "node")
_CODES = ("exitCode", "exit", "exit_code")


@dataclass
class ClusterTexts:
    """Texts of the platform and of the job, and exit codes."""

    logs: list[LogText] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


def as_texts(document: object, source: str) -> ClusterTexts:
    """Return what an object of the cluster, or a collection of them, says."""
    texts = ClusterTexts()
    for name, item in _units(document, source):
        if len(texts.logs) >= MAX_TEXTS:
            break
        node = _first(item, _NODES)
        said = list(_said(item))
        if said:
            texts.logs.append(LogText(name, "\n".join(said).encode(), node, Trust.PLATFORM))
        for printed in _printed(item):
            texts.logs.append(LogText(f"{name}/log", printed.encode(), node))
    return texts


def _units(document: object, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Split a collection into its members: a list, ``items``, ``pods``, or a mapping whose values are all objects."""
    if isinstance(document, list):
        for number, item in enumerate(document):
            yield from _units(item, _called(item) or f"{name}[{number}]", depth + 1)
        return
    if isinstance(document, dict) and depth < 4:
        for key in ("items", "pods", "events"):
            if isinstance(document.get(key), list) and set(document) <= {key, "kind", "apiVersion", "metadata"}:
                yield from _units(document[key], name, depth + 1)
                return
        if document and all(isinstance(value, dict) for value in document.values()) and "status" not in document:
            for key, value in document.items():
                yield from _units(value, str(key), depth + 1)
            return
    yield _called(document) or name, document


def _called(item: object) -> str:
    if not isinstance(item, dict):
        return ""
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else item.get("name")
    return name if isinstance(name, str) else ""


def _said(item: object, depth: int = 0) -> Iterator[str]:
    """Return the lines that an object says about itself, the conditions that are true first."""
    if depth > MAX_DEPTH:
        return
    if isinstance(item, str):
        yield from item.splitlines()
    elif isinstance(item, list):
        for part in item:
            yield from _said(part, depth + 1)
    elif isinstance(item, dict):
        line = _line(item)
        if line:
            yield line
        for key, value in item.items():
            if key in _LOGS or key in ("metadata", "spec", "env", "annotations", "labels", "managedFields"):
                continue
            if isinstance(value, dict | list):
                yield from _said(value, depth + 1)


def _line(item: dict[str, object]) -> str:
    if item.get("status") in ("False", "Unknown") and "type" in item and "message" not in item:
        return ""
    parts = [f"{value}" for key in _TOLD if isinstance(value := item.get(key), str) and value != "True"]
    if item.get("status") == "True" and "type" in item:
        parts.insert(1, "True")
    parts += [
        f"Exit Code: {value}"
        for key in _CODES
        if isinstance(value := item.get(key), int) and not isinstance(value, bool)
    ]
    return " ".join(parts)


def _printed(item: object, depth: int = 0) -> Iterator[str]:
    if depth > MAX_DEPTH or not isinstance(item, dict | list):
        return
    for key, value in item.items() if isinstance(item, dict) else enumerate(item):
        if key in _LOGS and isinstance(value, str):
            yield value
        elif key in _LOGS and isinstance(value, list):
            yield "\n".join(str(line) for line in value)
        else:
            yield from _printed(value, depth + 1)


def _first(item: object, keys: Iterable[str], depth: int = 0) -> str | None:
    """Return the first text under one of these keys, wherever it is."""
    if depth > MAX_DEPTH or not isinstance(item, dict | list):
        return None
    values: Iterable[object] = item
    if isinstance(item, dict):
        for key in keys:
            if isinstance(value := item.get(key), str) and value:
                return value
        values = item.values()
    return next((found for value in values if (found := _first(value, keys, depth + 1))), None)
