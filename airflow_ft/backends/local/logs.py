"""The logs of a job: what was written since last time, and their ends.

``n1/output`` is what command and agent said on a node; torchrun's ranks are in it too (teed). ``n1/rank0.stderr`` is
one rank's own file (0 is the *local* rank), of the newest generation; they are only in ``tails``, because reading on
in both would give every line twice.

A cursor is a byte offset. Beside it stands the file's inode under ``SOURCE#inode``: a file that was renamed away is
read to its end under its new name before the new one is begun; one that became shorter was truncated and is read
anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from airflow_ft.backends.base import Cursors, LogChunk, LogTail
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import JobFolder

INODE = "#inode"
_RANK = re.compile(r"/attempt_(\d+)/(\d+)/(stdout|stderr)\.log$")
MAX_RANK_FILES = 2000  # of all generations of one node: a bound against a folder that a job fills


class Source(NamedTuple):
    """One log file."""

    name: str
    node: str
    path: str


def read(folder: JobFolder, cursors: Cursors, limit: int) -> tuple[list[LogChunk], Cursors]:
    """Return what was written since ``cursors``, at most ``limit`` bytes, fairly shared."""
    chunks, moved = [], dict(cursors)
    sources = [Source(f"{node}/output", node, _output(folder, node)) for node in survey.nodes_started(folder)]
    for number, source in enumerate(sources):
        share = limit // (len(sources) - number)
        for chunk in _read_on(source, moved, share):
            limit -= len(chunk.data)
            chunks.append(chunk)
    return chunks, moved


def tails(folder: JobFolder, limit: int) -> list[LogTail]:
    """Return the last ``limit`` bytes of every log, afresh."""
    found = []
    for node in survey.nodes_started(folder):
        for source in [Source(f"{node}/output", node, _output(folder, node)), *_rank_sources(folder, node)]:
            tail = _tail(source, limit)
            if tail:
                found.append(tail)
    return found


def _output(folder: JobFolder, node: str) -> str:
    return os.path.join(folder.node(node), "output.log")


def _read_on(source: Source, cursors: Cursors, limit: int) -> Iterator[LogChunk]:
    """Yield what is new in one log and move its cursors."""
    if not os.path.isfile(source.path):
        return
    with open(source.path, "rb") as file:
        found = os.fstat(file.fileno())
        offset, inode = cursors.get(source.name, 0), cursors.get(source.name + INODE)
        restarted = inode is not None and (inode != found.st_ino or found.st_size < offset)
        if inode is not None and inode != found.st_ino:
            rest = _rest_of_renamed(source, inode, offset, limit)
            if rest:
                cursors[source.name] = offset + len(rest)
                yield LogChunk(source=source.name, node=source.node, data=rest)
                return
        offset = 0 if restarted else offset
        file.seek(offset)
        data = file.read(max(0, limit))
        cursors.update({source.name: offset + len(data), source.name + INODE: found.st_ino})
        if data or restarted:
            yield LogChunk(source=source.name, node=source.node, data=data, restarted=restarted)


def _rest_of_renamed(source: Source, inode: int, offset: int, limit: int) -> bytes:
    """What was not read yet of a file that has another name now (``output.log.1``)."""
    directory = os.path.dirname(source.path)
    try:
        with os.scandir(directory) as entries:
            path = next((entry.path for entry in entries if entry.inode() == inode), None)
        if path is None:
            return b""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(max(0, limit))
    except OSError:
        return b""


def _rank_sources(folder: JobFolder, node: str) -> list[Source]:
    """The newest file of each rank and stream."""
    newest: dict[str, tuple[float, str]] = {}
    for path in _rank_files(os.path.join(folder.node(node), "ranks")):
        match = _RANK.search(path)
        if match:
            name = f"{node}/rank{int(match.group(2))}.{match.group(3)}"
            newest[name] = max(newest.get(name, (0.0, "")), (_modified(path), path))
    return [Source(name, node, path) for name, (_, path) in sorted(newest.items())]


def _rank_files(directory: str) -> list[str]:
    found = []
    for folder, _, names in os.walk(directory):
        found += [os.path.join(folder, name) for name in names]
        if len(found) > MAX_RANK_FILES:
            break
    return found


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _tail(source: Source, limit: int) -> LogTail | None:
    try:
        with open(source.path, "rb") as file:
            offset = max(0, os.fstat(file.fileno()).st_size - limit)
            file.seek(offset)
            data = file.read(max(0, limit))
    except OSError:
        return None
    return LogTail(source=source.name, node=source.node, data=data, offset=offset, path=source.path)
