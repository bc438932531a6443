"""An API server of a few hundred pods in memory, behind the backend's own client interface; it counts what is asked.

For what no test machine has room for: 512 pods at once, pods that vanish with their logs. How a real API server behaves
is the matter of ``tests/kubernetes``.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import ApiError, Executed
from airflow_ft.backends.kubernetes.kinds import Json

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FakeApi:
    """As much of ``kubernetes.api.Api`` as the backend uses. Every request takes ``delay`` seconds."""

    namespace = "ns"

    def __init__(self, pods: int, delay: float = 0.0) -> None:
        self.count, self.delay = pods, delay
        self.calls = 0
        self.objects: dict[str, Json] = {}  # by path
        self.logs: dict[str, list[bytes]] = defaultdict(list)  # by pod, with stamps
        self.executed: list[tuple[str, tuple[str, ...]]] = []  # pod, and what was run in it beside the agent
        self.held: set[str] = set()  # pods whose agents say that training has failed
        self.looks: dict[tuple[str, str], Json] = {}  # what an agent finds, by pod and verb ("vitals", "stacks")
        self.asked: list[list[str]] = []  # what agents were told
        self._grown = asyncio.Condition()
        self._watchers: list[tuple[str, str, asyncio.Queue[bytes]]] = []  # path, selector, what to tell

    # --- what happens in the cluster -----------------------------------------------------------------------------

    def pods(self) -> list[Json]:
        """All pods."""
        return [item for path, item in self.objects.items() if "/pods/" in path]

    async def print(self, pod: str, *lines: str) -> None:
        """A pod prints some lines."""
        log = self.logs[pod]
        for text in lines:
            at = BEGAN + timedelta(milliseconds=len(log) + 1)
            log.append(f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z {text}\n".encode())
        await self._tell_readers()

    async def remove(self, pod: Json) -> None:
        """A pod vanishes, and its log with it."""
        name = pod["metadata"]["name"]
        self.logs.pop(name, None)
        self._forget(f"/api/v1/namespaces/ns/pods/{name}")
        await self._tell_readers()

    def add_pod(self, name: str, labels: dict[str, str], node: str | None = "n1", **more: Any) -> None:
        """Somebody else makes a pod. ``more`` goes into its spec."""
        metadata = {"name": name, "labels": labels, "creationTimestamp": f"{BEGAN:%Y-%m-%dT%H:%M:%SZ}"}
        spec = {"containers": [{"name": "main"}], "nodeName": node, **more}
        pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self._add(f"/api/v1/namespaces/ns/pods/{name}", pod)
        if node is not None:
            self.change_pod(name, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})

    def change_pod(self, name: str, phase: str, state: Json, container: str = "main") -> None:
        """The kubelet tells a new state of a pod's container."""
        pod = self.objects[f"/api/v1/namespaces/ns/pods/{name}"]
        pod["status"] = {"phase": phase, "containerStatuses": [{"name": container, "state": state}]}
        self._tell("MODIFIED", "/api/v1/namespaces/ns/pods", pod)

    async def end_pod(self, name: str, code: int, container: str = "main") -> None:
        """A pod's container ends."""
        ended = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "finishedAt": "2026-01-01T01:00:00Z",
        }
        self.change_pod(name, "Succeeded" if code == 0 else "Failed", {"terminated": ended}, container)
        await self._tell_readers()

    def _tell(self, what: str, collection: str, item: Json) -> None:
        event = json.dumps({"type": what, "object": item}).encode() + b"\n"
        for path, selector, queue in self._watchers:
            if path == collection and _is_selected(item, selector):
                queue.put_nowait(event)

    async def _tell_readers(self) -> None:
        async with self._grown:
            self._grown.notify_all()

    def _forget(self, path: str) -> None:
        gone = self.objects.pop(path)
        self._tell("DELETED", path.rpartition("/")[0], gone)

    def _add(self, path: str, item: Json) -> Json:
        if path in self.objects:
            raise ApiError(409, "AlreadyExists", path)
        item["metadata"]["uid"] = f"uid-{len(self.objects)}-{path.rpartition('/')[2]}"
        self.objects[path] = item
        self._tell("ADDED", path.rpartition("/")[0], item)
        return item

    def _run(self, job: Json) -> None:
        template = job["spec"]["template"]
        for number in range(self.count):
            name = f"{job['metadata']['name']}-{number}"
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": str(number)}
            pod = {
                "metadata": {**template["metadata"], "labels": labels, "name": name},
                "spec": {**template["spec"], "nodeName": f"n{number}"},
                "status": {
                    "phase": "Running",
                    "podIP": f"10.0.0.{number + 1}",
                    "containerStatuses": [
                        {"name": one["name"], "state": state} for one in template["spec"]["containers"]
                    ],
                },
            }
            self._add(f"/api/v1/namespaces/ns/pods/{name}", pod)

    # --- the client's interface ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Nothing to close."""

    async def own_namespace(self) -> str:
        """The connection's namespace."""
        return "ns"

    async def get(self, path: str, **query: Any) -> Json:
        """A list."""
        await self._called()
        there = [item for of, item in self.objects.items() if of.rpartition("/")[0] == path]
        items = [item for item in there if _is_selected(item, query.get("labelSelector") or "")]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    async def find(self, path: str) -> Json | None:
        """An object."""
        await self._called()
        return self.objects.get(path)

    async def create(self, path: str, body: Json, **query: Any) -> Json:
        """Create; a Job has its pods at once."""
        await self._called()
        name = body["metadata"].get("name") or f"event-{self.calls}"
        if query.get("dryRun"):
            return body
        made = self._add(f"{path}/{name}", json.loads(json.dumps(body)))
        if body["kind"] == "Job":
            self._run(made)
        return made

    async def patch(self, path: str, body: Json) -> Json:
        """Change an object (merge patch). Who names an older version of it meets somebody who was quicker."""
        await self._called()
        there = self.objects[path]
        version = there["metadata"].get("resourceVersion")
        if (body.get("metadata") or {}).get("resourceVersion", version) != version:
            raise UnreachableError("409: the object has been modified")
        self.objects[path] = _merged(there, body)
        if version is not None:
            self.objects[path]["metadata"]["resourceVersion"] = str(int(version) + 1)
        return self.objects[path]

    def add_node(self, name: str, *, unschedulable: bool | None = None) -> Json:
        """A node joins the cluster."""
        spec = {} if unschedulable is None else {"unschedulable": unschedulable}
        metadata = {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/hostname": name}}
        return self._add(f"/api/v1/nodes/{name}", {"kind": "Node", "metadata": metadata, "spec": spec, "status": {}})

    async def delete(self, path: str, body: Json | None = None, **query: Any) -> bool:
        """Delete; a Job takes its pods along."""
        await self._called()
        job = self.objects.get(path)
        if job is None:
            return False
        self._forget(path)
        if job["kind"] == "Job":
            for pod in self.pods():
                if pod["metadata"]["name"].startswith(f"{job['metadata']['name']}-"):
                    await self.remove(pod)
        return True

    async def call(self, method: str, path: str, query: Mapping[str, Any], body: Json, **more: Any) -> Json:
        """A patch; else an event is told, which nobody keeps."""
        if method == "PATCH":
            return await self.patch(path, body)
        await self._called()
        return body

    async def execute(self, namespace: str, pod: str, container: str, argv: Sequence[str], seconds: float) -> Executed:
        """What the agent in a pod says of itself."""
        await self._called()
        if "" not in argv:  # no words for the agent
            self.executed.append((pod, tuple(argv)))
            return Executed(0, "", "")
        words = list(argv[argv.index("") + 1 :])
        self.asked.append(words)
        if words[0] != "show":
            found = self.looks.get((pod, words[0]))
            return Executed(1, "", "no answer") if found is None else Executed(0, json.dumps(found), "")
        failed = pod in self.held
        state = {"phase": "held" if failed else "running", "code": 1 if failed else None, "generation": 0}
        return Executed(0, json.dumps({"state": state, "lives": True, "command_lives": not failed}), "")

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, Any] | None = None, **more: Any) -> AsyncIterator[Any]:
        """A watch, or a log."""
        await self._called()
        if not path.endswith("/log"):
            yield _Body(self._watch(path, str((query or {}).get("labelSelector") or "")))
            return
        pod = path.split("/")[-2]
        if f"/api/v1/namespaces/ns/pods/{pod}" not in self.objects:
            raise ApiError(404, "NotFound", pod)
        yield _Body(self._log(pod, dict(query or {})))

    async def _called(self) -> None:
        self.calls += 1
        await asyncio.sleep(self.delay)

    async def _watch(self, path: str, selector: str) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers.append((path, selector, queue))
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove((path, selector, queue))

    async def _log(self, pod: str, query: dict[str, Any]) -> AsyncIterator[bytes]:
        stamps, since = query.get("timestamps"), str(query.get("sinceTime", ""))[:19]
        at = max(0, len(self.logs[pod]) - int(query.get("tailLines") or 10**9))
        while True:
            new = self.logs[pod][at:]
            at += len(new)
            told = [line if stamps else line.partition(b" ")[2] for line in new if line[:19].decode() >= since]
            if told:
                yield b"".join(told)
            if not query.get("follow") or pod not in self.logs:
                return
            async with self._grown:
                if len(self.logs.get(pod, ())) <= at:
                    await self._grown.wait()


def _merged(there: Any, change: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(change, dict):
        return change
    kept = dict(there) if isinstance(there, dict) else {}
    for name, value in change.items():
        kept[name] = _merged(kept.get(name), value)
        if value is None:
            del kept[name]
    return kept


def _is_selected(item: Json, selector: str) -> bool:
    """Whether an object has these labels: ``a=b`` and ``a``, joined by commas."""
    labels = item["metadata"].get("labels") or {}
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(name in labels and (not equals or labels[name] == value) for name, equals, value in wanted)


class _Body:
    """A response whose body comes piece by piece."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self.content = self

    def iter_any(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self._pieces])
