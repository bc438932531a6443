"""The stories that the pages tell: real runs of the local backend, brought to the state that a test looks at."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_ft.backends import preflight_reports
from airflow_ft.backends.local import inventory
from airflow_ft.core.chain import Attempt
from airflow_ft.core.faults import StackPlace
from tests.browser.website import Key, Website
from tests.views.long_chain import long_chain

STACKS = (
    StackPlace(who="Rank 3 on gpu-n04", frames=("read_shard (data/reader.py:44)", "<module> (train.py:90)"), odd=True),
    StackPlace(who="15 ranks: 0-2, 4-15 on 16 nodes", frames=("all_reduce (torch/distributed/c10d.py:2501)",)),
)
NO_ROOM = ["disk-free root", "failed", "2.1 GB", "> 10 GB", "Clean the disk of <b>the node</b>.", 2.1, ""]


def _with_details(record: dict[str, Any]) -> dict[str, Any]:
    """An attempt whose fault has stacks and a failed item of a preflight, which a training of shell doesn't have."""
    attempt = Attempt.from_record(record)
    (incident,) = attempt.incidents
    told = incident.diagnosis
    failed = preflight_reports.evidence("gpu-n04", {"items": [NO_ROOM]})
    incident = incident.but(diagnosis=told.but(stacks=STACKS, evidence=(*told.evidence, *failed)))
    return attempt.but(incidents=(incident,)).to_record()


@dataclass
class Stories:
    """Each story is brought to the state that its tests look at, when the first of them asks for it."""

    site: Website
    ready: dict[str, Key] = field(default_factory=dict)

    def __call__(self, name: str) -> Key:
        """Return the task instance of a story, told to its end."""
        if name not in self.ready:
            key = (name, "run", "pretrain")
            getattr(self, f"_{name}", self._wait_ended)(key)
            self.ready[name] = key
        return self.ready[name]

    def _wait_ended(self, key: Key) -> None:
        self.site.wait_state(key, "success", "failed")

    def _crash(self, key: Key) -> None:
        self.site.wait_view(key, "recovered", runs=2)

    def _lost_node(self, key: Key) -> None:
        steps = lambda: (self.site.view(key)["runs"] or [{}])[0].get("last_step")  # noqa: E731
        self.site.client.wait(lambda: (steps() or 0) > 5, "steps on both nodes", 150)
        (job,) = [job for job in inventory.list_jobs(str(self.site.root)) if job.tags["dag_id"] == "lost_node"]
        inventory.lose_node(str(self.site.root), "default", job.nodes[-1])
        self.site.wait_view(key, "recovered", runs=2)

    def _cleared(self, key: Key) -> None:
        self.site.wait_state(key, "failed")
        self.site.client.clear(*key[:2], ["pretrain"])
        self.site.client.wait(lambda: (self.site.view(key).get("segment")) == 1, "a second segment", 150)

    def _marked(self, key: Key) -> None:
        self.site.wait_state(key, "deferred")
        self.site.client.wait(lambda: self.site.view(key)["runs"], "a chain", 150)
        self.site.client.mark(*key, "failed")
        self.site.wait_view(key, "failed")

    def _long(self, key: Key) -> None:
        """128 attempts are written into the state store, as their tries would have: they would take a month."""
        self.site.wait_state(key, "success")
        records = long_chain(128, datetime.now(timezone.utc) - timedelta(days=23))
        records |= {number: json.dumps(_with_details(json.loads(records[number]))) for number in ("ft/attempt/0126",)}
        who = dict(zip(("dag_id", "run_id", "task_id"), key, strict=True))
        records["ft/chain"] = json.dumps(json.loads(records["ft/chain"]) | who)
        with sqlite3.connect(self.site.stack.home / "airflow.db", timeout=60) as database:
            (run,) = database.execute("SELECT id FROM dag_run WHERE dag_id = ?", (key[0],)).fetchone()
            database.execute("DELETE FROM task_state_store WHERE dag_run_id = ?", (run,))
            now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
            rows = [(run, key[2], -1, name, key[0], key[1], value, now) for name, value in records.items()]
            database.executemany(
                "INSERT INTO task_state_store (dag_run_id, task_id, map_index, key, dag_id, run_id, value, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
