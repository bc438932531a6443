"""The last collective of each rank, from the dumps of PyTorch's flight recorder where there are any in JSON.

Used by `stacks` when a hang is looked at: PyTorch's watchdog, or a request to it, writes one file a rank, named by
TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE and the rank's number. Only JSON is read: the other form is a
pickle, and to load a pickle is to run what somebody else wrote. A file from before the process began is none.

What is told of a rank is small: ``{"rank", "group": {id: [enqueued, started, completed]}, "last": "all_reduce", "seq":
17, "state": "scheduled"}``; numbers that can't be read are -1.
"""

from __future__ import annotations

import json
import os
from typing import Any

from . import processes

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_PREFIX = "/tmp/nccl_trace_rank_"
MAX_BYTES = 32 * 1024 * 1024
MOST_GROUPS = 16


def read(ranks: dict[int, int | None]) -> list[dict[str, Any]]:
    """What the dumps of these processes (pid → rank) say."""
    found: dict[int, dict[str, Any]] = {}
    for pid, rank in ranks.items():
        if rank is None or rank in found:
            continue
        said = _parse(_newest(pid, rank))
        if said is not None:
            found[rank] = dict(said, rank=rank)
    return [found[rank] for rank in sorted(found)]


def _newest(pid: int, rank: int) -> bytes:
    prefixes = [processes.variable(pid, name) for name in VARIABLES]
    path = "%s%d" % (next((prefix for prefix in prefixes if prefix), DEFAULT_PREFIX), rank)
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_mtime < os.stat("/proc/%d" % pid).st_ctime - 1 or about.st_size > MAX_BYTES:
                return b""
            return file.read(MAX_BYTES)
    except OSError:
        return b""


def _parse(data: bytes) -> dict[str, Any] | None:
    if data.lstrip()[:1] != b"{":
        return None
    try:
        dump = json.loads(data)
    except (ValueError, RecursionError):
        return None
    status, entries = dump.get("pg_status"), dump.get("entries")
    groups = {
        str(name)[:40]: [_number(one.get("last_%s_collective" % word)) for word in ("enqueued", "started", "completed")]
        for name, one in list(status.items() if isinstance(status, dict) else ())[:MOST_GROUPS]
        if isinstance(one, dict)
    }
    calls = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
    last = calls[-1] if calls else {}
    if not groups and not last:
        return None
    return {
        "group": groups,
        "last": str(last.get("profiling_name") or "").rpartition(":")[2][:60],
        "seq": _number(last.get("collective_seq_id")),
        "state": str(last.get("state") or "")[:20],
    }


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
