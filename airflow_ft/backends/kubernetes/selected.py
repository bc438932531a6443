"""Pods that somebody else started, found by their labels: what they do and what they print. They are never touched.

``SelectedPods`` is to a selector what ``cluster.JobView`` is to a job of ours: it lives as long as somebody looks,
shares the cluster's watches, and follows the log of each matching pod. Which of them prints the training's steps is
found out by whoever reads them (``core.progress``).

Nobody has told us what these pods belong to, so their end is read with care:

- a pod that failed counts for nothing once another one has its place (the same index) or, without an index, was made
  after it failed: that is how jobs and operators repeat;
- while one runs, all run: a finished worker beside a running one is somebody's hang at most;
- pods that were there and are gone may be made anew: only after ``GONE_SECONDS`` they are gone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from airflow_ft.backends.abilities import PodSelection
from airflow_ft.backends.base import Cursors, JobState, LogChunk, Observation, UnreachableError
from airflow_ft.backends.kubernetes import cluster, logs
from airflow_ft.backends.kubernetes.api import ApiError, namespace_or_own
from airflow_ft.backends.kubernetes.building import CONTAINER
from airflow_ft.backends.kubernetes.job import DEFAULT_CONTAINER, training_container
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.logs import Stream
from airflow_ft.backends.kubernetes.pods import PodFacts, read_pod

GONE_SECONDS = 300.0  # an operator that restarts a job deletes its pods first; queues may take longer, nobody can tell
MOST_PODS = 256  # whose logs are followed


class SelectedPods:
    """The pods of one selection, seen from one event loop."""

    def __init__(self, where: cluster.Cluster, selection: PodSelection) -> None:
        self._cluster, self._selection = where, selection
        self.used_at = time.monotonic()
        self._namespace = ""
        self._pods: dict[str, PodFacts] = {}  # by uid, those that exist
        self._streams: dict[str, Stream] = {}  # by uid, also of those that are gone, until all was read
        self._absent_since: float | None = None

    async def observe(self) -> Observation:
        """Say what the pods do together. Raises ``UnreachableError``."""
        await self._see()
        state, code, reason = state_of(list(self._pods.values()))
        if not self._pods:
            reason = f"No pod in {self._namespace} matches {self._selection.selector!r}."
            if self._absent_since is not None and time.monotonic() - self._absent_since > GONE_SECONDS:
                state, reason = JobState.GONE, f"its pods have been gone for {GONE_SECONDS:.0f} s"
        return Observation(state=state, at=cluster.now(), code=code, reason=reason)

    async def read_logs(self, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what was written since ``cursors``. Raises ``UnreachableError``."""
        await self._see()
        if cursors and not self._pods and self._absent_since is None:
            self._absent_since = time.monotonic()  # an earlier process of ours has read their logs
        for pod in sorted(self._pods.values(), key=lambda one: one.name):
            if pod.uid in self._streams:
                self._streams[pod.uid].pod = pod
            elif pod.node is not None and len(self._streams) < MOST_PODS:
                self._streams[pod.uid] = Stream(self._cluster.api, self._namespace, pod, _nobody_listens)
        chunks, moved = await logs.read_on(list(self._streams.values()), cursors, limit)
        for uid in [uid for uid, stream in self._streams.items() if uid not in self._pods and stream.is_read_out]:
            self._streams.pop(uid).stop()
        return chunks, moved

    def stop(self) -> None:
        """End all streams."""
        for stream in self._streams.values():
            stream.stop()

    async def _see(self) -> None:
        self.used_at = time.monotonic()
        selector = self._selection.selector
        try:
            if not self._namespace:
                self._namespace = await namespace_or_own(self._cluster.api, self._selection.namespace)
            found = await self._cluster.objects(cluster.pods_path(self._namespace), selector)
        except ApiError as error:
            raise UnreachableError(f"the pods of {selector!r} in {self._namespace!r}: {error}") from error
        were_there = bool(self._pods)
        self._pods = {pod.uid: pod for pod in (self._read(item) for item in found.values())}
        if self._pods:
            self._absent_since = None
        elif were_there:
            self._absent_since = time.monotonic()

    def _read(self, item: Json) -> PodFacts:
        annotations = walk(item, ("metadata", "annotations")) or {}
        default = annotations.get(CONTAINER) or annotations.get(DEFAULT_CONTAINER)
        container = training_container(item.get("spec") or {}, self._selection.container, default).get("name", "")
        metadata = {**(item.get("metadata") or {}), "annotations": {**annotations, CONTAINER: container}}
        return read_pod({**item, "metadata": metadata})


def of(selection: PodSelection) -> SelectedPods:
    """Return what is known of a selection, for the running event loop."""
    where = cluster.of(selection.conn_id)
    return where.kept(f"pods {selection.model_dump_json()}", lambda: SelectedPods(where, selection))


def state_of(pods: Sequence[PodFacts]) -> tuple[JobState, int | None, str]:
    """Return what pods do together, the exit code if they ended, and why."""
    counting = [pod for pod in pods if not _is_replaced(pod, pods)]
    waiting = [pod for pod in counting if not pod.over and not pod.running]
    if any(pod.running and not pod.over for pod in counting):
        return JobState.RUNNING, None, ""
    if waiting or not counting:
        why = next((f"{pod.name}: {pod.waiting[0]} {pod.waiting[1]}".strip() for pod in waiting if pod.waiting), "")
        why = why or next((f"{pod.name}: {pod.unschedulable}" for pod in waiting if pod.unschedulable), "")
        return (JobState.STARTING if any(pod.node for pod in waiting) else JobState.QUEUED), None, why
    failed = [pod for pod in counting if pod.code != 0 and not (pod.code is None and pod.phase == "Succeeded")]
    if not failed:
        return JobState.ENDED, 0, ""
    first = min(failed, key=lambda pod: pod.ended.at.timestamp() if pod.ended and pod.ended.at else float("inf"))
    reason = (first.ended.reason if first.ended else "") or first.reason or first.message
    code = f"exit code {first.code}" if first.code is not None else "no exit code"
    return JobState.ENDED, first.code, f"{first.name} ended with {code}{f' ({reason})' if reason else ''}"


def _is_replaced(pod: PodFacts, pods: Sequence[PodFacts]) -> bool:
    """Whether another pod has taken the place of one that failed."""
    if not pod.over or pod.code == 0 or pod.created is None:
        return False
    indexed = pod.slot != pod.name
    end = pod.ended.at if pod.ended is not None and pod.ended.at is not None else pod.created
    since = pod.created if indexed else end
    others = [other for other in pods if other.uid != pod.uid and other.created is not None]
    return any(
        other.created > since and (other.slot == pod.slot if indexed else other.slot == other.name)  # type: ignore[operator]
        for other in others
    )


def _nobody_listens() -> None:
    """What an agent says in these logs is for the one who started them."""
