"""``preflight.json`` to evidence: what a node's preflight found, as every backend that can read the file hands it on.

The preflight ran before the training did, on its own: its word may blame a node beyond its chain (DESIGN §7).
"""

from __future__ import annotations

from typing import Any

from airflow_ft.agent.preflight_result import FAILED, read
from airflow_ft.core.faults import Evidence, FaultClass, Role, Trust
from airflow_ft.core.preflight import PAIR, SOURCE


def evidence(node: str, record: Any) -> list[Evidence]:
    """The failed items of one node. A file that can't be understood says nothing."""
    items = record.get("items") if isinstance(record, dict) else None
    results = [read(item) for item in items] if isinstance(items, list) else []
    return [
        Evidence(
            source=SOURCE,
            text=f"{result.line()[:800]}",
            node=node,
            signature=PAIR if result.peer else f"preflight.{result.item}",
            role=Role.ROOT,
            fault_class=FaultClass.NET_FABRIC if result.peer else FaultClass.HW_NODE,
            trust=Trust.PLATFORM,
        )
        for result in results
        if result is not None and result.status == FAILED
    ]
