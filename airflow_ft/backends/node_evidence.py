"""Evidence that every backend draws from its reports of nodes: who is lost, and how a command ended."""

from __future__ import annotations

from collections.abc import Callable

from airflow_ft.backends.base import NodeReport
from airflow_ft.core.faults import Evidence, FaultClass, Role, Trust


def lost(report: NodeReport, how: str) -> Evidence:
    """Return the platform's word that a node is gone; ``how`` is what it is called there: ``down``, ``lost``."""
    return Evidence(
        source="node",
        text=f"node {report.node} is {how}: {report.lost_why}",
        node=report.node,
        role=Role.ROOT,
        fault_class=FaultClass.HW_NODE,
        trust=Trust.PLATFORM,
    )


def ended(report: NodeReport, signal_words: Callable[[int], str]) -> Evidence:
    """Return the job's word on how its command ended. A negative code is a signal; ``signal_words`` names it."""
    code = report.code or 0
    how = f"with code {code}" if code > 0 else f"by {signal_words(-code)}"
    after = " after a TERM" if report.term else ""
    return Evidence(
        source="exit",
        text=f"the command on {report.node} ended {how}{after}",
        node=report.node,
        code=code,
        at=report.exited_at,
    )
