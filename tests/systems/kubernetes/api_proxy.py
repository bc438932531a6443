"""A proxy before an API server: counts what is asked, answers some of it with errors, and cuts connections.

It takes plain HTTP from the client under test and speaks TLS to the server, one connection a request, so that a
connection's fate is a request's fate. Watches and exec (an upgraded connection) are passed through as they come.
Runs in a thread with an event loop of its own: the loop under test may be blocked, or counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests.systems.kubernetes.certificates import CONTEXT

HEAD_LIMIT = 256 * 1024
STATUS_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


@dataclass(frozen=True)
class Request:
    """What the proxy sees of a request."""

    method: str
    path: str

    @property
    def is_watch(self) -> bool:
        """Whether it is a stream of events."""
        return "watch=" in urlsplit(self.path).query


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of, or after, its being forwarded.

    ``status``: answered with it, never forwarded. ``silence_seconds``: nothing for so long, then the connection closes.
    ``lost_answer``: forwarded and carried out, but the client never hears of it.
    """

    status: int = 0
    silence_seconds: float = 0.0
    lost_answer: bool = False


Judge = Callable[[Request], Fault | None]


def one_in(count: int, seed: int = 1, silence_seconds: float = 3.0) -> Judge:
    """Fail one request in so many, streams included, with every kind of fault in turn by chance."""
    chance = random.Random(seed)
    faults = [*(Fault(status=status) for status in STATUS_REASONS), Fault(lost_answer=True)]
    faults.append(Fault(silence_seconds=silence_seconds))
    return lambda request: chance.choice(faults) if chance.randrange(count) == 0 else None


@dataclass
class ApiProxy:
    """The proxy, a context manager.

    :param kubeconfig: of the API server; its user's credentials come from the client.
    :param judge: says what fails.
    :param stream_seconds: how long a watch may live; 0: as long as it likes.
    """

    kubeconfig: Path
    judge: Judge = lambda request: None
    stream_seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        cluster = json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]
        target = urlsplit(cluster["server"])
        self._target = (target.hostname or "", target.port or 443)
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE  # of this machine's own server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-proxy", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> ApiProxy:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_LIMIT))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._run(self._drop_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig that leads through the proxy."""
        content = json.loads(self.kubeconfig.read_text())
        content["clusters"] = [{"name": CONTEXT, "cluster": {"server": f"http://127.0.0.1:{self.port}"}}]
        path.write_text(json.dumps(content))
        return path

    def drop_connections(self) -> None:
        """Cut every open connection."""
        self._run(self._drop_all())

    async def _drop_all(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        # A connection that breaks is what this is for.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            await self._one_request(reader, writer)
        self._connections.discard(task)
        writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        request = Request(method, path)
        self.requests[self._name(request)] += 1
        fault = self.judge(request) or Fault()
        if fault != Fault():
            self.faults[f"{fault}"] += 1
        if fault.silence_seconds:
            await asyncio.sleep(fault.silence_seconds)
            return
        if fault.status:
            await _refuse(writer, fault.status)
            return
        await self._forward(lines, request, reader, writer, fault.lost_answer)

    async def _forward(
        self,
        lines: list[str],
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lost: bool,
    ) -> None:
        there, back = await asyncio.open_connection(*self._target, ssl=self._tls)
        try:
            back.write("\r\n".join(_one_connection(lines)).encode("latin-1"))
            upward = asyncio.create_task(_copy(reader, back))
            if lost:
                await asyncio.wait_for(there.read(1), 30)  # it was carried out
            else:
                limit = self.stream_seconds if request.is_watch and self.stream_seconds else None
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(_copy(there, writer), limit)
            upward.cancel()
        finally:
            back.close()

    @staticmethod
    def _name(request: Request) -> str:
        parts = urlsplit(request.path).path.strip("/").split("/")
        if parts[-1] in ("exec", "log"):
            return parts[-1]
        verb = "watch" if request.is_watch else request.method.lower()
        return f"{verb} {next((part for part in parts if part in WORDS), parts[-1])}"


WORDS = ("pods", "nodes", "events", "configmaps", "jobs", "pytorchjobs", "jobsets", "trainjobs")


def _one_connection(lines: list[str]) -> list[str]:
    """The head of a request with ``Connection: close``, unless it asks for another protocol."""
    if any(line.lower().startswith("upgrade:") for line in lines):
        return lines
    kept = [line for line in lines if not line.lower().startswith("connection:")]
    return [kept[0], "Connection: close", *kept[1:]]


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(64 * 1024):
        target.write(data)
        await target.drain()


async def _refuse(writer: asyncio.StreamWriter, status: int) -> None:
    reason = STATUS_REASONS[status]
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
    body = json.dumps({**told, "message": f"injected {reason}"}).encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Retry-After: 1\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
