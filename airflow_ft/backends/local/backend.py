"""``LocalBackend``: the protocol, put together from the modules beside it. Blocking work runs in threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, ParamSpec, TypeVar, cast

from airflow_ft.backends.base import (
    SECRET_LENGTH,
    SECRET_NAME,
    Capability,
    Cursors,
    ForeignJobError,
    LogChunk,
    LogTail,
    Observation,
    Order,
    PoolView,
    StackGroup,
    Submission,
    TrainingJob,
    UnreachableError,
)
from airflow_ft.backends.local import cancel as cancelling
from airflow_ft.backends.local import creation, facts, logs, observation, orders, vitals
from airflow_ft.backends.local.folder import Identity, JobFolder
from airflow_ft.backends.local.job import LocalJob, problems, resolve_root
from airflow_ft.backends.local.pool import Pool
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence
from airflow_ft.core.vitals import RankVitals

P = ParamSpec("P")
T = TypeVar("T")


class LocalBackend:
    """Training on this machine. Without state: every answer is read from disk and from /proc."""

    name: ClassVar[str] = "local"
    can: ClassVar[frozenset[Capability]] = frozenset(Capability)
    poll_seconds: ClassVar[float] = 0.5

    def check(self, job: TrainingJob) -> None:
        """Raise ``SubmissionRefusedError`` with everything that is wrong."""
        creation.refuse(problems(_local(job)))

    def probe_job(self, job: TrainingJob, command: tuple[str, ...], nodes: Sequence[str]) -> TrainingJob:
        """Return the job with another command."""
        return _local(job).model_copy(update={"command": command, "nodes": len(nodes)})

    async def submit(self, job: TrainingJob, submission: Submission) -> JobRef:
        """Create or adopt the job, then place and start it as far as that goes."""
        return await _in_thread(_submit, _local(job), submission)

    async def find(self, name: str, chain_id: str, job: TrainingJob | None = None) -> JobRef | None:
        """Look a job up by its name, in the root folder of ``job`` (default: the machine's)."""
        return await _in_thread(_find, _folder_of(name, job), chain_id)

    def secrets(self, ref: JobRef) -> Sequence[str]:
        """Return the secret values in the environment of a job that isn't over."""
        try:
            spec = _folder(ref).spec()
        except UnreachableError:
            return ()
        found = {value for name, value in (spec.env if spec else {}).items() if SECRET_NAME.search(name)}
        return tuple(sorted(value for value in found if len(value) >= SECRET_LENGTH))

    async def observe(self, ref: JobRef) -> Observation:
        """See what the job is doing; places and launches what is left to do."""
        return await _in_thread(observation.observe, _folder(ref), ref.uid)

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what was written since ``cursors``."""
        return await _in_thread(logs.read, _folder(ref), cursors, limit)

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        """Return the ends of all logs, the ranks' own too."""
        return await _in_thread(logs.tails, _folder(ref), limit)

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        """Return what this machine knows: lost nodes, exit codes, unkillable processes, full disks."""
        seen = await self.observe(ref)
        identity, _ = await _in_thread(_known, ref)
        return await _in_thread(facts.evidence, _folder(ref), seen, identity.folders if identity else ())

    async def pool(self, ref_or_job: JobRef | TrainingJob) -> PoolView:
        """Return the nodes in service, and which of them are free."""
        return await _in_thread(_pool_view, ref_or_job)

    async def dump_stacks(self, ref: JobRef) -> Sequence[StackGroup]:
        """Dump the stacks of every process of the command."""
        identity, nodes = await _in_thread(_known, ref)
        return await _given(orders.dump_stacks(_folder(ref), identity, nodes)) if identity else []

    async def peek_stacks(self, ref: JobRef, by_signal: bool) -> Sequence[StackGroup]:
        """Look at the stacks of the processes that are on a CPU."""
        identity, nodes = await _in_thread(_known, ref)
        return await _in_thread(orders.peek_stacks, _folder(ref), tuple(nodes), by_signal) if identity else []

    async def vitals(self, ref: JobRef) -> Sequence[RankVitals]:
        """Return CPU time, I/O and state of each rank, from /proc."""
        identity, nodes = await _in_thread(_known, ref)
        return await _in_thread(vitals.read, _folder(ref), identity, tuple(nodes)) if identity else []

    async def restart_in_place(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Give the order to every node; returns those that refused."""
        identity, nodes = await _in_thread(_known, ref)
        return await _given(orders.restart(_folder(ref), identity, nodes, order)) if identity else []

    async def release(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Tell all nodes that no restart will come; returns those where another decision stands."""
        identity, nodes = await _in_thread(_known, ref)
        return await _given(orders.release(_folder(ref), identity, nodes, order)) if identity else []

    async def cancel(self, ref: JobRef, grace: float, by: str = "airflow_ft") -> None:
        """Stop the job and return when nothing of it is left."""
        identity, _ = await _in_thread(_known, ref)
        if identity:
            await cancelling.cancel(_folder(ref), identity, grace, by=by, why="cancelled")

    async def fence(self, name: str, chain_id: str, job: TrainingJob | None = None) -> None:
        """Stop what runs under the name and close the name for ever."""
        folder = _folder_of(name, job)
        if await _in_thread(creation.plant_fence, folder, chain_id):
            return
        try:
            identity = await _in_thread(creation.owned, folder, chain_id)
        except ForeignJobError:
            return
        if identity:
            await cancelling.cancel(folder, identity, identity.grace, by="airflow_ft", why="fenced")


def create_backend() -> LocalBackend:
    """Return the backend (called by ``registry``)."""
    return LocalBackend()


# --- the blocking halves -----------------------------------------------------------------------------------------


def _submit(job: LocalJob, submission: Submission) -> JobRef:
    folder, identity = creation.create_or_adopt(job, submission)
    observation.move_on(folder, identity)
    return _ref(folder, identity)


def _find(folder: JobFolder, chain_id: str) -> JobRef | None:
    if not os.path.isdir(folder.path):
        return None
    identity = creation.owned(folder, chain_id)
    return _ref(folder, identity) if identity else None


def _known(ref: JobRef) -> tuple[Identity | None, tuple[str, ...]]:
    """The job of a reference and its nodes; nothing if it is not this job (any more)."""
    folder = _folder(ref)
    identity = folder.identity() if folder.exists() else None
    if identity is None or identity.uid != ref.uid:
        return None, ()
    placement = folder.placement()
    return identity, placement.nodes if placement else ()


def _ref(folder: JobFolder, identity: Identity) -> JobRef:
    return JobRef(
        backend=LocalBackend.name,
        name=identity.name,
        uid=identity.uid,
        chain_id=identity.chain_id,
        attempt=identity.attempt,
        submitted_at=identity.created_at,
        where={"root": folder.root, "pool": identity.pool, "pool_nodes": identity.pool_nodes},
    )


def _local(job: TrainingJob) -> LocalJob:
    if not isinstance(job, LocalJob):
        raise TypeError(f"job: a {type(job).__name__} is not allowed. The local backend takes a LocalJob.")
    return job


def _folder(ref: JobRef) -> JobFolder:
    return JobFolder(resolve_root(cast("str | None", ref.where.get("root"))), ref.name)


def _folder_of(name: str, job: TrainingJob | None) -> JobFolder:
    creation.refuse_bad_name(name)
    return JobFolder(resolve_root(_local(job).root if job else None), name)


def _pool_view(ref_or_job: JobRef | TrainingJob) -> PoolView:
    pool = _pool(ref_or_job)
    nodes = tuple(pool.in_service())
    return PoolView(nodes=nodes, free=tuple(node for node in nodes if pool.is_free(node)))


def _pool(ref_or_job: JobRef | TrainingJob) -> Pool:
    if isinstance(ref_or_job, JobRef):
        where = ref_or_job.where
        return Pool(
            resolve_root(cast("str | None", where.get("root"))), str(where["pool"]), int(str(where["pool_nodes"]))
        )
    job = _local(ref_or_job)
    return Pool(resolve_root(job.root), job.pool, job.pool_nodes)


async def _given(answers: Awaitable[T]) -> T:
    """Wait for the answers to an order. One that can't be written was not given."""
    try:
        return await answers
    except OSError as error:
        raise UnreachableError(f"the order can't be written: {error}") from error


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread. What the file system refuses is "we could not see"."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except OSError as error:
        raise UnreachableError(f"{type(error).__name__}: {error}") from error
