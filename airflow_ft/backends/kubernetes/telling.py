"""What is told in the cluster itself: Events on the job, so that ``kubectl describe`` tells the story.

Telling is a courtesy: it never fails anything, and an account that may not write events only loses it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from uuid import uuid4

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.core.chain import JobRef

MAX_MESSAGE = 1024  # the API's limit


async def tell(api: Api, ref: JobRef, reason: str, message: str, *, warning: bool = False) -> None:
    """Write an event on the job's object."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = str(ref.where["namespace"])
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{ref.name}.{uuid4().hex[:16]}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": ref.where["api_version"],
            "kind": ref.where["kind"],
            "name": ref.name,
            "namespace": namespace,
            "uid": ref.uid,
        },
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "airflow-ft"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    with suppress(ApiError, UnreachableError):
        await api.call("POST", f"/api/v1/namespaces/{namespace}/events", {}, event, tries=1)
