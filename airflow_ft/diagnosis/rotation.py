"""Rotated logs: ``train.log.2.gz``, ``train.log.1`` and ``train.log`` are one log, the oldest part first.

Feeds ``inputs``. Only files beside the newest part, and named after it, are parts of it: ``rank.1`` without a ``rank``
is a log of its own. Parts may be packed with gzip; the joined stream is read once, like a file.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

_PART = re.compile(
    r"^(?P<base>.+?)[.-](?:(?P<number>\d{1,4})|(?P<date>\d{8}(?:-\d{1,6})?|\d{4}-\d\d-\d\d\S*?))(?:\.gz)?$"
)


def grouped(files: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Return the files with the parts of one log together, the oldest first and the newest last."""
    found = list(files)
    newest = set(found)
    parts: dict[Path, list[tuple[str, int, Path]]] = {file: [] for file in found}
    for file in found:
        told = _PART.match(file.name)
        base = file.with_name(told["base"]) if told is not None else file
        if told is not None and base in newest:
            age = -int(told["number"]) if told["number"] else 0
            parts[base].append((told["date"] or "", age, file))
            del parts[file]
    return [(*(file for _, _, file in sorted(older)), base) for base, older in parts.items()]


class Joined:
    """The parts of one log as one stream. Raises what reading a part raises."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._waiting = list(files)
        self._open: BinaryIO | None = None

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, as many as were asked for, or fewer at the end of the last part."""
        pieces: list[bytes] = []
        missing = size
        while missing != 0:
            if self._open is None:
                if not self._waiting:
                    break
                self._open = _opened(self._waiting.pop(0))
            piece = self._open.read(missing)
            if not piece or size < 0:
                self._open.close()
                self._open = None
            pieces.append(piece)
            missing = missing - len(piece) if size >= 0 else -1
        return b"".join(pieces)

    def __enter__(self) -> Joined:
        """Return the stream."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the part that is open."""
        if self._open is not None:
            self._open.close()


def _opened(file: Path) -> BinaryIO:
    with file.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return cast("BinaryIO", gzip.open(file, "rb")) if packed else cast("Any", file.open("rb"))
