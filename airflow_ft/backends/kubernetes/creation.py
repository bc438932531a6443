"""How a job comes into being, exactly once: agent, record, object; each creation is itself the test of absence.

Whoever finds a name taken looks: the same chain, attempt and job are adopted, anything else is left alone. The server
tries the object out first (dry run, strict), so that a refusal leaves nothing behind.
"""

from __future__ import annotations

from typing import Any

from airflow_ft.backends.base import (
    CancelledJobError,
    ForeignJobError,
    Submission,
    SubmissionRefusedError,
    UnreachableError,
)
from airflow_ft.backends.kubernetes import building, cluster, records, wrapping
from airflow_ft.backends.kubernetes.api import Api, ApiError, namespace_or_own
from airflow_ft.backends.kubernetes.building import Built
from airflow_ft.backends.kubernetes.cluster import Cluster
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.pods import time_of
from airflow_ft.backends.kubernetes.records import Found
from airflow_ft.core.chain import JobRef

TTL = ("ttlSecondsAfterFinished",)


async def create_or_adopt(where: Cluster, job: KubernetesJob, submission: Submission) -> JobRef:
    """Return the one job of this submission. Raises what ``Backend.submit`` raises."""
    try:
        return await _create_or_adopt(where, job, submission)
    except ApiError as error:
        raise refusal(error, job) from error


async def _create_or_adopt(where: Cluster, job: KubernetesJob, submission: Submission) -> JobRef:
    refuse_long_name(job, submission.name)
    namespace = await namespace_of(where.api, job)
    nodes = await where.nodes(watch=False) if submission.excluded_nodes or submission.soft_nodes else {}
    made = building.built(job, submission, cluster.hostnames(nodes))
    made.manifest["metadata"]["namespace"] = namespace
    collection = job.kind.collection(job.api_version, namespace)
    record = await records.read(where.api, namespace, submission.name)
    if record is None:
        await _try_out(where.api, collection, made)
        await ensure_agent(where.api, namespace, made)
        document = records.document(namespace, submission, job.digest())
        record = await records.create(where.api, namespace, document)
        record = record or await records.read(where.api, namespace, submission.name)
    if record is None:
        raise UnreachableError(f"the record of {submission.name} was there and is gone: look again")
    _adoptable(record, submission, job)
    made.manifest["metadata"]["ownerReferences"] = [records.owner(record, submission.name)]
    found = await _created(where.api, collection, made, submission, record)
    return reference(job, submission, namespace, made, found)


async def _created(api: Api, collection: str, made: Built, submission: Submission, record: Found) -> Json:
    """Create the object, or return the one that is there. Nothing stays that was made after the name was closed."""
    path = f"{collection}/{submission.name}"
    try:
        found = await api.create(collection, made.manifest)
    except ApiError as error:
        if error.status != 409:
            raise
        existing = await api.find(path)
        if existing is None:
            raise UnreachableError(f"{submission.name} was there and is gone: look again") from error
        if not is_ours(existing, submission.chain_id, submission.attempt):
            raise ForeignJobError(
                f"{submission.name} exists and was not made by this chain; it is not touched"
            ) from None
        if walk(existing, ("metadata", "deletionTimestamp")):
            raise CancelledJobError(f"{submission.name} is being deleted") from None
        return existing
    again = await records.read(api, record_namespace(made), submission.name)
    if again is None or again.uid != record.uid or again.closed is not None:
        uid = str(walk(found, ("metadata", "uid")))
        await api.delete(path, {"propagationPolicy": "Background", "preconditions": {"uid": uid}})
        raise CancelledJobError(f"{submission.name} was closed while it was being made; it is removed again")
    return found


def _adoptable(record: Found, submission: Submission, job: KubernetesJob) -> None:
    """Raise unless the record is of this very submission, and open."""
    name = submission.name
    if record.chain_id != submission.chain_id:
        raise ForeignJobError(f"{name} belongs to the chain {record.chain_id!r}, not to {submission.chain_id!r}")
    if record.closed is not None:
        raise CancelledJobError(f"{name} was closed by {record.closed.by or 'us'}: {record.closed.why}")
    if (record.attempt, record.digest) != (submission.attempt, job.digest()):
        raise ForeignJobError(f"{name} exists for attempt {record.attempt} with another job")


async def _try_out(api: Api, collection: str, made: Built) -> None:
    """Let the server judge the object. A taken name is judged later."""
    try:
        await api.create(collection, made.manifest, dryRun="All", fieldValidation="Strict")
    except ApiError as error:
        if error.status != 409:
            raise


async def ensure_agent(api: Api, namespace: str, made: Built) -> None:
    """Make the ConfigMap with the agent if it isn't there. One of that name has that content, or is not used."""
    if not made.agents:
        return
    wanted = wrapping.config_map(namespace)
    name = wrapping.config_map_name()
    found = await api.find(records.path(namespace, name))
    if found is None:
        try:
            await api.create(records.path(namespace), wanted)
            return
        except ApiError as error:
            if error.status != 409:
                raise
        found = await api.find(records.path(namespace, name))
        if found is None:
            raise UnreachableError(f"the ConfigMap {name} was there and is gone: look again")
    if found.get("binaryData") != wanted["binaryData"]:
        raise SubmissionRefusedError(
            f"manifest: the ConfigMap {name!r} in {namespace!r} is not the agent, although it has its name. Delete it."
        )


async def find(where: Cluster, job: KubernetesJob, name: str, chain_id: str) -> JobRef | None:
    """Look a job up by its exact name. Raises ``ForeignJobError``."""
    try:
        namespace = await namespace_of(where.api, job)
        found = await where.api.find(f"{job.kind.collection(job.api_version, namespace)}/{name}")
    except ApiError as error:
        raise UnreachableError(f"{name} can't be looked up: {error}") from error
    if found is None:
        return None
    if walk(found, ("metadata", "labels", building.CHAIN)) != chain_id:
        raise ForeignJobError(f"{name} exists and does not belong to the chain {chain_id!r}")
    attempt = str(walk(found, ("metadata", "labels", building.ATTEMPT)) or "")
    submission = Submission(name=name, chain_id=chain_id, attempt=int(attempt) if attempt.isdigit() else 0)
    return reference(job, submission, namespace, building.built(job, submission), found)


def reference(job: KubernetesJob, submission: Submission, namespace: str, made: Built, found: Json) -> JobRef:
    """Return what is written down of a job that exists. No credential, and what is needed to find it again."""
    metadata = found["metadata"]
    return JobRef(
        backend=KubernetesJob.backend,
        name=submission.name,
        uid=str(metadata["uid"]),
        chain_id=submission.chain_id,
        attempt=submission.attempt,
        submitted_at=time_of(metadata.get("creationTimestamp")) or cluster.now(),
        where={
            "conn_id": job.conn_id,
            "namespace": namespace,
            "api_version": job.api_version,
            "kind": job.kind.kind,
            "pods": made.pods,
            "start_error_seconds": job.start_error_seconds,
            "volume_error_seconds": job.volume_error_seconds,
            "abandon_lost_after_seconds": job.abandon_lost_after_seconds,
            "removes_itself": _removes_itself(made.manifest),
        },
    )


def refusal(error: ApiError, job: KubernetesJob) -> Exception:
    """Return what a server's "no" to a creation means."""
    if error.status == 409:
        return UnreachableError(str(error))
    if error.status == 404:
        return SubmissionRefusedError(
            f"manifest.kind: {job.api_version} {job.kind.kind} is not served by this cluster, or there is no such "
            f"namespace: {error}. Install its operator, or name another namespace."
        )
    return SubmissionRefusedError(f"manifest: refused by the cluster: {error}")


def refuse_long_name(job: KubernetesJob, name: str) -> None:
    """Raise if the operator could not make its pods under this name: four kinds accept it and then do nothing."""
    most = min(job.kind.name_limit, 63 - len(job.kind.name_tail))
    if len(name) > most:
        raise SubmissionRefusedError(
            f"name: {name!r} has {len(name)} characters. A {job.kind.kind} may have {most}, or its pods get no name. "
            "Give the task a shorter id."
        )


def is_ours(found: Json, chain_id: str, attempt: int) -> bool:
    """Whether an object has the labels of this attempt."""
    labels: dict[str, Any] = walk(found, ("metadata", "labels")) or {}
    return bool(labels.get(building.CHAIN) == chain_id and labels.get(building.ATTEMPT) == str(attempt))


async def namespace_of(api: Api, job: KubernetesJob) -> str:
    """Return where a job is made: its own word, the manifest's, the connection's."""
    given = job.namespace or walk(job.document, ("metadata", "namespace"))
    return await namespace_or_own(api, str(given) if given else None)


def record_namespace(made: Built) -> str:
    """Return the namespace of an attempt's record: the job's."""
    return str(made.manifest["metadata"]["namespace"])


def _removes_itself(manifest: Json) -> bool:
    spec = manifest.get("spec") or {}
    parts = [spec, spec.get("runPolicy") or {}]
    return any(part.get(TTL[0]) is not None for part in parts if isinstance(part, dict))
