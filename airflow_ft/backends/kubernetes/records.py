"""The record of an attempt: a small ConfigMap under the attempt's name, made before its job and kept after it.

It holds who the job belongs to, and later who stopped it: the name's tombstone. The job's object has it as an owner,
and that is what closes a name for ever: closing it *replaces* the record, so a job that a creator who was frozen makes
afterwards has an owner that is gone, and the garbage collector removes it at once.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, NamedTuple

from airflow_ft.backends.base import Submission
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.backends.kubernetes.building import job_labels
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.observation import Closed

KIND_LABEL, RECORD = "airflow-ft/kind", "attempt"


class Found(NamedTuple):
    """A record that exists."""

    uid: str
    chain_id: str
    attempt: int
    digest: str
    closed: Closed | None
    data: dict[str, Any]


def path(namespace: str, name: str = "") -> str:
    """Return the API's path of a record, or of all."""
    return f"/api/v1/namespaces/{namespace}/configmaps" + (f"/{name}" if name else "")


def document(namespace: str, submission: Submission, digest: str) -> Json:
    """Return the record of an attempt that is about to be made."""
    data = {
        "chain_id": submission.chain_id,
        "attempt": submission.attempt,
        "digest": digest,
        "tags": submission.tags,
        "excluded_nodes": list(submission.excluded_nodes),
    }
    return _object(namespace, submission.name, submission.chain_id, submission.attempt, data)


async def create(api: Api, namespace: str, record: Json) -> Found | None:
    """Create the record; ``None`` if the name is taken. Raises ``UnreachableError`` or ``ApiError``."""
    try:
        return _read(await api.create(path(namespace), record))
    except ApiError as error:
        if error.status == 409:
            return None
        raise


async def read(api: Api, namespace: str, name: str) -> Found | None:
    """Return a record; ``None`` if there is none."""
    found = await api.find(path(namespace, name))
    return _read(found) if found is not None else None


async def mark_closing(api: Api, namespace: str, found: Found, name: str, closed: Closed) -> None:
    """Write who stops the job, before anything is stopped. Whoever stopped it first stays."""
    if found.closed is None:
        data = {**found.data, "closed": asdict(closed)}
        await api.patch(path(namespace, name), {"data": {"record": json.dumps(data)}})


async def close(api: Api, namespace: str, found: Found, name: str) -> None:
    """Replace the record by its tombstone, once nothing of the job is left."""
    current = await read(api, namespace, name)
    if current is None or current.uid != found.uid or current.data.get("tombstone"):
        return
    await api.delete(path(namespace, name), {"preconditions": {"uid": current.uid}})
    data = {**current.data, "tombstone": True}
    await create(api, namespace, _object(namespace, name, current.chain_id, current.attempt, data))


async def plant(api: Api, namespace: str, name: str, chain_id: str, closed: Closed) -> bool:
    """Close a name under which nothing exists; ``False`` if there is a record already."""
    attempt = name.rpartition("-a")[2]
    number = int(attempt) if attempt.isdigit() else 0
    data = {"chain_id": chain_id, "attempt": number, "digest": "", "closed": asdict(closed), "tombstone": True}
    return await create(api, namespace, _object(namespace, name, chain_id, number, data)) is not None


def owner(found: Found, name: str) -> Json:
    """Return the owner reference by which a job belongs to its record."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": found.uid}


def _object(namespace: str, name: str, chain_id: str, attempt: int, data: dict[str, Any]) -> Json:
    labels = job_labels(Submission(name=name, chain_id=chain_id, attempt=attempt))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**labels, "app.kubernetes.io/managed-by": "airflow-ft", KIND_LABEL: RECORD},
        },
        "data": {"record": json.dumps(data)},
    }


def _read(found: Json) -> Found:
    try:
        data = json.loads(str(walk(found, ("data", "record")) or "{}"))
    except ValueError:
        data = {}
    data = data if isinstance(data, dict) else {}
    told = data.get("closed")
    closed = Closed(by=str(told.get("by", "")), why=str(told.get("why", ""))) if isinstance(told, dict) else None
    return Found(
        uid=str(walk(found, ("metadata", "uid")) or ""),
        chain_id=str(data.get("chain_id", "")),
        attempt=data["attempt"] if isinstance(data.get("attempt"), int) else -1,
        digest=str(data.get("digest", "")),
        closed=closed,
        data=data,
    )
