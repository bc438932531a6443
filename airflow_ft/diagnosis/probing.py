"""A probe job: a job on just these nodes, as a test of them, through the backend.

It is a job like any other: its name is deterministic, so whoever repeats a test after a crash adopts the one that has
run, and nothing of it is left when the test is over, however it ends. What a test came to:

=====================================  ==========
the job ended with 0                   passed
it ended with another code             failed
it still runs after its time limit     failed: it hangs
it never started, can't be seen, gone  lost: says nothing
it was stopped, and no code is known   lost: says nothing
=====================================  ==========
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from airflow_ft.backends.abilities import Introduces, RunsProbes
from airflow_ft.backends.base import (
    Backend,
    CancelledJobError,
    Capability,
    JobState,
    Submission,
    SubmissionRefusedError,
    TrainingJob,
)
from airflow_ft.backends.time_limits import within
from airflow_ft.core.chain import JobRef

CALL_SECONDS = 60.0
START_SECONDS = 120.0  # a node that is free starts in seconds; one that isn't is somebody else's
GRACE_SECONDS = 5.0


class Outcome(NamedTuple):
    """What a test came to; ``failed`` is ``None`` when it says nothing."""

    failed: bool | None
    detail: str = ""


@dataclass(frozen=True)
class Probe:
    """One test. ``number`` tells it from the other tests of the same ``chain_id``.

    ``whole``: every node is waited for, also when one has failed already.
    """

    name: str
    number: int
    nodes: tuple[str, ...]
    command: tuple[str, ...]
    seconds: float
    preflight: dict[str, object] = field(default_factory=dict)
    whole: bool = False


class Owner(Protocol):
    """Who answers for probe jobs, also when the process that runs them dies."""

    def began(self, ref: JobRef) -> None:
        """A job runs."""

    def removed(self, ref: JobRef) -> None:
        """Nothing of it is left."""


class Nobody:
    """A person at a command line: nobody else answers."""

    def began(self, ref: JobRef) -> None:
        """Nothing is written down."""

    def removed(self, ref: JobRef) -> None:
        """Nothing was."""


@dataclass(frozen=True)
class Prober:
    """Where probes run: the place that ``job`` names. ``pool`` are all nodes there: a probe keeps out of the others."""

    backend: Backend
    job: TrainingJob
    chain_id: str
    pool: Collection[str]
    tags: dict[str, str]
    now: Callable[[], datetime]
    owner: Owner = field(default_factory=Nobody)

    @asynccontextmanager
    async def run(self, probe: Probe) -> AsyncIterator[tuple[JobRef, Outcome]]:
        """Run a test, and hand over the job that is over or late: it is removed afterwards. Raises ``BackendError``."""
        refuse_probes(self.backend)
        assert isinstance(self.backend, RunsProbes), "who says that it can has the method"
        job = self.backend.probe_job(self.job, probe.command, probe.nodes)
        submission = Submission(
            name=probe.name,
            chain_id=self.chain_id,
            attempt=probe.number,
            tags=self.tags,
            excluded_nodes=tuple(node for node in self.pool if node not in probe.nodes),
            preflight=probe.preflight,
            hold=0.0,
            grace=GRACE_SECONDS,
        )
        try:
            ref = await self._begun(job, submission)
        except asyncio.CancelledError:  # it may have been created all the same
            await within(CALL_SECONDS, self.backend.fence(probe.name, self.chain_id, job))
            raise
        self.owner.began(ref)
        try:
            yield ref, await self._outcome(ref, probe)
        finally:
            await within(CALL_SECONDS, self.backend.cancel(ref, 0.0))
            self.owner.removed(ref)

    async def _begun(self, job: TrainingJob, submission: Submission) -> JobRef:
        """Start a test, or find it: one that failed was stopped afterwards, and no name is used twice."""
        try:
            return await within(CALL_SECONDS, self.backend.submit(job, submission))
        except CancelledJobError:
            ref = await within(CALL_SECONDS, self.backend.find(submission.name, self.chain_id, job))
            if ref is None:
                raise
            return ref

    async def _outcome(self, ref: JobRef, probe: Probe) -> Outcome:
        backend, began, started = self.backend, self.now(), None
        strangers = bool(probe.preflight) and len(probe.nodes) > 1
        while True:
            seen = await within(CALL_SECONDS, backend.observe(ref))
            if seen.state is JobState.ENDED or (not probe.whole and any(node.code for node in seen.nodes)):
                code = seen.code or next((node.code for node in seen.nodes if node.code), 0)
                if seen.cancelled and not code:
                    return Outcome(None, "it was stopped before it had an answer")
                return Outcome(bool(code), "" if not code else f"code {code}")
            if seen.state is JobState.GONE:
                return Outcome(None, seen.reason)
            if seen.state is not JobState.QUEUED:
                started = started or self.now()
            if started is None and (self.now() - began).total_seconds() > START_SECONDS:
                return Outcome(None, f"never started: {seen.reason}")
            if started is not None and (self.now() - started).total_seconds() > probe.seconds:
                return Outcome(True, f"still running after {probe.seconds:.0f} s")
            if strangers and isinstance(backend, Introduces):
                strangers = not await within(CALL_SECONDS, backend.introduce(ref))
            await asyncio.sleep(backend.poll_seconds)


def refuse_probes(backend: Backend) -> None:
    """Raise ``SubmissionRefusedError`` if this backend can't run a job on just these nodes."""
    if Capability.PROBE not in backend.can:
        raise SubmissionRefusedError(
            f"backend: {backend.name!r} can't run probe jobs (a job on just the nodes that are named). Let the policy "
            "look at nodes inside the allocation: FaultTolerancePolicy.full(preflight={'set': 'standard'})."
        )


def some(nodes: Sequence[str], shown: int = 8) -> str:
    """Name some nodes, and say how many more there are."""
    more = f" and {len(nodes) - shown} more" if len(nodes) > shown else ""
    return ", ".join(nodes[:shown]) + more
