"""``airflow ft feedback``: what people said of diagnoses, for scoring the classifier on one's own faults."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_ft.views.listing import all_feedback
from airflow_ft.views.records import database

MOST = 10_000
FIELDS = ("dag_id", "run_id", "task_id", "map_index", "run", "diagnosed", "right", "fault_class", "note", "by", "at")


def show_feedback(args: Namespace) -> None:
    """Print it: a table, or with ``--json`` a line of JSON for each diagnosis that was judged."""
    with database() as session:
        judged = [_record(*row) for row in all_feedback(session, MOST)]
    if args.json:
        for record in judged:
            print(json.dumps(record))
        return
    table = Table(show_edge=False, pad_edge=False, header_style="dim")
    for name in ("task", "run", "diagnosed", "right", "better", "by", "note"):
        table.add_column(name, overflow="fold")
    for one in judged:
        task = f"{one['dag_id']}.{one['task_id']}" + (f"[{one['map_index']}]" if one["map_index"] >= 0 else "")
        right = "yes" if one["right"] else "no"
        table.add_row(task, one["run"], one["diagnosed"], right, one["fault_class"] or "", one["by"], one["note"])
    console = Console()
    console.print(table)
    wrong = sum(not one["right"] for one in judged)
    console.print(f"{len(judged)} diagnoses judged, {wrong} wrong.")


def _record(dag_id: str, run_id: str, task_id: str, map_index: int, run: str, said: Any) -> dict[str, Any]:
    found = said if isinstance(said, dict) else {}
    record = {
        **found,
        "dag_id": dag_id,
        "run_id": run_id,
        "task_id": task_id,
        "map_index": map_index,
        "run": run,
    }
    return {name: record.get(name) for name in FIELDS}
