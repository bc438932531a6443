"""What one process knows of one cluster: its API, the watches that all jobs share, and one ``JobView`` for each job.

All of it belongs to an event loop and dies with it: a worker that looks once (``asyncio.run``) lists, a triggerer
watches. The first look at a job is a plain list; whoever looks twice is watching.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes import agents, building, records, strangers
from airflow_ft.backends.kubernetes.affinity import HOSTNAME
from airflow_ft.backends.kubernetes.agents import AgentState
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.backends.kubernetes.kinds import KINDS, Json, Kind, walk
from airflow_ft.backends.kubernetes.logs import Stream
from airflow_ft.backends.kubernetes.observation import Closed, Known, Picture
from airflow_ft.backends.kubernetes.obstacles import Obstacle, obstacle_of
from airflow_ft.backends.kubernetes.pods import PodFacts, read_pod
from airflow_ft.backends.kubernetes.status import read_status
from airflow_ft.backends.kubernetes.watching import Collection
from airflow_ft.core.chain import JobRef

IDLE_SECONDS = 300.0  # a watch that nobody looked at for so long ends
NODES = "/api/v1/nodes"
ASK_AT_ONCE = 32
ASK_AGAIN_SECONDS = 1.0  # a job that prints agents' lines by itself gets no more than this
UNHEARD_SECONDS = 2.0  # an agent that can't be heard, since nobody reads its log, or that has not said a word yet
EVENTS_AT_ONCE, EVENTS_AGAIN_SECONDS = 12, 20.0  # of pods that aren't made yet: a large job pulls a large image
HEARD_SECONDS = 300.0  # one that can be heard: in case that a line of its was lost

_clusters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Cluster]] = WeakKeyDictionary()


def of(conn_id: str) -> Cluster:
    """Return the cluster of a connection, for the running event loop."""
    known = _clusters.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in known:
        known[conn_id] = Cluster(conn_id)
    return known[conn_id]


def pods_path(namespace: str) -> str:
    """Return the API's path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


class View(Protocol):
    """What is known of something that is looked at. It ends when nobody has looked for ``IDLE_SECONDS``."""

    used_at: float

    def stop(self) -> None:
        """End all streams."""


ViewT = TypeVar("ViewT", bound=View)


class Cluster:
    """One API server, seen from one event loop."""

    def __init__(self, conn_id: str) -> None:
        self.api = Api(conn_id)
        self._collections: dict[tuple[str, str], Collection] = {}
        self._views: dict[str, View] = {}
        self._keeper = asyncio.get_running_loop().create_task(self._keep_house(), name=f"cluster {conn_id}")

    def view(self, ref: JobRef) -> JobView:
        """Return what is known of a job."""
        return self.kept(f"{ref.name}/{ref.uid}", lambda: JobView(self, ref))

    def kept(self, key: str, make: Callable[[], ViewT]) -> ViewT:
        """Return the view under a key, made anew if nobody looked at it for long."""
        if key not in self._views:
            self._views[key] = make()
        return cast("ViewT", self._views[key])

    async def objects(self, path: str, selector: str = "", *, watch: bool = True) -> dict[str, Json]:
        """Return the objects under a path, from the shared watch. Raises ``UnreachableError`` or ``ApiError``."""
        key = (path, selector)
        if key not in self._collections:
            self._collections[key] = Collection(self.api, path, selector)
        return await self._collections[key].look(watch=watch)

    async def nodes(self, *, watch: bool = True) -> dict[str, Json] | None:
        """Return all nodes; ``None`` if this account may not see them."""
        try:
            return await self.objects(NODES, watch=watch)
        except ApiError:
            return None

    async def close(self) -> None:
        """End everything."""
        for view in self._views.values():
            view.stop()
        for collection in self._collections.values():
            await collection.stop()
        self._keeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeper

    async def _keep_house(self) -> None:
        """End what nobody uses any more; close the connections when the loop ends."""
        try:
            while True:
                await asyncio.sleep(IDLE_SECONDS / 5)
                now = time.monotonic()
                for key, collection in list(self._collections.items()):
                    if now - collection.used_at > IDLE_SECONDS:
                        await self._collections.pop(key).stop()
                for uid, view in list(self._views.items()):
                    if now - view.used_at > IDLE_SECONDS:
                        self._views.pop(uid).stop()
        finally:
            await self.api.close()


class JobView:
    """What is known of one job: its pods, also those that are gone, its agents, its logs."""

    def __init__(self, cluster: Cluster, ref: JobRef) -> None:
        self._cluster, self.ref = cluster, ref
        self.used_at = time.monotonic()
        self.pods: dict[str, PodFacts] = {}  # by uid, in the order they came
        self.vanished: set[str] = set()
        self.agents: dict[str, AgentState] = {}
        self.streams: dict[str, Stream] = {}
        self._ooms: dict[tuple[str, int], int] = {}  # the kernel's count when a generation was first seen
        self._dirty: dict[str, bool] = {}
        self._asked: dict[str, float] = {}
        self._stuck: dict[str, tuple[bool, float]] = {}  # whether with a reason (or still being made), since when
        self._obstacles: dict[str, tuple[float, Obstacle | None]] = {}  # when its events were read, and what they say
        self._looks = 0
        self._record: records.Found | None = None
        self._object: Json | None = None  # as it was last seen

    @property
    def kind(self) -> Kind:
        """The job's row in the table of kinds."""
        return KINDS[str(self.ref.where["api_version"]), str(self.ref.where["kind"])]

    @property
    def namespace(self) -> str:
        """Where the job is."""
        return str(self.ref.where["namespace"])

    @property
    def path(self) -> str:
        """The API's path of the job."""
        return f"{self.kind.collection(str(self.ref.where['api_version']), self.namespace)}/{self.ref.name}"

    @property
    def api(self) -> Api:
        """The API server."""
        return self._cluster.api

    async def nodes(self, *, watch: bool = False) -> dict[str, Json] | None:
        """Return all nodes; ``None`` if this account may not see them."""
        return await self._cluster.nodes(watch=watch)

    def stop(self) -> None:
        """End all streams."""
        for stream in self.streams.values():
            stream.stop()

    # --- looking -------------------------------------------------------------------------------------------------

    async def picture(self) -> Picture:
        """Look at everything. Raises ``UnreachableError``."""
        self.used_at = time.monotonic()
        self._looks += 1
        watch = self._looks > 1
        try:
            job = await self._job(watch=watch)
            if job is not None and walk(job, ("metadata", "uid")) != self.ref.uid:
                return Picture(replaced=True)
            await self.see_pods(watch=watch)
            nodes = await self._cluster.nodes(watch=watch) if self.pods else {}
        except ApiError as error:
            raise UnreachableError(f"{self.ref.name} can't be seen: {error}") from error
        if watch:
            for stream in self.printing():
                stream.listen()
        await self._ask_agents()
        await self._read_events()
        status = read_status(self.kind, job) if job is not None else None
        ended = status is None or status.deleting or status.suspended
        closed = await self._closed() if ended else None
        return Picture(
            status=status,
            pods=[self._known(pod) for pod in self.pods.values()],
            nodes=nodes,
            expected=int(str(self.ref.where.get("pods", 1))),
            closed=closed,
            start_error_seconds=self._start_error_seconds,
            volume_error_seconds=float(str(self.ref.where.get("volume_error_seconds", 600))),
            age_seconds=(now() - self.ref.submitted_at).total_seconds(),
            removes_itself=bool(self.ref.where.get("removes_itself")),
            foreign=bool(self.ref.foreign),
        )

    async def _job(self, *, watch: bool) -> Json | None:
        """Return the object under the job's name."""
        job = None
        if watch and not self.ref.foreign:
            collection = self.path.rpartition("/")[0]
            job = (await self._cluster.objects(collection, building.CHAIN)).get(self.ref.name)
        if job is None:  # a watch may be a moment behind: that an object is gone is asked directly
            job = await self.api.find(self.path)
        self._object = job or self._object
        return job

    async def see_pods(self, *, watch: bool = False) -> list[PodFacts]:
        """Return the pods that exist now, and remember them."""
        present = [read_pod(pod) for pod in await self._pods(watch=watch)]
        for pod in sorted(present, key=lambda one: one.name):
            self.pods[pod.uid] = pod
            self._note_waiting(pod)
            if pod.uid in self.streams:
                self.streams[pod.uid].pod = pod
        self.vanished = self.pods.keys() - {pod.uid for pod in present}
        return present

    async def _pods(self, *, watch: bool) -> list[Json]:
        if self.ref.foreign:
            return await self._pods_of_a_stranger(watch=watch)
        mine = building.selector(self.ref.chain_id, self.ref.attempt)
        if watch:
            labels = {building.CHAIN: self.ref.chain_id, building.ATTEMPT: str(self.ref.attempt)}
            return [
                pod
                for pod in (await self._cluster.objects(pods_path(self.namespace), building.CHAIN)).values()
                if labels.items() <= (walk(pod, ("metadata", "labels")) or {}).items()
            ]
        return list((await self._cluster.objects(pods_path(self.namespace), mine, watch=False)).values())

    async def _pods_of_a_stranger(self, *, watch: bool) -> list[Json]:
        """Return the pods of an object that we have not made, as if we had."""
        if self._object is None:
            await self._job(watch=False)
        found: dict[str, Json] = {}
        for label, value in strangers.marks(self.kind, self.ref.name, self._object):
            selector = label if watch else f"{label}={value}"
            pods = await self._cluster.objects(pods_path(self.namespace), selector, watch=watch)
            found |= {name: pod for name, pod in pods.items() if walk(pod, ("metadata", "labels", label)) == value}
        return [strangers.dressed(pod, self.kind) for pod in found.values()]

    def _note_waiting(self, pod: PodFacts) -> None:
        # Pulling an image alternates between ErrImagePull and ImagePullBackOff: one wait, not many.
        waits = pod.waiting is not None and not pod.running and not pod.over
        if not waits and not pod.creating:
            self._stuck.pop(pod.uid, None)
            self._obstacles.pop(pod.uid, None)
        elif pod.uid not in self._stuck or self._stuck[pod.uid][0] is not waits:
            self._stuck[pod.uid] = (waits, time.monotonic())

    def _known(self, pod: PodFacts) -> Known:
        since = self._stuck.get(pod.uid)
        return Known(
            pod=pod,
            agent=(agent := self.agents.get(pod.uid)),
            oom_killed=agent is not None and (agent.oom_kills or 0) > self._ooms.get((pod.uid, agent.generation), 0),
            vanished=pod.uid in self.vanished,
            stuck_seconds=time.monotonic() - since[1] if since is not None else 0.0,
            obstacle=self._obstacles.get(pod.uid, (0.0, None))[1],
        )

    @property
    def _start_error_seconds(self) -> float:
        return float(str(self.ref.where.get("start_error_seconds", 60)))

    async def _read_events(self) -> None:
        """Ask what the pods wait for that have been in the making for too long: some of them, and not all the time."""
        now, before = time.monotonic(), self._start_error_seconds

        def asked(uid: str) -> float:
            return self._obstacles[uid][0] if uid in self._obstacles else -math.inf

        long = [uid for uid, (waits, since) in self._stuck.items() if not waits and now - since >= before]
        due = [uid for uid in long if uid not in self.vanished and now - asked(uid) >= EVENTS_AGAIN_SECONDS]
        due = sorted(due, key=asked)[:EVENTS_AT_ONCE]
        told = await asyncio.gather(*(events_of(self.api, self.namespace, self.pods[uid].name) for uid in due))
        for uid, events in zip(due, told, strict=True):
            mine = [event for event in events if walk(event, ("involvedObject", "uid")) in (None, uid)]
            self._obstacles[uid] = (now, obstacle_of(mine))

    async def _closed(self) -> Closed | None:
        if self.ref.foreign:
            return None  # its record, if it has one, is its owner's
        try:
            self._record = await records.read(self.api, self.namespace, self.ref.name)
        except ApiError as error:
            raise UnreachableError(f"the record of {self.ref.name} can't be read: {error}") from error
        return self._record.closed if self._record is not None else None

    # --- agents --------------------------------------------------------------------------------------------------

    def mark_dirty(self, uid: str | None = None) -> None:
        """An agent has said something: its state is worth a look. ``None``: some agent of the job."""
        for one in [uid] if uid is not None else list(self.pods):
            self._dirty[one] = True

    def with_agents(self) -> list[PodFacts]:
        """Return the pods whose agents can be talked to."""
        present = [pod for pod in self.pods.values() if pod.uid not in self.vanished]
        return [pod for pod in present if pod.agent and pod.running and not pod.over]

    async def ask_agent(self, pod: PodFacts) -> None:
        """Ask one agent for its state."""
        self._dirty[pod.uid] = False
        self._asked[pod.uid] = time.monotonic()
        try:
            found = await agents.ask(self.api, self.namespace, pod)
        except UnreachableError:  # a pod on a dead node answers nobody; the control plane's word on it counts
            self._dirty[pod.uid] = True
            return
        if found is not None:
            self.agents[pod.uid] = found
            before = found.oom_kills if found.generation and found.oom_kills else 0
            self._ooms.setdefault((pod.uid, found.generation), before)

    async def _ask_agents(self) -> None:
        due = [pod for pod in self.with_agents() if self._is_due(pod.uid)]
        for start in range(0, len(due), ASK_AT_ONCE):
            await asyncio.gather(*(self.ask_agent(pod) for pod in due[start : start + ASK_AT_ONCE]))

    def _is_due(self, uid: str) -> bool:
        """Whether an agent is asked: it has said something, or nobody reads its log, or it was never heard of."""
        since = time.monotonic() - self._asked.get(uid, float("-inf"))
        if self._dirty.get(uid, False):
            return since > ASK_AGAIN_SECONDS
        heard = uid in self.agents and any(stream.follows for stream in self.streams.values())
        return since > (HEARD_SECONDS if heard else UNHEARD_SECONDS)

    # --- logs ----------------------------------------------------------------------------------------------------

    def printing(self) -> list[Stream]:
        """Return the streams of all pods in which training prints, made as they are needed."""
        for uid, pod in self.pods.items():
            if pod.prints and pod.node is not None and uid not in self.streams:
                mine = uid if pod.agent else None  # a Ray submitter prints what the agent in the head says
                self.streams[uid] = Stream(
                    self.api,
                    self.namespace,
                    pod,
                    lambda mine=mine: self.mark_dirty(mine),  # type: ignore[misc]
                )
        return list(self.streams.values())


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


async def events_of(api: Api, namespace: str, name: str) -> list[Json]:
    """Return the events of one object; none, if this account may not see events or nobody answers."""
    path, about = f"/api/v1/namespaces/{namespace}/events", f"involvedObject.name={name}"
    try:
        found = await api.get(path, fieldSelector=about, limit=500)
    except (ApiError, UnreachableError):
        return []
    return [event for event in found.get("items") or () if isinstance(event, dict)]


def hostnames(nodes: Mapping[str, Json] | None) -> dict[str, str]:
    """Return the host name label of the nodes where it isn't their name."""
    path = ("metadata", "labels", HOSTNAME)
    labels = {name: walk(node, path) for name, node in (nodes or {}).items()}
    return {name: str(label) for name, label in labels.items() if label and label != name}


async def close_all() -> None:
    """End all watches, streams and connections of the running event loop."""
    for known in _clusters.pop(asyncio.get_running_loop(), {}).values():
        await known.close()
