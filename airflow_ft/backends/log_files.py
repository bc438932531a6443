"""Log files that a person names, by a path or a glob: what they gained since last time, and their ends.

A cursor is a byte offset under the file's path. A file that became shorter was begun anew and is read from its start.
"""

from __future__ import annotations

import glob
from pathlib import Path

from airflow_ft.backends.base import Cursors, LogChunk, LogTail

MOST_FILES = 256


def named(pattern: str) -> list[str]:
    """Return the files that a path or a glob names, at most ``MOST_FILES``."""
    if Path(pattern).is_file():
        return [pattern]
    found = sorted(glob.glob(pattern, recursive=True))[:MOST_FILES]
    return [path for path in found if Path(path).is_file()]


def read_files(pattern: str, cursors: Cursors, limit: int, node: str | None = None) -> tuple[list[LogChunk], Cursors]:
    """Read what the files gained, at most ``limit`` bytes. Raises ``OSError``."""
    found = dict(cursors)
    chunks: list[LogChunk] = []
    for path in named(pattern):
        if limit <= 0:
            break
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            at = found.get(path, 0)
            restarted = size < at
            file.seek(0 if restarted else at)
            data = file.read(limit)
        if data or restarted:
            limit -= len(data)
            found[path] = (0 if restarted else at) + len(data)
            chunks.append(LogChunk(source=path, node=node, data=data, restarted=restarted))
    return chunks, found


def tails_of(pattern: str, limit: int, node: str | None = None) -> list[LogTail]:
    """Return the last ``limit`` bytes of each file. Raises ``OSError``."""
    tails = []
    for path in named(pattern):
        with open(path, "rb") as file:
            offset = max(0, file.seek(0, 2) - limit)
            file.seek(offset)
            data = file.read(limit)
        if data:
            tails.append(LogTail(source=path, node=node, data=data, offset=offset, path=path))
    return tails
