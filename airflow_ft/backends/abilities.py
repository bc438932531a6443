"""What only some backends can do, each a protocol of its own: who needs it asks ``isinstance(backend, …)``.

The rules of ``base`` hold here too: coroutines, a caller's time limit, unreachable is not dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from airflow_ft.backends.base import Cursors, LogChunk, Observation, StackGroup, TrainingJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.records import Record
from airflow_ft.core.vitals import RankVitals


class PodSelection(Record):
    """Pods that somebody else started: a label selector, as ``kubectl -l`` takes it."""

    selector: str
    namespace: str | None = None  # ``None``: the connection's, else "default"
    conn_id: str = "kubernetes_default"
    container: str | None = None  # the one that trains; ``None``: the default container, one with GPUs, the first


@runtime_checkable
class SeesVitals(Protocol):
    """A backend that can see what the processes of a job do. Elsewhere silence is all there is to judge a hang."""

    async def vitals(self, ref: JobRef) -> Sequence[RankVitals]:
        """Return CPU time, I/O and state of every rank; one that isn't there has ended. Raises ``UnreachableError``.

        It is asked once a second while training is silent, more rarely when that is allowed to last long.
        """


@runtime_checkable
class PeeksStacks(Protocol):
    """A backend that can look at the stacks of busy processes without disturbing them (``agent.stacks.peek``)."""

    async def peek_stacks(self, ref: JobRef, by_signal: bool) -> Sequence[StackGroup]:
        """Return the stacks of the processes that are on a CPU right now.

        :param by_signal: a signal may be used where nothing better works; it interrupts no blocking call.
        """


@runtime_checkable
class SeesPods(Protocol):
    """A backend that can look at pods that somebody else started. They are never touched."""

    async def observe_pods(self, selection: PodSelection) -> Observation:
        """Say what the pods do together; ``QUEUED`` if there are none yet. Raises ``UnreachableError``."""

    async def read_pod_logs(
        self, selection: PodSelection, cursors: Cursors, limit: int
    ) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what they printed since ``cursors``, at most ``limit`` bytes. Raises ``UnreachableError``."""


@runtime_checkable
class RunsProbes(Protocol):
    """A backend with ``Capability.PROBE``: it runs any command on just these nodes, as a test of them."""

    def probe_job(self, job: TrainingJob, command: tuple[str, ...], nodes: Sequence[str]) -> TrainingJob:
        """Return a job that runs the command in the place that ``job`` names, once on each of these nodes.

        Where a job can't name its nodes it takes as many: its submission excludes all others of the pool.
        Each node's answer counts for itself: one that fails takes no other along. Raises ``SubmissionRefusedError``.
        """


@runtime_checkable
class Introduces(Protocol):
    """A backend that knows only of a job that runs where its nodes are."""

    async def introduce(self, ref: JobRef) -> bool:
        """Tell the nodes of a probe where they find each other; ``False``: not all of them run yet, ask again."""


@runtime_checkable
class Cordons(Protocol):
    """A backend whose platform can keep nodes out of service for everybody (a cordon, a drain with a reason)."""

    async def all_nodes(self, where: str) -> Sequence[str]:
        """Return all nodes of a cluster (``where`` is what tells it from others: a connection, a partition)."""

    async def keep_out(self, where: str, nodes: Mapping[str, str]) -> Sequence[str]:
        """Keep these nodes out (name and reason), and let all others go that were kept out by us before.

        What somebody else keeps out, or has brought back, is left alone. Returns what was done, one sentence for each
        node: "… is cordoned.", "… is uncordoned.", or what is in the way.
        """
