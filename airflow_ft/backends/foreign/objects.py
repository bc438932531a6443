"""An object on Kubernetes that somebody else has made: found by kind and name, seen through the Kubernetes backend."""

from __future__ import annotations

from airflow_ft.backends.base import Submission, UnreachableError
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.backends.kubernetes.kinds import KINDS, TRAINS, walk
from airflow_ft.core.chain import JobRef

START_ERROR_SECONDS = 60.0  # as a KubernetesJob has it by default


async def found(job: ForeignJob, submission: Submission) -> JobRef | None:
    """Return the object; ``None`` if there is none, or it is being deleted. Raises ``UnreachableError``."""
    from airflow_ft.backends.kubernetes import cluster
    from airflow_ft.backends.kubernetes.api import ApiError, namespace_or_own
    from airflow_ft.backends.kubernetes.pods import time_of

    kind, api = KINDS[job.group_version, str(job.kind)], cluster.of(job.conn_id).api
    try:
        namespace = await namespace_or_own(api, job.namespace)
        there = await api.find(f"{kind.collection(job.group_version, namespace)}/{job.name}")
    except ApiError as error:
        raise UnreachableError(f"{job.words} can't be looked up: {error}") from error
    if there is None or walk(there, ("metadata", "deletionTimestamp")):
        return None
    metadata = there["metadata"]
    return JobRef(
        backend=ForeignJob.backend,
        name=submission.name or str(job.name),
        uid=str(metadata["uid"]),
        chain_id=submission.chain_id,
        attempt=submission.attempt,
        submitted_at=time_of(metadata.get("creationTimestamp")) or cluster.now(),
        where={
            "platform": job.platform,
            "object": job.name,
            "conn_id": job.conn_id,
            "namespace": namespace,
            "api_version": job.group_version,
            "kind": kind.kind,
            "pods": sum(one.count for one in kind.templates(there) if one.role == TRAINS),
            "start_error_seconds": START_ERROR_SECONDS,
            "removes_itself": True,  # who deletes it, and why, is its owner's business: its log has the last word
        },
        foreign=f"{kind.kind} {namespace}/{job.name}",
        own=job.own,
    )


async def close() -> None:
    """End all watches and streams of the running event loop."""
    from airflow_ft.backends.kubernetes import cluster

    await cluster.close_all()
