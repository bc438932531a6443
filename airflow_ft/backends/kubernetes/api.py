"""The one way to the API server: JSON calls with patience, streams, and commands inside containers.

What the library and the network throw becomes one of two errors here: ``ApiError``, the server's own "no" (404, 409,
403, 422 …), and ``UnreachableError``, everything that says nothing about the job (no answer, 429, 5xx, 401 after the
credential was renewed, an answer that is no JSON). Calls are tried again within a bound; all of them may be, because
objects have names of ours, and deletions name the uid.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes import access
from airflow_ft.backends.kubernetes.kinds import Json
from airflow_ft.backends.kubernetes.pace import Pace
from airflow_ft.backends.time_limits import within

CALL_SECONDS = 10.0
TRIES = 4
PAUSE_SECONDS = 0.3  # doubled each time, with a jitter
CONFLICT = 409
PASSING = (429, 500, 502, 503, 504)
RETIRED_SECONDS = 600.0  # longer than any watch lives
CONNECTIONS = 0  # no limit: each followed log is a connection for as long as its pod lives
EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_OUTPUT = 8 * 1024 * 1024
MERGE = "application/merge-patch+json"
AGENT_NAME = "airflow-ft"
DEFAULT_NAMESPACE = "default"
_STDOUT, _STDERR, _STATUS = 1, 2, 3


class ApiError(Exception):
    """The server says no. ``status`` is the HTTP status, ``reason`` Kubernetes' word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(message or f"{status} {reason}")


class Executed(NamedTuple):
    """What a command in a container came to."""

    code: int
    output: str
    errors: str


class Api:
    """One API server, with the credential of one connection. Belongs to one event loop."""

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self.namespace: str | None = None
        self.calls = 0  # requests sent, streams included
        self._client: ApiClient | None = None
        self._retired: set[ApiClient] = set()  # their tokens have died, their streams may live
        self._loading = asyncio.Lock()
        self._pace = Pace()

    async def close(self) -> None:
        """Close all connections."""
        open_ones = [*self._retired, *([self._client] if self._client is not None else [])]
        self._client = None
        for client in open_ones:
            await self._forget(client)

    async def _forget(self, client: ApiClient) -> None:
        self._retired.discard(client)
        await client.close()

    async def own_namespace(self) -> str | None:
        """Return the namespace of the connection, if it has one."""
        await self._connected()
        return self.namespace

    # --- calls ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, **query: Any) -> Json:
        """Read."""
        return await self.call("GET", path, query)

    async def find(self, path: str) -> Json | None:
        """Read; ``None`` if it does not exist."""
        try:
            return await self.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, path: str, body: Json, **query: Any) -> Json:
        """Create."""
        return await self.call("POST", path, query, body)

    async def patch(self, path: str, body: Json) -> Json:
        """Change (merge patch)."""
        return await self.call("PATCH", path, {}, body, MERGE)

    async def delete(self, path: str, body: Json | None = None, **query: Any) -> bool:
        """Delete; ``False`` if it was gone."""
        try:
            await self.call("DELETE", path, query, body or {})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Json | None = None,
        content: str = "application/json",
        tries: int = TRIES,
    ) -> Json:
        """Make a call and return the answer's JSON. Raises ``ApiError`` or ``UnreachableError``."""
        for left in reversed(range(tries)):
            await self._pace.turn()  # waiting for it is no part of the call's time
            try:
                return await within(CALL_SECONDS, self._once(method, path, query or {}, body, content))
            except (UnreachableError, TimeoutError) as error:
                if not left:
                    raise UnreachableError(f"{method} {path}: {error}") from error
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (tries - 1 - left) * (0.5 + random.random()))
        raise AssertionError("unreachable")

    async def _once(self, method: str, path: str, query: Mapping[str, Any], body: Json | None, content: str) -> Json:
        response = await self._opened(method, path, query, body, content, None)
        try:
            raw = await _read(response)
        finally:
            response.close()
        try:
            answer = json.loads(raw)
        except ValueError as error:
            raise UnreachableError(f"an answer that is no JSON: {raw[:100]!r}") from error
        return answer if isinstance(answer, dict) else {"value": answer}

    # --- streams -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        silence_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a request whose answer is read piece by piece. Raises ``ApiError`` or ``UnreachableError``.

        :param silence_seconds: without a byte for so long it is broken off.
        """
        await self._pace.turn()
        response = await self._opened("GET", path, query or {}, None, "application/json", silence_seconds)
        try:
            yield response
        finally:
            response.close()

    async def _opened(
        self, method: str, path: str, query: Mapping[str, Any], body: Json | None, content: str, silence: float | None
    ) -> aiohttp.ClientResponse:
        refused: ApiClient | None = None
        for _ in range(2):
            client = await self._connected(instead_of=refused)
            headers = {"Accept": "application/json, */*", "Content-Type": content, "User-Agent": AGENT_NAME}
            await _authenticate(client.configuration, headers)
            self.calls += 1
            given = {key: _spelled(value) for key, value in query.items() if value is not None}
            limits = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS, sock_read=silence)
            try:
                response = await client.rest_client.pool_manager.request(
                    method,
                    f"{client.configuration.host}{path}" + (f"?{urlencode(given)}" if given else ""),
                    headers=headers,
                    data=None if body is None else json.dumps(body),
                    timeout=limits,
                    **_options(client.configuration),
                )
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise UnreachableError(f"{type(error).__name__}: {error}") from error
            if response.status < 400:
                return response
            refusal = await _refusal(response, method)
            if response.status != 401:
                raise refusal
            refused = client
        raise UnreachableError(f"the credential of {self.conn_id!r} is not accepted (401): {refusal}")

    async def _connected(self, *, instead_of: ApiClient | None = None) -> ApiClient:
        """Return the client; a new one, with what the connection says now, if it is the one that was refused.

        A token dies for all who wait at the same moment: the first of them renews it for the others.
        """
        async with self._loading:
            if self._client is None or self._client is instead_of:
                old = self._client
                found, self.namespace = await access.configuration(self.conn_id)
                found.connection_pool_maxsize = CONNECTIONS
                self._client = ApiClient(configuration=found)
                if old is not None:  # streams may still run over it
                    self._retired.add(old)
                    asyncio.get_running_loop().call_later(
                        RETIRED_SECONDS, lambda: asyncio.ensure_future(self._forget(old))
                    )
            return self._client

    # --- commands in containers ----------------------------------------------------------------------------------

    async def execute(self, namespace: str, pod: str, container: str, argv: Sequence[str], seconds: float) -> Executed:
        """Run a command in a container. Raises ``UnreachableError``, and ``ApiError`` if there is no such container."""
        await self._pace.turn()
        try:
            return await within(seconds, self._execute(namespace, pod, container, argv))
        except TimeoutError as error:
            raise UnreachableError(f"exec in {pod}: no answer within {seconds:.0f} s") from error

    async def _execute(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> Executed:
        query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", w) for w in argv)]
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{urlencode(query)}"
        refused: ApiClient | None = None
        for _ in range(2):
            client = await self._connected(instead_of=refused)
            headers = {"User-Agent": AGENT_NAME}
            await _authenticate(client.configuration, headers)
            self.calls += 1
            try:
                async with client.rest_client.pool_manager.ws_connect(
                    f"{client.configuration.host}{path}".replace("http", "ws", 1),
                    headers=headers,
                    protocols=EXEC_PROTOCOLS,
                    max_msg_size=MAX_OUTPUT,
                    **_options(client.configuration),
                ) as socket:
                    return await _conversation(socket, pod)
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and refused is None:
                    refused = client
                    continue
                if error.status in (403, 404):
                    raise ApiError(error.status, "exec", f"exec in {pod} is refused: {error.message}") from error
                raise UnreachableError(f"exec in {pod}: {error.status} {error.message}") from error
            except (aiohttp.ClientError, OSError) as error:
                raise UnreachableError(f"exec in {pod}: {type(error).__name__}: {error}") from error
        raise AssertionError("unreachable")


async def namespace_or_own(api: Api, given: str | None) -> str:
    """Return the namespace to work in: the given one, else the connection's, else ``default``."""
    return given or await api.own_namespace() or DEFAULT_NAMESPACE


async def _conversation(socket: aiohttp.ClientWebSocketResponse, pod: str) -> Executed:
    parts: dict[int, bytes] = {_STDOUT: b"", _STDERR: b"", _STATUS: b""}
    async for message in socket:
        data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
        if data and data[0] in parts and len(parts[data[0]]) < MAX_OUTPUT:
            parts[data[0]] += data[1:]
    try:
        status = json.loads(parts[_STATUS])
    except ValueError:
        raise UnreachableError(f"exec in {pod} broke off without a result") from None
    code = 0
    if status.get("status") != "Success":
        causes = (status.get("details") or {}).get("causes") or []
        told = [one.get("message") for one in causes if one.get("reason") == "ExitCode"]
        if not told:
            raise UnreachableError(f"exec in {pod}: {status.get('message', 'no result')!s:.200}")
        code = int(told[0])
    return Executed(code, parts[_STDOUT].decode("utf-8", "replace"), parts[_STDERR].decode("utf-8", "replace"))


async def _authenticate(configuration: Configuration, headers: dict[str, str]) -> None:
    for setting in (await configuration.auth_settings()).values():
        if setting["value"]:
            headers[setting["key"]] = setting["value"]
    if configuration.username and "authorization" not in headers:
        headers["authorization"] = configuration.get_basic_auth_token()


def _options(configuration: Configuration) -> dict[str, Any]:
    options = {"proxy": configuration.proxy, "server_hostname": configuration.tls_server_name}
    return {key: value for key, value in options.items() if value}


async def _read(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.read()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UnreachableError(f"the answer broke off: {type(error).__name__}: {error}") from error


async def _refusal(response: aiohttp.ClientResponse, method: str) -> Exception:
    """Return the error that an answer stands for."""
    try:
        raw = await _read(response)
    finally:
        response.close()
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {}
    message = str(answer.get("message") or raw[:300].decode("utf-8", "replace"))
    # Only a creation can meet a conflict that stays; a change or deletion meets somebody who was quicker.
    if response.status in PASSING or (response.status == CONFLICT and method != "POST"):
        return UnreachableError(f"{response.status}: {message}")
    return ApiError(response.status, str(answer.get("reason") or response.reason or ""), message)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
