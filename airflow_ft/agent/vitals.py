"""What the ranks on this node do right now: CPU time, bytes moved, state, and their GPUs as NVML reads them.

Run as a short-lived process (a fork of the supervisor each ``--vitals`` seconds), because a driver that hangs must
hang nobody else. Its result is one small dictionary, which the supervisor says as a line and which every backend finds
in the log: ``{"ranks": [{"rank", "state", "cpu", "io", "faults", "world", "gpu": [percent, watts]}]}``. "gpu" is null
for a rank without a GPU, its numbers are null where NVML can't be asked. The local backend calls ``ranks_of`` itself.

A rank is every process that was started with the same RANK (its loader workers inherit it); a job without ranks is one
rank. NVML says which GPU a process holds where pids are the same inside and outside; else the local rank tells.
"""

from __future__ import annotations

import os
from typing import Any, Iterable

from . import nvml, processes, state

MOST_DESCRIPTORS = 512
MOST_RANKS = 64  # on one node; their line has to fit into a pipe's atomic write
_TICKS = os.sysconf("SC_CLK_TCK")


def read(directory: str) -> dict[str, Any]:
    """The vitals of the agent's tree."""
    found = state.read_state(directory) or {}
    pids: list[int] = []
    if found.get("child") and processes.is_alive(found["child"], found.get("child_start")):
        pids = [found["child"]] + processes.descendants(found["child"])
    own = {os.getpid(), *processes.descendants(os.getpid())}
    return {"ranks": ranks_of([pid for pid in pids if pid not in own])[:MOST_RANKS]}


def ranks_of(pids: Iterable[int]) -> list[dict[str, Any]]:
    """One entry a rank of these processes; NVML is asked only if one of them holds a GPU."""
    groups: dict[int | None, list[int]] = {}
    for pid in pids:
        groups.setdefault(_number(processes.variable(pid, "RANK")), []).append(pid)
    if any(rank is not None for rank in groups):
        groups.pop(None, None)  # agent and launcher
    holding = {pid for members in groups.values() for pid in members if _holds_gpu(pid)}
    gpus = _Gpus() if holding else None
    return [_entry(rank, sorted(members), holding, gpus) for rank, members in groups.items()]


def _entry(rank: int | None, pids: list[int], holding: set[int], gpus: _Gpus | None) -> dict[str, Any]:
    stats = [found for found in (_stat(pid) for pid in pids) if found is not None]
    members = set(pids)
    mains = [found for found in stats if found[1] not in members] or stats  # not the child of another one of the rank
    mine = [pid for pid in pids if pid in holding]
    return {
        "rank": rank,
        "state": mains[0][0] if mains else "Z",
        "cpu": round(sum(found[2] for found in stats), 2),
        "io": sum(_io(pid) for pid in pids),
        "faults": sum(found[3] for found in stats),
        "world": _number(processes.variable(pids[0], "WORLD_SIZE")),
        "gpu": gpus.of(mine) if gpus is not None and mine else None,
    }


def _stat(pid: int) -> tuple[str, int, float, int] | None:
    """State, parent, CPU seconds, and page faults: who takes memory and gives it back is at work."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        return fields[0].decode(), int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[7])
    except (OSError, IndexError, ValueError):
        return None


def _io(pid: int) -> int:
    """Bytes that the process has read and written, cached or not: a save into memory is a save."""
    total = 0
    try:
        with open("/proc/%d/io" % pid) as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("rchar", "wchar"):
                    total += int(value)
    except (OSError, ValueError):
        return total
    return total


def _holds_gpu(pid: int) -> bool:
    folder = "/proc/%d/fd" % pid
    try:
        names = os.listdir(folder)[:MOST_DESCRIPTORS]
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink("%s/%s" % (folder, name)).startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _Gpus:
    """This node's GPUs, read once."""

    def __init__(self) -> None:
        self._gpus = nvml.read()
        self._holders = {pid: index for index, gpu in enumerate(self._gpus) for pid in gpu.pids}

    def of(self, pids: list[int]) -> list[float | None]:
        """Utilisation in percent and power in watts of the GPU that these processes hold."""
        index = next((self._holders[pid] for pid in pids if pid in self._holders), None)
        if index is None:
            index = self._by_local_rank(pids[0])
        if index is None or index >= len(self._gpus):
            return [None, None]
        return [self._gpus[index].percent, self._gpus[index].watts]

    def _by_local_rank(self, pid: int) -> int | None:
        local = _number(processes.variable(pid, "LOCAL_RANK"))
        if local is None:
            return 0 if len(self._gpus) == 1 else None
        visible = [word.strip() for word in (processes.variable(pid, "CUDA_VISIBLE_DEVICES") or "").split(",")]
        if visible == [""]:
            return local
        if local >= len(visible):
            return None
        if visible[local].isdecimal():
            return int(visible[local])
        return next((at for at, gpu in enumerate(self._gpus) if gpu.uuid.startswith(visible[local])), None)
