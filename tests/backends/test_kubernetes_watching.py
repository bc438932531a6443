"""One list and one watch: how it is taken up again, and what is kept of the objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from airflow_ft.backends import connections
from airflow_ft.backends.connections import ConnectionValues
from airflow_ft.backends.kubernetes import watching
from airflow_ft.backends.kubernetes.api import Api
from airflow_ft.backends.kubernetes.pods import read_pod
from airflow_ft.backends.kubernetes.watching import APPLIED, Collection, slim


def test_what_nobody_reads_is_not_kept_and_what_a_pod_says_stays() -> None:
    """A quarter of a megabyte of environment, in each of hundreds of pods."""
    big = [{"name": f"B{number}", "value": "ü" * 30_000} for number in range(4)]
    containers = [{"name": name, "image": "i", "env": big} for name in ("proxy", "main")]
    pod = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "annotations": {APPLIED: "x" * 100_000, "airflow-ft/container": "main"},
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "n1", "containers": containers, "initContainers": [{"name": "data", "env": big}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
    }
    before = read_pod(json.loads(json.dumps(pod)))
    kept = slim(pod)
    assert len(json.dumps(kept)) < 1_000
    assert read_pod(kept) == before
    assert (before.container, before.containers, before.running) == ("main", ("proxy", "main"), True)


class Watched:
    """An API server with one pod, whose watches are closed after ``seconds``; each time the pod has changed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.version, self.lists, self.resumed_at = 1, 0, list[str]()
        self.expired = False

    def pod(self) -> dict[str, Any]:
        return {"metadata": {"name": "p", "resourceVersion": str(self.version)}}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"items": [self.pod()], "metadata": {"resourceVersion": str(self.version)}})
        self.resumed_at.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if self.expired:
            self.expired = False
            gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        self.version += 1
        await response.write(json.dumps({"type": "MODIFIED", "object": self.pod()}).encode() + b"\n")
        await asyncio.sleep(self.seconds)
        return response


def watch(server: Watched, story: Callable[[Collection], Awaitable[None]]) -> None:
    async def play() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", server.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

        async def resolve(conn_id: str) -> ConnectionValues:
            return ConnectionValues(conn_id, extra={"kube_config": config})

        connections.use(resolve)
        api = Api("c")
        collection = Collection(api, "/api/v1/namespaces/ns/pods")
        try:
            await story(collection)
        finally:
            await collection.stop()
            await api.close()
            await runner.cleanup()

    asyncio.run(play())


def test_watches_that_are_closed_again_and_again_go_on_where_they_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One list, whatever a proxy thinks of long connections; each watch begins at what the one before had seen."""
    monkeypatch.setattr(watching, "LIVED_SECONDS", 0.01)
    server = Watched(seconds=0.05)

    async def story(collection: Collection) -> None:
        await collection.look()
        while len(server.resumed_at) < 12:
            await asyncio.sleep(0.02)
            seen = (await collection.look())["p"]["metadata"]["resourceVersion"]
            assert int(seen) <= server.version
        assert server.lists == 1
        assert server.resumed_at == sorted(set(server.resumed_at), key=int), "nothing is seen twice, nothing left out"

    watch(server, story)


def test_a_version_that_is_forgotten_costs_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the API server."""
    monkeypatch.setattr(watching, "PAUSE_SECONDS", 0.01)
    server = Watched(seconds=0.05)

    async def story(collection: Collection) -> None:
        await collection.look()
        server.expired = True
        while server.lists < 2 or len(server.resumed_at) < 4:
            await asyncio.sleep(0.02)
        assert server.lists == 2

    watch(server, story)
