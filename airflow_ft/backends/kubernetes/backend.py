"""``KubernetesBackend``: the protocol, put together from the modules beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from airflow_ft.backends.abilities import PodSelection
from airflow_ft.backends.base import (
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
from airflow_ft.backends.kubernetes import (
    cluster,
    cordon,
    creation,
    ending,
    facts,
    introducing,
    logs,
    orders,
    probes,
    records,
    selected,
    telling,
)
from airflow_ft.backends.kubernetes.api import ApiError
from airflow_ft.backends.kubernetes.cluster import Cluster, JobView
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.observation import Closed, observe
from airflow_ft.backends.kubernetes.pods import PodFacts, node_trouble
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence
from airflow_ft.core.vitals import RankVitals

TAILS_AT_ONCE = 16


class KubernetesBackend:
    """Training on Kubernetes. What it remembers it could see again; the truth is in the cluster."""

    name: ClassVar[str] = KubernetesJob.backend
    can: ClassVar[frozenset[Capability]] = frozenset(Capability)
    poll_seconds: ClassVar[float] = 1.0  # a look at memory: the watch is what asks the cluster

    def check(self, job: TrainingJob) -> None:
        """Raise ``SubmissionRefusedError`` with everything that is wrong."""
        try:
            _kubernetes(job).document  # noqa: B018 - reading it validates what templates had kept from being read
        except ValueError as error:
            raise SubmissionRefusedError(str(error)) from error

    def probe_job(self, job: TrainingJob, command: tuple[str, ...], nodes: Sequence[str]) -> TrainingJob:
        """Return a plain Job with the pods of the training and another command."""
        mine = _kubernetes(job)
        self.check(mine)
        try:
            return probes.probing(mine, command, nodes)
        except ValueError as error:
            raise SubmissionRefusedError(str(error)) from error

    async def submit(self, job: TrainingJob, submission: Submission) -> JobRef:
        """Create or adopt the job."""
        mine = _kubernetes(job)
        self.check(mine)
        where = cluster.of(mine.conn_id)
        ref = await creation.create_or_adopt(where, mine, submission)
        without = f" without {', '.join(submission.excluded_nodes)}" if submission.excluded_nodes else ""
        counted = submission.tags.get("restarts")
        restarts = f", restarts {counted}" if counted else ""
        text = f"Attempt {submission.attempt} of chain {submission.chain_id}{without}{restarts}"
        await telling.tell(where.api, ref, "Submitted", text)
        return ref

    async def find(self, name: str, chain_id: str, job: TrainingJob | None = None) -> JobRef | None:
        """Look a job up by its name, where ``job`` says."""
        if job is None:
            raise UnreachableError("a Kubernetes job can't be looked up without its spec: it names the cluster")
        mine = _kubernetes(job)
        return await creation.find(cluster.of(mine.conn_id), mine, name, chain_id)

    def secrets(self, ref: JobRef) -> Sequence[str]:
        """Nothing: the manifest is in the cluster, and reading it back would need a call."""
        return ()

    async def observe(self, ref: JobRef) -> Observation:
        """See what the job is doing."""
        picture = await _view(ref).picture()
        return observe(picture, cluster.now())

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what was written since ``cursors``."""
        view = _view(ref)
        if not view.pods:
            await _seen(view)
        return await logs.read_on(view.printing(), cursors, limit)

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        """Return the ends of all logs, of all containers, also of earlier lives; and what the cluster says."""
        view = _view(ref)
        picture = await view.picture()
        at_once = asyncio.Semaphore(TAILS_AT_ONCE)

        async def one(pod: PodFacts) -> list[LogTail]:
            async with at_once:
                return await _tails_of(view, pod, limit)

        tails, platform = await asyncio.gather(
            asyncio.gather(*(one(pod) for pod in view.pods.values())), facts.platform_texts(view, picture)
        )
        return [*(tail for some in tails for tail in some), *platform]

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        """Return what the cluster knows: lost nodes, exit codes."""
        picture = await _view(ref).picture()
        return facts.evidence(picture, observe(picture, cluster.now()))

    async def pool(self, ref_or_job: JobRef | TrainingJob) -> PoolView:
        """Return the nodes that are Ready and take pods; none, if this account may not see nodes."""
        conn_id = ref_or_job.where["conn_id"] if isinstance(ref_or_job, JobRef) else _kubernetes(ref_or_job).conn_id
        nodes = await cluster.of(str(conn_id)).nodes(watch=isinstance(ref_or_job, JobRef))
        return PoolView(nodes=tuple(sorted(name for name, node in (nodes or {}).items() if _in_service(node))))

    async def dump_stacks(self, ref: JobRef) -> Sequence[StackGroup]:
        """Dump the stacks of every process of the command."""
        try:
            return await orders.dump_stacks(_view(ref))
        except ApiError as error:
            raise UnreachableError(str(error)) from error

    async def peek_stacks(self, ref: JobRef, by_signal: bool) -> Sequence[StackGroup]:
        """Look at the stacks of the processes that are on a CPU."""
        return await orders.peek_stacks(_view(ref), by_signal)

    async def vitals(self, ref: JobRef) -> Sequence[RankVitals]:
        """Return CPU time, I/O and state of each rank, as the agents see them."""
        return await orders.vitals(_view(ref))

    async def restart_in_place(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Give the order to every node; returns those that refused."""
        view = _view(ref)
        try:
            refused = await orders.restart(view, order)
        except ApiError as error:
            raise UnreachableError(str(error)) from error
        if not refused:
            text = f"Restart in place, generation {order.generation} ({order.by})"
            await telling.tell(view.api, ref, "RestartedInPlace", text)
        return refused

    async def release(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Tell all nodes that no restart will come; returns those where another decision stands."""
        try:
            return await orders.release(_view(ref), order)
        except ApiError as error:
            raise UnreachableError(str(error)) from error

    async def cancel(self, ref: JobRef, grace: float, by: str = "airflow_ft") -> None:
        """Stop the job and return when nothing of it is left."""
        view = _view(ref)
        await telling.tell(view.api, ref, "Stopped", f"Stopped by {by}")
        await ending.cancel(view, grace, Closed(by=by, why=f"stopped by {by}"))

    async def fence(self, name: str, chain_id: str, job: TrainingJob | None = None) -> None:
        """Stop what runs under the name and close the name for ever."""
        if job is None:
            raise UnreachableError("a Kubernetes job can't be fenced without its spec: it names the cluster")
        mine = _kubernetes(job)
        where = cluster.of(mine.conn_id)
        closed = Closed(by="airflow_ft", why="fenced")
        try:
            namespace = await creation.namespace_of(where.api, mine)
            if await records.plant(where.api, namespace, name, chain_id, closed):
                return
            record = await records.read(where.api, namespace, name)
        except ApiError as error:
            raise UnreachableError(f"{name} can't be fenced: {error}") from error
        if record is not None and record.chain_id != chain_id:
            return
        try:
            ref = await creation.find(where, mine, name, chain_id)
        except ForeignJobError:
            return
        if ref is not None:
            await ending.cancel(where.view(ref), 0.0, closed)
        elif record is not None:  # nobody came to make the object, and nobody will
            await records.mark_closing(where.api, namespace, record, name, closed)
            await records.close(where.api, namespace, record, name)

    async def observe_pods(self, selection: PodSelection) -> Observation:
        """Say what pods of somebody else do."""
        return await selected.of(selection).observe()

    async def read_pod_logs(
        self, selection: PodSelection, cursors: Cursors, limit: int
    ) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what they printed since ``cursors``."""
        return await selected.of(selection).read_logs(cursors, limit)

    async def introduce(self, ref: JobRef) -> bool:
        """Tell the pods of a probe where the first of them is."""
        return await introducing.introduce(_view(ref))

    async def all_nodes(self, where: str) -> Sequence[str]:
        """Return all nodes of a connection's cluster."""
        return await cordon.names(cluster.of(where).api)

    async def keep_out(self, where: str, nodes: Mapping[str, str]) -> Sequence[str]:
        """Cordon these nodes, and uncordon those that we have cordoned before."""
        return await cordon.keep_out(cluster.of(where).api, nodes)

    async def close(self) -> None:
        """End all watches and streams of this event loop (they end by themselves with the loop)."""
        await cluster.close_all()


def create_backend() -> KubernetesBackend:
    """Return the backend (called by ``registry``)."""
    return KubernetesBackend()


def _kubernetes(job: TrainingJob) -> KubernetesJob:
    if not isinstance(job, KubernetesJob):
        raise TypeError(f"job: a {type(job).__name__} is not allowed. The Kubernetes backend takes a KubernetesJob.")
    return job


def _view(ref: JobRef) -> JobView:
    where: Cluster = cluster.of(str(ref.where["conn_id"]))
    return where.view(ref)


async def _seen(view: JobView) -> None:
    try:
        await view.see_pods()
    except ApiError as error:
        raise UnreachableError(f"{view.ref.name} can't be seen: {error}") from error


async def _tails_of(view: JobView, pod: PodFacts, limit: int) -> list[LogTail]:
    """Return the ends of one pod's logs; of a pod that is gone, what was read of it while it was there."""
    stream = view.streams.get(pod.uid)
    kept = b"\n".join(stream.kept)[-limit:] if stream is not None else b""
    remembered = [LogTail(source=logs.source_of(pod), node=pod.node, data=kept)] if kept else []
    if pod.node is None:
        return []
    if pod.uid in view.vanished:
        return remembered
    wanted = [(container, False) for container in pod.containers]
    wanted += [(ended.container, False) for ended in pod.others_ended if ended.init]
    wanted += [(pod.container, True)] if pod.restarts else []
    found = []
    for container, previous in wanted:
        try:
            tail = await logs.tail_of(view.api, view.namespace, pod, container, limit, previous=previous)
        except UnreachableError:  # a lost node serves no logs
            tail = None
        if tail is None and container == pod.container and not previous:
            found += remembered
        elif tail is not None and tail.data:
            found.append(tail)
    return found


def _in_service(node: Json) -> bool:
    """Whether a node can be used. One that we have cordoned ourselves counts: the quarantine has its own cap."""
    unschedulable = walk(node, ("spec", "unschedulable")) is True
    return (not unschedulable or cordon.is_ours(node)) and not node_trouble(node)
