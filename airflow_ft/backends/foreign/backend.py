"""``ForeignBackend``: looks at what somebody else has submitted, and does nothing to it.

========================  =======================================  ===================================================
asked for                 ``own=False``                            ``own=True``
========================  =======================================  ===================================================
submit                    nothing is made: it is looked for        the same; once it was stopped, ``again`` is made
observe, logs, evidence   from ``/proc`` and its log, or through the Kubernetes backend
restart in place, stacks  refused: no agent of ours is in it, and stacks are dumped only of what is about to be killed
release                   nothing is held, so nothing is let go
cancel                    refused (``ForeignJobError``)            it is stopped (a process tree, a Kubernetes object)
fence                     nothing of ours has that name            ``again``, if it was made under that name
========================  =======================================  ===================================================

What was made of ``again`` is a job of its own backend, and all that is said here is about the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import ClassVar, TypeVar

from airflow_ft.backends import registry
from airflow_ft.backends.base import (
    Backend,
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
    SubmissionRefusedError,
    TrainingJob,
    UnreachableError,
)
from airflow_ft.backends.foreign import objects, process
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence
from airflow_ft.core.vitals import RankVitals

T = TypeVar("T")
PROCESS = "process"


class ForeignBackend:
    """Somebody else's jobs. Without state."""

    name: ClassVar[str] = ForeignJob.backend
    can: ClassVar[frozenset[Capability]] = frozenset({Capability.EXCLUDE_NODES})  # of ``again``, and for what is told
    poll_seconds: ClassVar[float] = 1.0

    def check(self, job: TrainingJob) -> None:
        """Raise ``SubmissionRefusedError`` with what is wrong with the job, or with what would be submitted again."""
        mine = _foreign(job)
        if mine.pid is not None and (found := process.problems(mine)):
            raise SubmissionRefusedError("\n".join(found))
        if mine.again is not None:
            registry.create_backend(mine.again.backend).check(mine.again)

    async def submit(self, job: TrainingJob, submission: Submission) -> JobRef:
        """Return the job that is there; what an owned one is followed by is really submitted."""
        mine = _foreign(job)
        ref = await self._found(mine, submission)
        again = mine.own and submission.attempt > 0
        if ref is not None and not (again and await self._is_over(ref)):
            return ref
        if not again:
            raise SubmissionRefusedError(_missing(mine))
        if mine.again is None:
            raise SubmissionRefusedError(
                f"again: nothing is given, so nobody knows how {mine.words} is started again. Give a training job, for "
                "example again=LocalJob(…), and clear the task."
            )
        return await registry.create_backend(mine.again.backend).submit(mine.again, submission)

    async def find(self, name: str, chain_id: str, job: TrainingJob | None = None) -> JobRef | None:
        """Look for what was made of ``again`` under this name, then for the job itself."""
        if job is None:
            raise UnreachableError("a foreign job can't be looked up without its spec: its name is not ours")
        mine = _foreign(job)
        if mine.again is not None:
            ref = await registry.create_backend(mine.again.backend).find(name, chain_id, mine.again)
            if ref is not None:
                return ref
        number = name.rpartition("-a")[2]
        attempt = int(number) if number.isdigit() else 0
        return await self._found(mine, Submission(name=name, chain_id=chain_id, attempt=attempt))

    def secrets(self, ref: JobRef) -> Sequence[str]:
        """Return what is known to be secret of a job that was submitted again; of others nothing is known."""
        return () if _is_foreign(ref) else registry.create_backend(ref.backend).secrets(ref)

    async def observe(self, ref: JobRef) -> Observation:
        """See what the job is doing."""
        return await _seen(process.observe(ref)) if _is_process(ref) else await _of(ref).observe(_named(ref))

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what was written since ``cursors``."""
        if _is_process(ref):
            return await _seen(process.read_logs(ref, cursors, limit))
        return await _of(ref).read_logs(_named(ref), cursors, limit)

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        """Return the ends of all logs."""
        return (
            await _seen(process.log_tails(ref, limit))
            if _is_process(ref)
            else await _of(ref).log_tails(_named(ref), limit)
        )

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        """Return what the platform knows."""
        return await _seen(process.evidence(ref)) if _is_process(ref) else await _of(ref).evidence(_named(ref))

    async def vitals(self, ref: JobRef) -> Sequence[RankVitals]:
        """Return what the ranks do. Raises ``UnreachableError`` where they can't be looked at."""
        if _is_process(ref):
            return await _seen(process.read_vitals(ref))
        raise UnreachableError(f"the processes of {ref.foreign or ref.name} can't be looked at")

    async def pool(self, ref_or_job: JobRef | TrainingJob) -> PoolView:
        """Return the nodes that such a job could use; none where nothing would be submitted."""
        if isinstance(ref_or_job, JobRef):
            return PoolView() if _is_process(ref_or_job) else await _of(ref_or_job).pool(_named(ref_or_job))
        again = _foreign(ref_or_job).again
        return await registry.create_backend(again.backend).pool(again) if again is not None else PoolView()

    async def dump_stacks(self, ref: JobRef) -> Sequence[StackGroup]:
        """Return nothing: that is for processes that are about to be killed."""
        return [] if _is_foreign(ref) else await _of(ref).dump_stacks(ref)

    async def restart_in_place(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Refuse: no agent of ours is in the job. Raises ``ForeignJobError``."""
        if not _is_foreign(ref):
            return await _of(ref).restart_in_place(ref, order)
        raise ForeignJobError(f"{ref.foreign} can't be restarted in place: no agent of ours is in it")

    async def release(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Let go of nothing: nothing of a foreign job is held for us."""
        return [] if _is_foreign(ref) else await _of(ref).release(ref, order)

    async def cancel(self, ref: JobRef, grace: float, by: str = "airflow_ft") -> None:
        """Stop an owned job. Raises ``ForeignJobError`` for one that isn't."""
        if ref.not_ours:
            raise ForeignJobError(ref.not_ours)
        if _is_process(ref):
            await _seen(process.cancel(ref, grace))
        else:
            await _of(ref).cancel(_named(ref), grace, by=by)

    async def fence(self, name: str, chain_id: str, job: TrainingJob | None = None) -> None:
        """Close the name for what is submitted again; nothing else of a foreign job has a name of ours."""
        again = _foreign(job).again if job is not None else None
        if again is not None:
            await registry.create_backend(again.backend).fence(name, chain_id, again)

    async def close(self) -> None:
        """End all watches and streams of this event loop (they end by themselves with the loop)."""
        await objects.close()

    async def _found(self, job: ForeignJob, submission: Submission) -> JobRef | None:
        if job.platform == PROCESS:
            return await _seen(asyncio.to_thread(process.found, job, submission))
        return await objects.found(job, submission)

    async def _is_over(self, ref: JobRef) -> bool:
        """Whether this is the one that was stopped, and not another that somebody has started in its place."""
        return not process.is_alive(ref) if _is_process(ref) else False


def create_backend() -> ForeignBackend:
    """Return the backend (called by ``registry``)."""
    return ForeignBackend()


def _foreign(job: TrainingJob) -> ForeignJob:
    if not isinstance(job, ForeignJob):
        raise TypeError(f"job: a {type(job).__name__} is not allowed. The foreign backend takes a ForeignJob.")
    return job


def _is_foreign(ref: JobRef) -> bool:
    return ref.backend == ForeignJob.backend


def _is_process(ref: JobRef) -> bool:
    return _is_foreign(ref) and ref.where.get("platform") == PROCESS


def _of(ref: JobRef) -> Backend:
    """Return the backend that can look at the job: that of its platform, or its own if it was submitted again."""
    return registry.create_backend(str(ref.where["platform"]) if _is_foreign(ref) else ref.backend)


def _named(ref: JobRef) -> JobRef:
    """Return the reference with the name that the job has where it is."""
    return ref.but(name=str(ref.where["object"])) if _is_foreign(ref) else ref


def _missing(job: ForeignJob) -> str:
    if job.platform == PROCESS:
        log = "" if job.log else " With log= what a process that has ended has written could be judged."
        return f"pid: {job.pid} is not allowed: there is no such process (any more) on this machine.{log}"
    where = f" in {job.namespace}" if job.namespace else ""
    return f"name: {job.name!r} is not allowed: there is no {job.kind} of this name{where}. Create it before this task."


async def _seen(looking: Awaitable[T]) -> T:
    """Wait for a look at this machine. What the file system refuses is "we could not see"."""
    try:
        return await looking
    except OSError as error:
        raise UnreachableError(f"{type(error).__name__}: {error}") from error
