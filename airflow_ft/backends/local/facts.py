"""What this machine knows about a job's fault: lost nodes, exit codes, unkillable processes, full disks.

The platform's word is that a node is down and that a disk is full. Exit codes and unkillable pids come from the
agent's files, which code of the same user could have written: that is the job's word.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from airflow_ft.agent.preflight_result import EXIT_FAILED
from airflow_ft.backends import node_evidence, preflight_reports
from airflow_ft.backends.base import NodeReport, Observation, UnreachableError
from airflow_ft.backends.local.folder import JobFolder, read_json
from airflow_ft.core.faults import Evidence, FaultClass, Role, Trust
from airflow_ft.core.flight import behind

# torch fails to save, and Python to print, at 0; below this a checkpoint of any size does. A gut feeling.
FRESH_SECONDS = 60.0  # a dump of stacks that is older belongs to another incident
FULL_BYTES = 16 * 1024 * 1024


def evidence(folder: JobFolder, seen: Observation, watched: Sequence[str] = ()) -> list[Evidence]:
    """Everything known, the platform's word first. ``watched`` are other folders whose disks matter."""
    lost = [node_evidence.lost(node, "down") for node in seen.nodes if node.lost]
    exits = [node_evidence.ended(node, _signal_name) for node in seen.nodes if node.code]
    stuck = [_unkillable(node) for node in seen.nodes if node.unkillable]
    checked = [one for node in seen.nodes for one in _preflight(folder, node)]
    late = [one for node in seen.nodes for one in _behind(folder, node)]
    return lost + checked + _full_disks([folder.path, *watched]) + stuck + late + exits


def _behind(folder: JobFolder, node: NodeReport) -> list[Evidence]:
    """Ranks that have not come to a collective, by the flight recorder, as the dump of stacks has just found it."""
    try:
        dump = read_json(os.path.join(folder.node(node.node), "stacks.json")) or {}
    except UnreachableError:
        return []
    at = dump.get("at")
    if not isinstance(at, (int, float)) or not 0 <= time.time() - at <= FRESH_SECONDS:
        return []
    return [Evidence(source="hang", text=late.text, node=None, rank=late.rank) for late in behind(dump.get("flight"))]


def _preflight(folder: JobFolder, node: NodeReport) -> list[Evidence]:
    if node.code != EXIT_FAILED:
        return []
    try:
        return preflight_reports.evidence(node.node, read_json(os.path.join(folder.node(node.node), "preflight.json")))
    except UnreachableError:
        return []


def _unkillable(node: NodeReport) -> Evidence:
    pids = ", ".join(map(str, node.unkillable))
    return Evidence(
        source="node",
        text=f"processes {pids} on {node.node} can't be killed: they hang in the kernel",
        node=node.node,
        role=Role.AMBIGUOUS,
        fault_class=FaultClass.HW_NODE,
    )


def _full_disks(folders: Sequence[str]) -> list[Evidence]:
    found = {}
    for folder in folders:
        try:
            disk, device = os.statvfs(folder), os.stat(folder).st_dev
        except OSError:
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < FULL_BYTES:
            free = disk.f_bavail * disk.f_frsize // 2**20
            found[device] = Evidence(
                source="disk",
                text=f"the disk is full: {free} MB are free where {folder!r} is",
                role=Role.ROOT,
                fault_class=FaultClass.ENV_ERROR,
                trust=Trust.PLATFORM,
            )
    return list(found.values())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
