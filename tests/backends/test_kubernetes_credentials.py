"""Tokens of minutes under jobs of days: a kubeconfig's plugin is asked anew, by whoever is refused first."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from airflow_ft.backends import connections
from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.connections import ConnectionValues
from airflow_ft.backends.kubernetes.api import Api

pytestmark = [pytest.mark.story("WAT-16")]
PLUGIN = "client.authentication.k8s.io/v1"
STATUS = {"metadata": {}, "status": "Success"}


class Door:
    """An API server that lets one token in; and the plugin that hands tokens out, and counts."""

    def __init__(self, folder: Path) -> None:
        self.token, self.asked = "first", folder / "asked"
        self.credential = folder / "credential"
        self.refused: Counter[str] = Counter()
        self.hand_out("first")

    def hand_out(self, token: str) -> None:
        """From now on the plugin says this."""
        told = {"apiVersion": PLUGIN, "kind": "ExecCredential", "status": {"token": token}}
        self.credential.write_text(json.dumps(told))

    def config(self, port: int) -> dict[str, Any]:
        """A kubeconfig that asks the plugin."""
        say = f"echo >> {self.asked}; cat {self.credential}"
        plugin = {"apiVersion": PLUGIN, "command": "sh", "args": ["-c", say], "interactiveMode": "Never"}
        return {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "u", "user": {"exec": plugin}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    @property
    def questions(self) -> int:
        """How often the plugin was asked."""
        return len(self.asked.read_text().splitlines())

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A list, or a command that ends with 0."""
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.refused[request.path.rpartition("/")[2]] += 1
            return web.json_response({"message": "Unauthorized", "reason": "Unauthorized"}, status=401)
        if not request.path.endswith("/exec"):
            return web.json_response({"items": []})
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x03" + json.dumps(STATUS).encode())
        await socket.close()
        return socket


def served(door: Door, story: Callable[[Api], Any]) -> None:
    async def play() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", door.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        config = door.config(runner.addresses[0][1])

        async def resolve(conn_id: str) -> ConnectionValues:
            return ConnectionValues(conn_id, extra={"kube_config": config})

        connections.use(resolve)
        api = Api("c")
        try:
            await story(api)
        finally:
            await api.close()
            await runner.cleanup()

    asyncio.run(play())


def test_a_token_that_dies_is_renewed_once_for_all_who_wait(tmp_path: Path) -> None:
    door = Door(tmp_path)

    async def story(api: Api) -> None:
        await api.get("/api/v1/pods")
        assert door.questions == 1
        door.token = "second"
        door.hand_out("second")
        await asyncio.gather(*(api.get("/api/v1/pods") for _ in range(8)))
        assert door.refused["pods"] >= 1
        assert door.questions == 2, "one of them has asked, for all"

    served(door, story)


def test_a_command_in_a_container_is_tried_again_with_a_new_token(tmp_path: Path) -> None:
    """It may be the only call for minutes: a restart in place that nobody else's call renews the token for."""
    door = Door(tmp_path)

    async def story(api: Api) -> None:
        assert (await api.execute("ns", "p", "main", ["true"], 10.0)).code == 0
        door.token = "second"
        door.hand_out("second")
        assert (await api.execute("ns", "p", "main", ["true"], 10.0)).code == 0
        assert door.refused["exec"] == 1

    served(door, story)


def test_a_credential_that_stays_refused_says_nothing_about_the_job(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.token = "another"

    async def story(api: Api) -> None:
        with pytest.raises(UnreachableError, match="401"):
            await api.call("GET", "/api/v1/pods", tries=1)
        with pytest.raises(UnreachableError, match="401"):
            await api.execute("ns", "p", "main", ["true"], 10.0)

    served(door, story)
