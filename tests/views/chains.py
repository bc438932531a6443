"""Chains for the tests of the views: made by the attempts' own code on the simulated cluster, stored in a real table.

The table is Airflow's own, in a sqlite of its own: no Airflow has to run, and a chain can be written a thousand times.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.views.records import StoredChain, StoredRows, assembled
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = "KeyError: 'x'"
NO_DNS = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
NO_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def stored(task: Task, state: str | None = None, **xcoms: Any) -> StoredChain:
    """The chain of a simulated task as it is read back from the database."""
    found = dict(task.xcoms.items()) | {key: json.dumps(value) for key, value in xcoms.items()}
    return assembled(StoredRows("dag.train", dict(task.values), found, state))


def ended(*scripts: list[Run], nodes: int = 1, **policy: Any) -> Task:
    """A task that has run to its end."""
    task = Task(*scripts, nodes=nodes, policy=FaultTolerancePolicy.full(**policy) if policy else None)
    task.run_to_the_end()
    return task


class Tables:
    """Airflow's tables, empty, and a session on them."""

    def __init__(self, url: str = "sqlite://") -> None:
        from airflow import models
        from airflow.models.base import Base
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import StaticPool

        models.import_all_models()  # so that every foreign key finds its table
        in_memory = url == "sqlite://"
        more: dict[str, Any] = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        self.engine = create_engine(url, **(more if in_memory else {}))
        needed = [
            Base.metadata.tables[name]
            for name in ("dag_run", "log_template", "task_state_store", "task_instance", "xcom", "variable")
        ]
        Base.metadata.create_all(self.engine, tables=needed if in_memory else None)
        self.session = Session(self.engine)
        self.runs: dict[tuple[str, str], int] = {}

    def put(
        self,
        values: dict[str, str],
        dag_id: str,
        run_id: str = "run",
        task_id: str = "train",
        map_index: int = -1,
        state: str | None = "success",
        xcoms: dict[str, Any] | None = None,
    ) -> None:
        """Store a chain's records under a task instance."""
        from airflow.models.dagrun import DagRun
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.xcom import XComModel
        from sqlalchemy import insert

        if (dag_id, run_id) not in self.runs:
            self.runs[dag_id, run_id] = len(self.runs) + 1
            self.session.execute(insert(DagRun.__table__).values(**self.dag_run(dag_id, run_id, len(self.runs))))
        run = self.runs[dag_id, run_id]
        who = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
        now = datetime.now(timezone.utc) - timedelta(seconds=1000 - run)
        rows = []
        for key, text in values.items():
            record = json.loads(text)
            if key == "ft/chain":
                record |= who
            rows.append({**who, "dag_run_id": run, "key": key, "value": json.dumps(record), "updated_at": now})
        self.session.execute(insert(TaskStateStoreModel), rows)
        self.session.execute(insert(TaskInstance.__table__).values(**self.task_instance(who, state)))
        for key, value in (xcoms or {}).items():
            self.session.execute(
                insert(XComModel.__table__).values(**who, dag_run_id=run, key=key, value=value, timestamp=now)
            )
        self.session.commit()

    def end_run(self, state: str) -> None:
        """Give all runs a state; ``deleted``: nothing is left of them."""
        from airflow.models.dagrun import DagRun
        from airflow.models.task_state_store import TaskStateStoreModel
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import delete, update

        if state == "deleted":
            for model in (TaskStateStoreModel, TaskInstance, DagRun):
                self.session.execute(delete(model))
        else:
            self.session.execute(update(DagRun).values(state=state))
        self.session.commit()

    def add_task(self, dag_id: str, task_id: str, state: str | None, run_id: str = "run") -> None:
        """Add a task instance that has stored nothing to a run that is there."""
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import insert

        who = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1}
        self.session.execute(insert(TaskInstance.__table__).values(**self.task_instance(who, state)))
        self.session.commit()

    @staticmethod
    def task_instance(who: dict[str, Any], state: str | None) -> dict[str, Any]:
        """A row for a task instance, with what this version of Airflow wants in it."""
        from airflow.models.taskinstance import TaskInstance

        given = {**who, "id": uuid4(), "state": state, "pool": "default_pool", "try_number": 1, "max_tries": 1000}
        return _completed(TaskInstance.__table__, given)

    @staticmethod
    def dag_run(dag_id: str, run_id: str, number: int) -> dict[str, Any]:
        """A row for a DAG run."""
        from airflow.models.dagrun import DagRun

        now = datetime.now(timezone.utc)
        given = {
            "id": number,
            "dag_id": dag_id,
            "run_id": run_id,
            "run_type": "manual",
            "run_after": now,
            "state": "running",
        }
        return _completed(DagRun.__table__, given)


def _completed(table: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What the columns that must have a value want beside it."""
    for column in table.columns:
        optional = column.nullable or column.default is not None or column.server_default is not None
        if column.name not in given and not optional:
            given[column.name] = "" if column.type.python_type is str else 0
    return given
