"""The logs of a job's pods: what was written since last time without loss or doubling, and their ends.

A cursor is the time stamp of the last line that was handed out, in nanoseconds: the runtime stamps each line, stamps of
one container only grow, and the API's ``sinceTime`` (cut to the second by the server) is only where to begin to look.
A stream follows each container; it is taken up again wherever it broke. Only whole lines are handed out.

``n1/pretrain-x-a0-worker-0`` is the training container of a pod on node n1; another container's name follows a slash.
The last lines of each stream are kept: most operators delete a pod, and its log with it, seconds after another failed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import datetime, timezone

import aiohttp

from airflow_ft.backends.base import Cursors, LogChunk, LogTail, UnreachableError
from airflow_ft.backends.kubernetes.agents import is_news
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.backends.kubernetes.pods import PodFacts
from airflow_ft.backends.kubernetes.watching import lines_of

_STAMP = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
BUFFER_BYTES = 2_000_000  # of one stream, until somebody reads it
KEPT_BYTES = 256 * 1024  # of the end of each log, for when the pod is gone
KEPT_LINES = 2_000
LONG_LINE = 4_096  # a line that is longer than a share of at least this is handed out whole: else nothing would move
PAUSE_SECONDS = 1.0
SILENCE_SECONDS = 300.0  # a silent training is asked again: its connection may be dead
TAIL_LINES = 2_000

Line = tuple[int, bytes]


def stamped(line: bytes) -> Line | None:
    """Split a line into its stamp in nanoseconds and its text; ``None`` if it has no stamp."""
    match = _STAMP.match(line)
    if match is None:
        return None
    zone = match[3].replace(b"Z", b"+00:00").decode()
    seconds = int(datetime.fromisoformat(match[1].decode() + zone).timestamp())
    return seconds * 10**9 + int((match[2] or b"0").ljust(9, b"0")), line[match.end() :]


def source_of(pod: PodFacts) -> str:
    """Return the name of a pod's log. The node first: whoever reads a source wants to know where it is."""
    return f"{pod.node}/{pod.name}"


class Stream:
    """The log of one container, followed in the background."""

    def __init__(self, api: Api, namespace: str, pod: PodFacts, on_agent: Callable[[], None]) -> None:
        self._api, self._namespace, self._on_agent = api, namespace, on_agent
        self.pod = pod
        self.source = source_of(pod)
        self.handed = 0  # the stamp of the last line that was handed out
        self._read = 0  # the stamp of the last line that was read
        self._buffer: deque[Line] = deque()
        self._bytes = 0
        self._room = asyncio.Event()
        self.kept: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._kept_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self.finished = False
        self.listens = False

    def start(self, cursor: int) -> None:
        """Follow from a cursor, for somebody who takes what is read."""
        self.stop()
        self.listens = False
        self.handed = self._read = cursor
        self._buffer.clear()
        self._bytes, self.finished = 0, False
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"log {self.source}")

    def listen(self) -> None:
        """Follow from now on, only to hear the agent: nobody takes what is read."""
        if self._task is None:
            self.start(time.time_ns())
            self.listens = True

    def stop(self) -> None:
        """End following."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def follows(self) -> bool:
        """Whether it has been started."""
        return self._task is not None

    @property
    def is_read_out(self) -> bool:
        """Whether the log has ended and all of it was handed out."""
        return self.finished and not self._buffer

    def take(self, limit: int) -> bytes:
        """Hand out what was read, whole lines, at most ``limit`` bytes."""
        taken: list[bytes] = []
        size = 0
        while self._buffer:
            if size + len(self._buffer[0][1]) + 1 > limit and (taken or limit < LONG_LINE):
                break
            stamp, text = self._buffer.popleft()
            taken.append(text + b"\n")
            size += len(text) + 1
            self.handed = stamp
        self._bytes -= size
        self._room.set()
        return b"".join(taken)

    async def read_once(self, cursor: int, limit: int) -> tuple[bytes, int, bool]:
        """Read right now, without following: the text, the new cursor, and whether there is more."""
        taken: list[bytes] = []
        size = 0
        try:
            async for stamp, text in self._lines(cursor, follow=False):
                if size + len(text) + 1 > limit and (taken or limit < LONG_LINE):
                    return b"".join(taken), cursor, True
                taken.append(text + b"\n")
                size += len(text) + 1
                cursor = stamp
                self._keep(text)
        except UnreachableError:
            if not taken:
                raise
            return b"".join(taken), cursor, True
        return b"".join(taken), cursor, False

    # --- following -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                async for stamp, text in self._lines(self._read, follow=True):
                    await self._put(stamp, text)
                if self.pod.over:
                    self.finished = True
                    return
            except ApiError as error:
                if error.status == 404 or (self.pod.over and error.status == 400):
                    self.finished = True
                    return
            except UnreachableError:
                pass  # taken up again where it stopped
            await asyncio.sleep(PAUSE_SECONDS)

    async def _put(self, stamp: int, text: bytes) -> None:
        if self.listens:
            self._read = stamp
            self._keep(text)
            return
        while self._bytes > BUFFER_BYTES:
            self._room.clear()
            await self._room.wait()
        self._buffer.append((stamp, text))
        self._bytes += len(text) + 1
        self._read = stamp
        self._keep(text)

    def _keep(self, text: bytes) -> None:
        if is_news(text):
            self._on_agent()
        self._kept_bytes += len(text) + 1
        if len(self.kept) == KEPT_LINES:
            self._kept_bytes -= len(self.kept[0]) + 1
        self.kept.append(text)
        while self._kept_bytes > KEPT_BYTES and len(self.kept) > 1:
            self._kept_bytes -= len(self.kept.popleft()) + 1

    async def _lines(self, cursor: int, *, follow: bool) -> AsyncIterator[Line]:
        """Yield the lines after a cursor. Raises ``UnreachableError`` when the stream breaks."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self.pod.name}/log"
        query: dict[str, object] = {"container": self.pod.container, "timestamps": True, "follow": follow or None}
        if cursor:
            since = datetime.fromtimestamp(cursor // 10**9, timezone.utc)
            query["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        silence = SILENCE_SECONDS if follow else 20.0
        async with self._api.stream(path, query, silence_seconds=silence) as response:
            try:
                async for raw in lines_of(response):
                    line = stamped(raw)
                    if line is not None and line[0] > cursor:
                        yield line
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                raise UnreachableError(f"the log of {self.pod.name} broke off: {type(error).__name__}") from error


async def read_on(streams: list[Stream], cursors: Cursors, limit: int) -> tuple[list[LogChunk], Cursors]:
    """Return what was written since ``cursors``, at most ``limit`` bytes, fairly shared."""
    chunks: list[LogChunk] = []
    moved = dict(cursors)
    for number, stream in enumerate(streams):
        share = limit // (len(streams) - number)
        cursor = moved.get(stream.source, 0)
        if stream.follows and not stream.listens and stream.handed == cursor:
            data = stream.take(share)
            cursor = stream.handed
        else:
            with suppress(ApiError):  # a container that has not begun has no log
                data, cursor, more = await stream.read_once(cursor, share)
                if not more:
                    stream.start(cursor)
        if cursor != moved.get(stream.source, 0):
            limit -= len(data)
            moved[stream.source] = cursor
            chunks.append(LogChunk(source=stream.source, node=stream.pod.node, data=data))
    return chunks, moved


async def tail_of(
    api: Api, namespace: str, pod: PodFacts, container: str, limit: int, *, previous: bool = False
) -> LogTail | None:
    """Return the end of one container's log, afresh; ``None`` if there is none. Raises ``UnreachableError``."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}/log"
    query = {"container": container, "tailLines": TAIL_LINES, "previous": previous or None}
    try:
        async with api.stream(path, query, silence_seconds=20.0) as response:
            data = await response.read()
    except ApiError:
        return None
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise UnreachableError(f"the log of {pod.name} broke off: {type(error).__name__}") from error
    source = source_of(pod) if container == pod.container else f"{source_of(pod)}/{container}"
    source += "/previous" if previous else ""
    return LogTail(source=source, node=pod.node, data=data[-limit:], offset=max(0, len(data) - limit))
