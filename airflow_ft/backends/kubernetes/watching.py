"""One list and one watch for all who look at the same objects: all jobs of a namespace, all triggers of a process.

``Collection`` keeps the newest state of the objects under one path and selector. The watch is resumed where it stopped;
after 410 (a restarted API server has forgotten the version) it lists again, with a jitter, since all clients of a
cluster do so at the same moment. Bookmarks say that a silent watch lives: without a byte for ``SILENCE_SECONDS`` it is
taken for dead. Nobody is told of changes; who looks, looks at memory.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from typing import Any

import aiohttp

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.time_limits import within

SILENCE_SECONDS = 150.0  # bookmarks come once a minute
WATCH_SECONDS = 290  # the server ends a watch then; each watch a little earlier or later
STALE_SECONDS = 30.0  # a list that could not be had, or a watch that could not be opened, for so long: we are blind
FIRST_SECONDS = 15.0
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 15.0
LIVED_SECONDS = 0.5  # a watch that is closed sooner is a proxy's way to say no
PAGE = 500
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Collection:
    """The objects under one path, as new as the watch is."""

    def __init__(self, api: Api, path: str, selector: str = "") -> None:
        self._api, self._path, self._selector = api, path, selector
        self.objects: dict[str, Json] = {}
        self.used_at = time.monotonic()
        self._version = ""
        self._listed = asyncio.Event()
        self._broken_since: float | None = None
        self._why = ""
        self._forbidden = ""
        self._task: asyncio.Task[None] | None = None

    async def look(self, *, watch: bool = True) -> dict[str, Json]:
        """Return the objects by name.

        Raises ``UnreachableError`` while nothing new can be seen, ``ApiError`` if it is forbidden.

        :param watch: go on watching; else, if nobody watches yet, they are only listed.
        """
        self.used_at = time.monotonic()
        if self._task is None or self._task.done():
            if not watch:
                await self._list()
                return self.objects
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"watch {self._path}")
        if not self._listed.is_set():
            with suppress(TimeoutError):
                await within(FIRST_SECONDS, self._listed.wait())
        if self._forbidden:
            raise ApiError(403, "Forbidden", self._forbidden)
        broken = self._broken_since
        if not self._listed.is_set() or (broken is not None and time.monotonic() - broken > STALE_SECONDS):
            raise UnreachableError(f"{self._path} can't be watched: {self._why or 'no answer yet'}")
        return self.objects

    async def stop(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # --- the loop ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                self._refused(error)
            except UnreachableError as error:
                self._broke(str(error))
            if time.monotonic() - began >= LIVED_SECONDS:  # it was open: whoever ends it may open it again
                pause = PAUSE_SECONDS
                if self._broken_since is None:
                    continue
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _refused(self, error: ApiError) -> None:
        if error.status == 410:
            self._version = ""
        elif error.status in (403, 404) and not self._listed.is_set():
            self._forbidden = str(error)
            self._listed.set()
        self._broke(str(error))

    def _broke(self, why: str) -> None:
        self._why = why
        if self._broken_since is None:
            self._broken_since = time.monotonic()

    def _well(self) -> None:
        self._broken_since, self._why, self._forbidden = None, "", ""

    async def _list(self) -> None:
        found: dict[str, Json] = {}
        more: str | None = None
        while True:
            page = await self._api.get(
                self._path, labelSelector=self._selector or None, limit=PAGE, **({"continue": more} if more else {})
            )
            for item in page.get("items") or ():
                found[_name(item)] = slim(item)
            more = walk(page, ("metadata", "continue"))
            if not more:
                break
        self.objects = found
        self._version = str(walk(page, ("metadata", "resourceVersion")) or "")
        self._well()
        self._listed.set()

    async def _watch(self) -> None:
        query = {
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": self._version,
            "labelSelector": self._selector or None,
            "timeoutSeconds": int(WATCH_SECONDS * (0.8 + 0.4 * random.random())),
        }
        async with self._api.stream(self._path, query, silence_seconds=SILENCE_SECONDS) as response:
            self._well()
            try:
                async for line in lines_of(response):
                    self._take(line)
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                raise UnreachableError(f"the watch broke off: {type(error).__name__}") from error

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            raise UnreachableError(f"the watch said {line[:80]!r}") from None
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiError(int(item.get("code") or 500), str(item.get("reason", "")), str(item.get("message", "")))
        version = walk(item, ("metadata", "resourceVersion"))
        self._version = str(version) if version else self._version
        if kind == "DELETED":
            self.objects.pop(_name(item), None)
        elif kind in ("ADDED", "MODIFIED"):
            self.objects[_name(item)] = slim(item)


def slim(item: Json) -> Json:
    """Return an object without what nobody reads and most of it is: a user's environment alone may be 256 kB a pod."""
    metadata = item.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop(APPLIED, None)
    _drop_environments(item.get("spec"))
    return item


def _drop_environments(part: Any) -> None:
    if isinstance(part, dict):
        part.pop("env", None)
        for value in part.values():
            _drop_environments(value)
    elif isinstance(part, list):
        for value in part:
            _drop_environments(value)


async def lines_of(response: aiohttp.ClientResponse) -> Any:
    """Yield whole lines of any length, without their end; then what is left without one."""
    rest = b""
    async for data in response.content.iter_any():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            if line:
                yield line
    if rest:
        yield rest


def _name(item: Json) -> str:
    return str(walk(item, ("metadata", "name")) or "")
