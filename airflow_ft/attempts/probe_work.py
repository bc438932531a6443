"""What a task that runs probe jobs is at, in its state store: for a try after a lost worker, and for the collector.

A probe job is like any other: it has an owner. The task's next try adopts what it finds by its deterministic name.
If no try ever comes, the jobs that were begun and not removed stand in here: the collector stops them
(``views.probes``).
"""

from __future__ import annotations

from pydantic import JsonValue

from airflow_ft.attempts.ports import KeyValueStore
from airflow_ft.core.chain import JobRef
from airflow_ft.core.records import UnreadableRecordError

PROBE_KEY = "ft/probe"


class Work:
    """What a task is at, over the tries of lost workers: the name of its probe jobs, their nodes, those that run.

    :param name: what the names of its jobs begin with, if the work begins now.
    """

    def __init__(self, store: KeyValueStore, name: str) -> None:
        self._store = store
        told = store.get(PROBE_KEY)
        if isinstance(told, dict) and told.get("open") is True:
            self._told = told
            return
        self._told = {"name": name, "open": True}
        store.set(PROBE_KEY, self._told)

    @property
    def name(self) -> str:
        """What the names of its jobs begin with."""
        return str(self._told["name"])

    def nodes(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return the nodes that the work began with; ``found`` if it begins now. Its own jobs may hold them."""
        begun = self._told.get("nodes")
        if isinstance(begun, list):
            return tuple(str(node) for node in begun)
        self._write({**self._told, "nodes": list(found)})
        return found

    def began(self, ref: JobRef) -> None:
        """A job of it runs."""
        self._write({**self._told, "jobs": {**self._jobs(), ref.name: ref.to_record()}})

    def removed(self, ref: JobRef) -> None:
        """Nothing of the job is left."""
        self._write({**self._told, "jobs": {name: job for name, job in self._jobs().items() if name != ref.name}})

    def close(self) -> None:
        """Say that it is over: the next try begins anew. Jobs that could not be removed stay written down."""
        self._write({**self._told, "open": False})

    def _jobs(self) -> dict[str, JsonValue]:
        jobs = self._told.get("jobs")
        return dict(jobs) if isinstance(jobs, dict) else {}

    def _write(self, told: dict[str, JsonValue]) -> None:
        self._told = told
        self._store.set(PROBE_KEY, told)


def jobs_of(record: JsonValue) -> list[JobRef]:
    """Return the jobs of a stored work that were begun and not removed. What can't be read is left out."""
    jobs = record.get("jobs") if isinstance(record, dict) else None
    found = []
    for job in jobs.values() if isinstance(jobs, dict) else ():
        try:
            found.append(JobRef.from_record(job))
        except UnreadableRecordError:
            continue
    return found


def without(record: JsonValue, ref: JobRef) -> JsonValue:
    """Return a stored work without one of its jobs."""
    if not isinstance(record, dict) or not isinstance(record.get("jobs"), dict):
        return record
    jobs = record["jobs"]
    assert isinstance(jobs, dict)
    return {**record, "jobs": {name: job for name, job in jobs.items() if name != ref.name}}
