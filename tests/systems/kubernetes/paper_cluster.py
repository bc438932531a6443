"""An API server on paper: Jobs and pods in a dictionary, served over HTTP with lists, watches and followed logs.

For measuring clients where no real control plane can be had: what a client asks, and what that costs it, is the same.
Pods run as soon as they are made and end when they are told to; nothing is judged, scheduled or executed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.systems.kubernetes.beside import Beside

BOOKMARK_SECONDS = 60.0
STEP_SECONDS = 5.0


class PaperCluster(Beside):
    """The server, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        super().__init__("paper-cluster")
        self.objects: dict[str, dict[str, Any]] = {}  # by path
        self.requests: Counter[str] = Counter()
        self.ended_at: dict[str, float] = {}
        self.port = 0
        self._version = 0
        self._watchers: dict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)

    @property
    def running(self) -> list[str]:
        """The names of the pods that run."""
        pods = [item for path, item in list(self.objects.items()) if "/pods/" in path]
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

    def finish(self, pod: str) -> None:
        """Let a pod end well, and its Job."""
        self._run(self._finish(pod))

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig that leads here."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "paper", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "anybody", "user": {}}],
            "contexts": [{"name": "paper", "context": {"cluster": "paper", "user": "anybody"}}],
            "current-context": "paper",
        }
        path.write_text(json.dumps(content))
        return path

    async def _begin(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        node = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self._put("/api/v1/nodes/n1", node)

    async def _end(self) -> None:
        await self._runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- what happens in it ------------------------------------------------------------------------------------------

    def _put(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self._version += 1
        metadata = item["metadata"]
        metadata.setdefault("uid", f"uid-{self._version}")
        metadata.setdefault("creationTimestamp", _now())
        metadata["resourceVersion"] = str(self._version)
        self.objects[path] = item
        self._tell(path.rpartition("/")[0], {"type": kind, "object": item})
        return item

    def _tell(self, collection: str, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        for queue in self._watchers[collection]:
            queue.put_nowait(line)

    def _start(self, path: str, pod: dict[str, Any]) -> None:
        containers = pod["spec"]["containers"]
        state = {"running": {"startedAt": _now()}}
        common = {"imageID": "i", "ready": True, "restartCount": 0, "state": state}
        status = [{"name": one["name"], "image": one["image"], **common} for one in containers]
        conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "Ready")]
        pod["spec"]["nodeName"] = "n1"
        pod["status"] = {"phase": "Running", "conditions": conditions, "containerStatuses": status}
        self._put(path, pod)

    def _run_job(self, path: str, job: dict[str, Any]) -> None:
        template = json.loads(json.dumps(job["spec"]["template"]))
        name = f"{job['metadata']['name']}-x7k2p"
        pod = {"metadata": {**template.get("metadata", {}), "name": name}, "spec": template["spec"]}
        pods = path.split("/namespaces/")[1].split("/")[0]
        self._start(f"/api/v1/namespaces/{pods}/pods/{name}", pod)

    def _remove(self, path: str) -> dict[str, Any]:
        gone = self.objects.pop(path)
        collection, _, name = path.rpartition("/")
        self._tell(collection, {"type": "DELETED", "object": gone})
        if collection.endswith("/jobs"):
            for pod in [one for one in self.objects if "/pods/" in one and one.rpartition("-")[0].endswith(f"/{name}")]:
                self._remove(pod)
        return gone

    async def _finish(self, name: str) -> None:
        path = next(path for path in self.objects if path.endswith(f"/pods/{name}"))
        pod = json.loads(json.dumps(self.objects[path]))
        pod["status"]["phase"] = "Succeeded"
        for one in pod["status"]["containerStatuses"]:
            one["state"] = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": _now()}}
        self.ended_at[name] = time.time()
        self._put(path, pod)
        job = next((path for path in self.objects if path.endswith(f"/jobs/{name.rpartition('-')[0]}")), None)
        if job is not None:
            done = {"conditions": [{"type": "Complete", "status": "True", "reason": "CompletionsReached"}]}
            self._put(job, {**self.objects[job], "status": done})

    # --- what is asked -----------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        self.requests[f"{request.method} {path.rpartition('/')[2] if 'watch' in request.query else path}"] += 1
        if request.method == "POST":
            return self._create(path, await request.json(), dry="dryRun" in request.query)
        if "watch" in request.query:
            return await self._watch(request, path)
        if path.endswith("/log"):
            return await self._log(request, path.split("/")[-2])
        if path in self.objects:
            return await self._one(request, path)
        items = [item for of, item in self.objects.items() if of.rpartition("/")[0] == path]
        if items or path.rpartition("/")[2] in ("pods", "jobs", "nodes", "events", "configmaps"):
            items = [item for item in items if _selected(item, request.query.get("labelSelector", ""))]
            return web.json_response({"items": items, "metadata": {"resourceVersion": str(self._version)}})
        return _refused(404, "NotFound")

    def _create(self, collection: str, body: dict[str, Any], dry: bool) -> web.Response:
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            return _refused(409, "AlreadyExists")
        if dry or collection.endswith("/events"):
            return web.json_response(body, status=201)
        body["metadata"]["namespace"] = collection.split("/namespaces/")[1].split("/")[0]
        if collection.endswith("/pods"):
            self._start(path, body)
        else:
            self._put(path, body)
        if collection.endswith("/jobs"):
            self._run_job(path, body)
        return web.json_response(self.objects[path], status=201)

    async def _one(self, request: web.Request, path: str) -> web.Response:
        if request.method == "PATCH":
            change = await request.json()
            item = self.objects[path]
            self._put(path, {**item, **{key: {**item.get(key, {}), **value} for key, value in change.items()}})
        if request.method == "DELETE":
            return web.json_response(self._remove(path))
        return web.json_response(self.objects[path])

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers[path].append(queue)
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                try:
                    line = await asyncio.wait_for(queue.get(), BOOKMARK_SECONDS)
                except asyncio.TimeoutError:
                    mark = {"metadata": {"resourceVersion": str(self._version)}}
                    line = json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n"
                await response.write(line)
        self._watchers[path].remove(queue)
        return response

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        """A step every few seconds, for as long as the pod runs and somebody follows."""
        response = web.StreamResponse()
        await response.prepare(request)
        step = 0
        with suppress(ConnectionError):
            while True:
                step += 1
                stamp = (
                    f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}000Z " if "timestamps" in request.query else ""
                )
                await response.write(f"{stamp}step {step}/100000 loss {1 / step:.4f}\n".encode())
                if request.query.get("follow") != "true" or pod in self.ended_at:
                    return response
                await asyncio.sleep(STEP_SECONDS)
        return response


def _selected(item: dict[str, Any], selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    parts = [part.partition("=") for part in selector.split(",") if part]
    return all(key in labels and (not sign or labels[key] == value) for key, sign, value in parts)


def _refused(status: int, reason: str) -> web.Response:
    told = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": reason}
    return web.json_response(told, status=status)


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
