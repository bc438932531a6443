"""The second signals of the local backend: CPU time, I/O and state of each rank, from /proc.

A rank is every process that was started with the same ``RANK`` (its loader workers inherit it). A job without ranks is
one rank: all of its processes but agents and launchers.
"""

from __future__ import annotations

import os
from contextlib import suppress

from airflow_ft.agent import processes
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import Identity, JobFolder
from airflow_ft.core.vitals import RankVitals

TICKS = os.sysconf("SC_CLK_TCK")
MOST_DESCRIPTORS = 512


def read(folder: JobFolder, identity: Identity, nodes: tuple[str, ...]) -> list[RankVitals]:
    """Return the ranks of all nodes."""
    found: list[RankVitals] = []
    for node in nodes:
        groups: dict[int | None, list[int]] = {}
        for pid in survey.everything(folder, identity, node):
            rank = _number(processes.variable(pid, "RANK"))
            groups.setdefault(rank, []).append(pid)
        if any(rank is not None for rank in groups):
            groups.pop(None, None)  # agent and launcher
        found += [_rank(node, rank, sorted(pids)) for rank, pids in groups.items()]
    return found


def _rank(node: str, rank: int | None, pids: list[int]) -> RankVitals:
    read_ = [entry for pid in pids if (entry := _stat(pid)) is not None]
    members = set(pids)
    mains = [entry for entry in read_ if entry[1] not in members] or read_  # not the child of another one of the rank
    return RankVitals(
        rank=rank,
        node=node,
        state=mains[0][0] if mains else "Z",
        cpu_seconds=sum(entry[2] for entry in read_),
        io_bytes=sum(_io(pid) for pid in pids),
        gpu=any(_holds_gpu(pid) for pid in pids),
        world_size=_number(processes.variable(pids[0], "WORLD_SIZE")),
    )


def _stat(pid: int) -> tuple[str, int, float] | None:
    """State, parent and CPU seconds."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        return fields[0].decode(), int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, IndexError, ValueError):
        return None


def _io(pid: int) -> int:
    """Bytes that the process has read and written, cached or not: a save into memory is a save."""
    total = 0
    with suppress(OSError, ValueError), open(f"/proc/{pid}/io") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("rchar", "wchar"):
                total += int(value)
    return total


def _holds_gpu(pid: int) -> bool:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:MOST_DESCRIPTORS]:
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/dev/nvidia"):
                    return True
    return False


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
