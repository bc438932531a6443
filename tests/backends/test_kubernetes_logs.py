"""Logs of pods: every line once, whatever breaks, from stamps of the runtime; no API server is needed for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import ApiError
from airflow_ft.backends.kubernetes.logs import Stream, read_on, stamped
from airflow_ft.backends.kubernetes.pods import PodFacts

POD = PodFacts(name="p0", uid="u0", node="n1", container="main")


def line(number: int) -> bytes:
    """Twenty lines a second: most of them share their second with others."""
    return b"2026-01-01T00:00:%02d.%09dZ line %d\n" % (number // 20, number % 20 * 50_000_000, number)


class Content:
    """A response's body in pieces; it may break off."""

    def __init__(self, pieces: list[bytes], breaks: bool) -> None:
        self._pieces, self._breaks = pieces, breaks

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            yield piece
        if self._breaks:
            raise OSError("connection reset")


class LogServer:
    """As a kubelet: ``sinceTime`` is cut to the second, and each answer breaks off after some bytes."""

    def __init__(self, lines: list[bytes], bytes_each: int) -> None:
        self.lines, self.bytes_each, self.requests = lines, bytes_each, 0

    @asynccontextmanager
    async def stream(self, path: str, query: dict[str, Any], **_: Any) -> AsyncIterator[Any]:
        self.requests += 1
        since = str(query.get("sinceTime", ""))[:19]
        text = b"".join(one for one in self.lines if one[:19].decode() >= since)
        whole = len(text) <= self.bytes_each * self.requests
        text = text[: self.bytes_each * self.requests]
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]

        class Response:
            content = Content(pieces, breaks=not whole)

        yield Response()


@pytest.mark.story("WAT-06")
@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 120), share=st.integers(200, 3000), limit=st.integers(20, 400))
def test_every_line_comes_once_however_often_the_stream_breaks(count: int, share: int, limit: int) -> None:
    """Read in pieces of any size, by a reader that begins anew each time."""
    server = LogServer([line(number) for number in range(count)], share)

    async def read() -> bytes:
        cursors: dict[str, int] = {}
        data = b""
        for _ in range(2000):
            stream = Stream(server, "ns", POD, lambda: None)  # type: ignore[arg-type]
            try:
                chunks, cursors = await read_on([stream], cursors, limit)
            except UnreachableError:
                continue
            finally:
                stream.stop()
            data += b"".join(chunk.data for chunk in chunks)
            if not chunks and server.bytes_each * server.requests > 60 * count:
                return data
        raise AssertionError("it never came to the end")

    assert asyncio.run(read()) == b"".join(b"line %d\n" % number for number in range(count))


def test_a_stream_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background, without loss or doubling; then nothing is asked again."""
    monkeypatch.setattr("airflow_ft.backends.kubernetes.logs.PAUSE_SECONDS", 0.0)
    server = LogServer([line(number) for number in range(100)], 300)

    async def follow() -> bytes:
        stream = Stream(server, "ns", POD, lambda: None)  # type: ignore[arg-type]
        stream.start(0)
        data = b""
        while data.count(b"\n") < 100:
            await asyncio.sleep(0)
            data += stream.take(1_000_000)
        stream.stop()
        return data

    assert asyncio.run(follow()) == b"".join(b"line %d\n" % number for number in range(100))


def test_an_agents_line_is_noticed_and_the_end_of_a_log_is_kept() -> None:
    """The state is worth a look then; and most operators delete pods with their logs."""
    agents: list[int] = []
    told = b'2026-01-01T00:00:01.5Z ft-agent abc {"event":"held"}\n'
    pulse = b'2026-01-01T00:00:02.5Z ft-agent abc {"ranks":[],"event":"vitals"}\n'
    server = LogServer([line(1), told, pulse], 100_000)

    async def read() -> list[bytes]:
        stream = Stream(server, "ns", POD, lambda: agents.append(1))  # type: ignore[arg-type]
        await stream.read_once(0, 10_000)
        return list(stream.kept)

    assert len(asyncio.run(read())) == 3
    assert agents == [1]


def test_a_container_that_has_not_begun_has_no_log() -> None:
    """That is no error, and no end of the log either."""

    class Refuses:
        @asynccontextmanager
        async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise ApiError(400, "BadRequest", "container is waiting to start")
            yield

    async def read() -> Any:
        return await read_on([Stream(Refuses(), "ns", POD, lambda: None)], {}, 1000)  # type: ignore[arg-type]

    assert asyncio.run(read()) == ([], {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"2026-01-01T00:00:00.5Z a", (1767225600_500000000, b"a")),
        (b"2026-01-01T00:00:00Z ", (1767225600_000000000, b"")),
        (b"2026-01-01T01:00:00.000000001+01:00 x y", (1767225600_000000001, b"x y")),
        (b"no stamp", None),
        (b"", None),
    ],
)
def test_a_stamp_is_read_to_the_nanosecond(text: bytes, found: Any) -> None:
    """Two lines of one microsecond are two lines."""
    assert stamped(text) == found
