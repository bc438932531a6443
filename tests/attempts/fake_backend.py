"""A backend in memory that implements the whole protocol on a ``Cluster``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar

from pydantic import Field

from airflow_ft.backends.base import (
    CancelIncompleteError,
    CancelledJobError,
    Capability,
    Cursors,
    ForeignJobError,
    JobState,
    LogChunk,
    LogTail,
    NodeReport,
    Observation,
    Order,
    PoolView,
    StackGroup,
    Submission,
    SubmissionRefusedError,
    TrainingJob,
    UnreachableError,
)
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence, FaultClass, Role, Trust
from tests.attempts.fake_cluster import Cluster, Job, Node


class FakeJob(TrainingJob):
    """A job for the fake cluster."""

    backend: ClassVar[str] = "fake"
    command: tuple[str, ...] = ("train",)
    nodes: int = 1
    env: dict[str, str] = Field(default_factory=dict)

    def nodes_needed(self) -> int:
        return self.nodes


class FakeBackend:
    """The protocol, on a ``Cluster``."""

    name: ClassVar[str] = "fake"
    can: ClassVar[frozenset[Capability]] = frozenset(Capability)
    poll_seconds: ClassVar[float] = 1.0

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stacks: Sequence[StackGroup] = ()

    def check(self, job: TrainingJob) -> None:
        if self.cluster.refusal:
            raise SubmissionRefusedError(self.cluster.refusal)

    async def submit(self, job: TrainingJob, submission: Submission) -> JobRef:
        await self._called("submit")
        cluster, name = self.cluster, submission.name
        if name in cluster.foreign:
            raise ForeignJobError(f"{name} is somebody else's.")
        found = cluster.jobs.get(name)
        if name in cluster.closed and (found is None or found.closed_by):
            raise CancelledJobError(f"{name} was cancelled before.")
        if found is None:
            found = cluster.create(submission, job.nodes_needed())
        self._answered("submit")
        return found.ref

    async def find(self, name: str, chain_id: str, job: TrainingJob | None = None) -> JobRef | None:
        await self._called("find")
        if name in self.cluster.foreign:
            raise ForeignJobError(f"{name} is somebody else's.")
        found = self.cluster.jobs.get(name)
        old = found is not None and (self.cluster.now() - found.ref.submitted_at).total_seconds()
        return found.ref if found is not None and old >= self.cluster.lag_seconds else None

    def secrets(self, ref: JobRef) -> Sequence[str]:
        return ()

    async def observe(self, ref: JobRef) -> Observation:
        await self._called("observe")
        cluster, job = self.cluster, self._job(ref)
        if job is None:
            return Observation(state=JobState.GONE, at=cluster.now(), reason="there is no such job")
        cluster.place(job)
        state = cluster.state(job)
        code = cluster.code(job) if state is JobState.ENDED else None
        return Observation(
            state=state,
            at=cluster.now(),
            nodes=tuple(self._report(job, node, state) for node in job.nodes),
            code=code,
            cancelled=bool(job.closed_by),
            cancelled_by=job.closed_by,
        )

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        await self._called("read_logs")
        job = self.cluster.jobs.get(ref.name)  # files outlive the platform's memory
        if job is None or job.ref.uid != ref.uid or not job.nodes:
            return [], cursors
        source, text = f"{job.nodes[0].name}/output", self.cluster.text(job).encode()
        begin = cursors.get(source, 0)
        data = text[begin : begin + limit]
        chunks = [LogChunk(source=source, node=job.nodes[0].name, data=data)] if data else []
        return chunks, {**cursors, source: begin + len(data)}

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        await self._called("log_tails")
        job = self._job(ref)
        if job is None or not job.nodes:
            return []
        data = self.cluster.text(job).encode()[-limit:]
        return [LogTail(source=f"{job.nodes[0].name}/output", node=job.nodes[0].name, data=data)]

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        await self._called("evidence")
        job = self._job(ref)
        if job is None:
            return []
        state, code = self.cluster.state(job), self.cluster.code(job)
        over = state in (JobState.HELD, JobState.ENDED) and code
        text = (
            f"the command ended by signal {-(code or 0)}" if (code or 0) < 0 else f"the command ended with code {code}"
        )
        exits = [Evidence(source="exit", text=text, node=node.name, code=code) for node in job.nodes if over]
        lost = [node.name for node in job.nodes if node.name in self.cluster.lost]
        return exits + [
            Evidence(
                source="node",
                text=f"node {node} is down",
                node=node,
                role=Role.ROOT,
                fault_class=FaultClass.HW_NODE,
                trust=Trust.PLATFORM,
            )
            for node in lost
        ]

    async def pool(self, ref_or_job: JobRef | TrainingJob) -> PoolView:
        await self._called("pool")
        return PoolView(nodes=tuple(node for node in self.cluster.nodes if node not in self.cluster.lost))

    async def dump_stacks(self, ref: JobRef) -> Sequence[StackGroup]:
        await self._called("dump_stacks")
        return self.stacks

    async def restart_in_place(self, ref: JobRef, order: Order) -> Sequence[str]:
        return await self._give(ref, order, "restart")

    async def release(self, ref: JobRef, order: Order) -> Sequence[str]:
        return await self._give(ref, order, "release")

    async def cancel(self, ref: JobRef, grace: float, by: str = "airflow_ft") -> None:
        self.cluster.cancels.append(ref.name)
        await self._called("cancel")
        if self.cluster.cancel_fails:
            raise CancelIncompleteError(f"{ref.name} is still there")
        self.cluster.closed.add(ref.name)
        job = self._job(ref)
        if job is not None and self.cluster.state(job) not in (JobState.ENDED, JobState.GONE):
            job.closed_by, job.closed_at = by, self.cluster.seconds()
        self._answered("cancel")

    async def fence(self, name: str, chain_id: str, job: TrainingJob | None = None) -> None:
        await self._called("fence")
        if name in self.cluster.foreign:
            return
        self.cluster.closed.add(name)
        found = self.cluster.jobs.get(name)
        if found is not None:
            await self.cancel(found.ref, 0.0)

    # --- helpers -------------------------------------------------------------------------------------------------

    async def _called(self, method: str) -> None:
        self.cluster.calls.append(method)
        await asyncio.sleep(0)
        if {"*", method} & self.cluster.silent:
            await asyncio.sleep(10**6)
        if {"*", method} & self.cluster.unreachable:
            raise UnreachableError("no answer")

    def _answered(self, method: str) -> None:
        if method in self.cluster.answers_lost:
            raise UnreachableError("the answer was cut off")

    def _job(self, ref: JobRef) -> Job | None:
        job = self.cluster.jobs.get(ref.name)
        return job if job is not None and job.ref.uid == ref.uid and not job.forgotten else None

    def _report(self, job: Job, node: Node, state: JobState) -> NodeReport:
        lost = node.name in self.cluster.lost and state is not JobState.ENDED
        behind = self.cluster.behind(job, node)
        state = behind or (JobState.STARTING if self.cluster.age(job) < 0 and state is JobState.HELD else state)
        if node.early:
            state = JobState.HELD
        over = state in (JobState.HELD, JobState.ENDED)
        ended_at = self.cluster.epoch + timedelta(seconds=(job.started or 0.0) + job.run.seconds)
        return NodeReport(
            node=node.name,
            state=JobState.GONE if lost else state,
            generation=node.generation,
            code=1
            if node.early
            else (job.script[node.generation].code if behind else self.cluster.code(job))
            if over
            else None,
            term=job.run.term and over,
            lost=lost,
            lost_why="down" if lost else "",
            agent=self.cluster.agents and not lost,
            exited_at=self.cluster.epoch + timedelta(seconds=node.joined) if node.early else ended_at if over else None,
            spawned_at=self.cluster.epoch + timedelta(seconds=node.joined),
            note=node.note,
            notes=tuple(node.notes),
            digest=node.digest,
        )

    async def _give(self, ref: JobRef, order: Order, action: str) -> Sequence[str]:
        await self._called(action)
        job, refused = self._job(ref), []
        for number, node in enumerate(job.nodes if job is not None else []):
            if number >= self.cluster.orders_reach:
                raise UnreachableError("the network broke half-way")
            if job is not None and not self.cluster.give(job, node, order, action):
                gone = action == "release" and (node.name in self.cluster.lost or not self.cluster.agents)
                over = self.cluster.state(job) in (JobState.ENDED, JobState.GONE)
                ended = action == "release" and (over or self.cluster.behind(job, node) is JobState.ENDED)
                refused += [] if gone or ended else [node.name]
        self._answered(action)
        return refused
