"""Files to facts: what a person or a script hands to ``airflow-ft classify``, as the classifier reads it.

A file is a log of the job, the kernel's log, or what a cluster says about a job; ``auto`` looks at the text. Small logs
are read whole. A large one is read once, block by block, and only the lines that any signature could know, the lines
after them, and its end are kept: memory doesn't grow with the file.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from airflow_ft.core.facts import Facts, LogText
from airflow_ft.core.faults import Evidence, Role, Trust
from airflow_ft.core.rules import RuleSet
from airflow_ft.core.scanning import BLOCK, SMALL, Scanner
from airflow_ft.diagnosis.cluster_objects import as_texts
from airflow_ft.diagnosis.rotation import Joined, grouped

KINDS = ("auto", "log", "dmesg", "k8s_event", "k8s_status", "slurm")
FROM_PLATFORM = ("dmesg", "k8s_event", "k8s_status")
MAX_FILES = 4_096
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x1b\x08\x07\x0c"))

_KERNEL = re.compile(
    r"^(?:kern +:\w+ *: )?(?:\[ *(?:\d+\.\d+|[+ ]+\d+\.\d+|\w{3} \w{3} +\d+ [\d:]+ \d{4}|\w{3} ?\d+ [\d:]+)\]"
    r"|\d+,\d+,\d+,-;|NVRM: |kern +:)"
)
_NODE_FILE = re.compile(r"^(?!.*(?:rank|stderr|stdout|^log$|^\d+$|attempt|train))[A-Za-z][\w.-]*\d$")


class InputError(ValueError):
    """An input can't be used. The message says which one and why."""


def read_inputs(paths: Sequence[str], rules: RuleSet, *, kind: str = "auto", exit_code: int | None = None) -> Facts:
    """Return the facts of some files, of all files of a folder, or of standard input (``-``). Raises ``InputError``."""
    logs: list[LogText] = []
    evidence: list[Evidence] = []
    for path in paths:
        for parts in _files(path):
            file = parts[-1] if parts else None
            with _stream(parts) as stream:
                name = "-" if file is None else _name(file, path)
                _read(cast("BinaryIO", stream), name, _node(file, path), kind, rules, logs, evidence)
    if exit_code:
        code = exit_code - 256 if exit_code > 0x7FFFFFFF else exit_code
        evidence.append(Evidence(source="exit", text=f"the command ended with code {code}", code=code))
    return Facts(logs=tuple(logs), evidence=tuple(evidence), scheduler_in_log=True)


def facts_of_text(text: str, rules: RuleSet, *, kind: str = "auto", exit_code: int | None = None) -> Facts:
    """Return the facts of one text that is already in memory."""
    logs: list[LogText] = []
    evidence: list[Evidence] = []
    _take_small(text.encode("utf-8", "surrogateescape"), "-", None, kind, logs, evidence)
    if exit_code:
        evidence.append(Evidence(source="exit", text=f"the command ended with code {exit_code}", code=exit_code))
    return Facts(logs=tuple(logs), evidence=tuple(evidence), scheduler_in_log=True)


# --- files -----------------------------------------------------------------------------------------------------------


def _stream(parts: tuple[Path, ...]) -> BinaryIO | Joined:
    if not parts:
        return sys.stdin.buffer
    return _opened(parts[0]) if len(parts) == 1 else Joined(parts)


def _files(path: str) -> Iterator[tuple[Path, ...]]:
    """Give the files of an input: each with its older parts before it; none for standard input."""
    if path == "-":
        yield ()
        return
    given = Path(path)
    if given.is_dir():
        found = sorted(file for file in given.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not found:
            raise InputError(f"{path}: a folder without files. Give a folder of logs, a file, or - for standard input.")
        if len(found) > MAX_FILES:
            raise InputError(f"{path}: {len(found)} files; {MAX_FILES} are allowed. Give the folder of one attempt.")
        yield from grouped(found)
        return
    yield (given,)


def _opened(file: Path) -> BinaryIO:
    try:
        if not file.is_file():
            raise InputError(f"{file}: {'not a plain file' if file.exists() else 'no such file'}. Give a log.")
        return file.open("rb")
    except OSError as error:
        raise InputError(f"{file}: can't be read: {error.strerror or error}.") from error


def _name(file: Path, given: str) -> str:
    return str(file.relative_to(given)) if Path(given).is_dir() else str(file)


def _node(file: Path | None, given: str) -> str | None:
    """Return the node that a file of a folder is named after ("n1.log", "gpu-a17/output")."""
    if file is None or not Path(given).is_dir():
        return None
    parts = [file.stem, *reversed(file.relative_to(given).parent.parts)]
    return next((part for part in parts if _NODE_FILE.match(part)), None)


def _read(
    stream: BinaryIO,
    name: str,
    node: str | None,
    kind: str,
    rules: RuleSet,
    logs: list[LogText],
    evidence: list[Evidence],
) -> None:
    try:
        head = stream.read(2)
        if head == b"\x1f\x8b":  # a rotated log
            stream, head = cast("BinaryIO", gzip.GzipFile(fileobj=cast("Any", _Rest(head, stream)), mode="rb")), b""
        head += stream.read(SMALL + 1 - len(head))
        if _is_binary(head):
            evidence.append(
                Evidence(source=name, text=f"{name} is no text; nothing was read from it", role=Role.ADVICE)
            )
            return
        if len(head) <= SMALL:
            _take_small(head, name, node, kind, logs, evidence)
            return
        scanner = Scanner(rules)
        scanner.feed(head)
        while block := stream.read(BLOCK):
            scanner.feed(block)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name}: can't be read: {getattr(error, 'strerror', None) or error}.") from error
    found = kind if kind != "auto" else _kind_of(head[:65_536].decode("utf-8", "replace"))
    logs.append(LogText(name, b"", node, _trust(found), tuple(scanner.lines())))


def _take_small(
    data: bytes, name: str, node: str | None, kind: str, logs: list[LogText], evidence: list[Evidence]
) -> None:
    if (document := _as_json(data)) is not None and kind in ("auto", "k8s_status", "k8s_event"):
        texts = as_texts(document, name)
        logs.extend(texts.logs)
        evidence.extend(texts.evidence)
        return
    found = kind if kind != "auto" else _kind_of(data[:65_536].decode("utf-8", "replace"))
    logs.append(LogText(name, data, node, _trust(found)))


class _Rest:
    """A stream whose first bytes were already taken."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        head, self._head = self._head, b""
        return head + self._stream.read(max(0, size - len(head)) if size >= 0 else -1)


def _is_binary(data: bytes) -> bool:
    """Whether it is no text. Runs of NUL are left in logs by a crashed file system, and broken bytes by a job."""
    sample = data[:65_536].replace(b"\0", b"")
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    return len(sample) > 256 and controls * 20 > len(sample)


def _as_json(data: bytes) -> object | None:
    text = data.strip()
    if not text or text[:1] not in b"{[" or text[-1:] not in b"}]":
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict | list) else None


# --- what kind of text ---------------------------------------------------------------------------------------------


def _kind_of(text: str) -> str:
    """Say what kind of text it is. In doubt it is a log of the job, whose word counts least."""
    lines = [line for line in text.splitlines()[:400] if line.strip()]
    if not lines:
        return "log"
    if sum(bool(_KERNEL.match(line)) for line in lines) * 2 > len(lines):
        return "dmesg"
    return "log"


def _trust(kind: str) -> Trust:
    return Trust.PLATFORM if kind in FROM_PLATFORM else Trust.JOB
