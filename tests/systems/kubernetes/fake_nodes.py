"""Nodes that are only said to be there: hundreds of pods "run" on them at the cost of one coroutine.

For measuring those who watch pods, where real containers would take the machine: the scheduler places pods on these
nodes, their status is what a kubelet would write, and their logs (a step every few seconds) come through the API server
as from any kubelet. Nothing is executed: no agents, no ``exec``.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.systems.kubernetes.beside import Beside
from tests.systems.kubernetes.cluster import OwnCluster

PODS = 110  # on each node, as a kubelet's default
LEASE_SECONDS = 4.0
LOOK_SECONDS = 0.3
STEP_SECONDS = 5.0
STATUS = "application/strategic-merge-patch+json"


class FakeNodes(Beside):
    """Fake nodes of a cluster, for the pods of one namespace. Runs in a thread with an event loop of its own."""

    def __init__(self, cluster: OwnCluster, namespace: str, count: int) -> None:
        super().__init__("fake-nodes")
        self._cluster, self._namespace = cluster, namespace
        self.names = [f"fake-{number}" for number in range(1, count + 1)]
        config = json.loads(cluster.kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self._keys: Path = cluster.control_plane.keys
        self._tasks: list[asyncio.Task[None]] = []
        self.running: dict[str, str] = {}  # pods that run, and their containers
        self.ended_at: dict[str, float] = {}

    def finish(self, pod: str, code: int = 0) -> None:
        """Let a pod end. When it was written is in ``ended_at``."""
        self._run(self._finish(pod, code))

    # --- the nodes ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        trusted = ssl.create_default_context(cafile=str(self._keys / "ca.crt"))
        self._session = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(ssl=trusted))
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        served.load_cert_chain(self._keys / "apiserver.crt", self._keys / "apiserver.key")
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._cluster.addresses.host, 0, ssl_context=served)
        await site.start()
        self._port = self._runner.addresses[0][1]
        for name in self.names:
            await self._make(name)
        self._tasks = [self._loop.create_task(self._renew()), self._loop.create_task(self._play())]

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        await self._runner.cleanup()

    async def _make(self, name: str) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        }
        await self._call("POST", "/api/v1/nodes", body)
        room = {"cpu": "1000", "memory": "4Ti", "pods": str(PODS)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": _now()}
        status = {
            "capacity": room,
            "allocatable": room,
            "conditions": [{**ready, "lastTransitionTime": _now()}],
            "addresses": [{"type": "InternalIP", "address": self._cluster.addresses.host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        await self._call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STATUS)

    async def _renew(self) -> None:
        """What tells the control plane that a node lives."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            for name in self.names:
                spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now("microseconds")}
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
                if not await self._call("PATCH", f"{path}/{name}", {"spec": spec}, "application/merge-patch+json"):
                    await self._call("POST", path, {**lease, "spec": spec})
            await asyncio.sleep(LEASE_SECONDS)

    # --- the pods ----------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        """Start what was placed, remove what was deleted."""
        while True:
            found = await self._call("GET", f"/api/v1/namespaces/{self._namespace}/pods") or {}
            for pod in found.get("items", ()):
                name = pod["metadata"]["name"]
                if pod["metadata"].get("deletionTimestamp"):
                    self.running.pop(name, None)
                    await self._call("DELETE", self._path(name), {"gracePeriodSeconds": 0})
                elif pod["spec"].get("nodeName") in self.names and name not in self.running | self.ended_at:
                    await self._start(name, pod["spec"]["containers"][0])
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        state = {"running": {"startedAt": _now()}}
        await self._write(name, "Running", container["name"], state, container["image"])
        self.running[name] = container["name"]

    async def _finish(self, name: str, code: int) -> None:
        container = self.running.pop(name)
        reason = "Error" if code else "Completed"
        state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": _now(), "finishedAt": _now()}}
        self.ended_at[name] = time.time()
        await self._write(name, "Failed" if code else "Succeeded", container, state, "i")

    async def _write(self, name: str, phase: str, container: str, state: dict[str, Any], image: str) -> None:
        ready = "True" if phase == "Running" else "False"
        conditions = [
            {"type": kind, "status": ready, "lastTransitionTime": _now()} for kind in ("Ready", "ContainersReady")
        ]
        conditions.append({"type": "Initialized", "status": "True", "lastTransitionTime": _now()})
        one = {"name": container, "image": image, "imageID": "i", "ready": phase == "Running", "restartCount": 0}
        status = {"phase": phase, "startTime": _now(), "conditions": conditions}
        status |= {"containerStatuses": [{**one, "state": state}]}
        await self._call("PATCH", f"{self._path(name)}/status", {"status": status}, STATUS)

    def _path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod}"

    async def _log(self, request: web.Request) -> web.StreamResponse:
        """A step every few seconds, for as long as the pod runs and somebody follows."""
        response = web.StreamResponse()
        await response.prepare(request)
        stamps, follows = ("true" in request.query.get(name, "") for name in ("timestamps", "follow"))
        pod, step = request.match_info["pod"], 0
        with suppress(ConnectionError):
            while True:
                step += 1
                line = f"step {step}/100000 loss {1 / step:.4f}\n"
                await response.write((f"{_now('nanoseconds')} {line}" if stamps else line).encode())
                if not follows or pod not in self.running:
                    break
                await asyncio.sleep(STEP_SECONDS)
        return response

    async def _call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """The answer, ``None`` for an error: what comes too late or twice does no harm here."""
        headers = {"Content-Type": content}
        data = json.dumps(body) if body is not None else None
        async with self._session.request(method, self._server + path, data=data, headers=headers) as answer:
            return await answer.json() if answer.status < 300 else None


def _now(precision: str = "seconds") -> str:
    now = datetime.now(timezone.utc)
    if precision == "nanoseconds":
        return f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z"
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if precision == "microseconds" else "%Y-%m-%dT%H:%M:%SZ")
