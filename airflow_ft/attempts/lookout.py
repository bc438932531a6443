"""Lookout: follow the progress of something that somebody else runs: a job, pods, log files, a file's changes.

One coroutine, run by the sensor's trigger (deferred) or by its worker. It only looks: nothing is submitted, stopped or
restarted. Each turn reads what the logs gained, then asks: has training ended, has it passed the step that is waited
for, has it stopped advancing. What can't be seen (a file that isn't there yet, a backend without answer) is waited for.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import re2
from pydantic import AwareDatetime, Field, JsonValue

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.ports import Desk, TryInfo
from airflow_ft.backends.abilities import PodSelection, SeesPods
from airflow_ft.backends.base import BackendError, Cursors, JobState, LogChunk
from airflow_ft.backends.log_files import MOST_FILES, read_files
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import JobRef
from airflow_ft.core.hang import FINISH, HangConfig, HangDetector, HangVerdict
from airflow_ft.core.loglines import LineReader
from airflow_ft.core.progress import EPOCH_END, Progress, ProgressReader
from airflow_ft.core.records import RECORD_VERSION, Record
from airflow_ft.core.sanitise import sanitise

READ_BYTES = 4_000_000  # of new log a turn
PROGRESS_KEY = "ft_progress"
STATE_KEY = "ft_lookout"
PODS_BACKEND = "kubernetes"
TOUCHED = "touched"
PUBLISH_EVERY = timedelta(seconds=10)
SAY_EVERY = timedelta(seconds=60)
PAUSE_AFTER_ERROR_SECONDS = 5.0

ENDED, PASSED, FAILED, HUNG = "ended", "passed", "failed", "hung"


class LookoutOrder(Record):
    """What to look at, and for what. The trigger's one argument."""

    version: int = RECORD_VERSION
    info: TryInfo
    ref: JobRef | None = None
    pods: PodSelection | None = None
    files: str | None = None  # a path or a glob
    touched: str | None = None  # the same: each newer modification time is a step
    until_step: int | None = None
    end_pattern: str | None = None  # a line that says that training has ended (RE2)
    progress_pattern: str | None = None
    hang: dict[str, JsonValue] = Field(default_factory=dict)  # of ``HangConfig``
    on_hang: str = "act"
    poll_seconds: float = 5.0
    deferred_at: AwareDatetime | None = None


class LookoutResult(Record):
    """What came of it: training has ``ended``, ``passed`` the step, ``failed``, or is ``hung``."""

    version: int = RECORD_VERSION
    end: str
    text: str
    progress: Progress = Progress()
    verdict: HangVerdict | None = None
    try_number: int | None = None


class Lookout:
    """The lookout for one task."""

    def __init__(self, order: LookoutOrder, desk: Desk) -> None:
        self._order, self._desk = order, desk
        self._backend = create_backend(order.ref.backend) if order.ref is not None else None
        self._pods = cast("SeesPods", create_backend(PODS_BACKEND)) if order.pods is not None else None
        self._config = HangConfig.model_validate(order.hang)
        self._hang = HangDetector(self._config)
        self._reader = ProgressReader(order.progress_pattern)
        self._end = re2.compile(order.end_pattern) if order.end_pattern else None
        self._lines: dict[str, LineReader] = {}
        self._cursors: Cursors = {}
        self._changed: int | None = None
        self._touches = 0
        self._said_end = False
        self._told_incident = 0
        self._said_at: datetime | None = None
        self._published_at: datetime | None = None
        self._published: JsonValue = None
        self._trouble = ""
        self._why = ""  # what the cluster says of a training that doesn't run (yet)

    async def watch(self) -> LookoutResult:
        """Look until there is a result."""
        await self._take_up()
        while True:
            try:
                result = await self._turn()
            except (BackendError, OSError) as error:
                self._say_trouble(f"It can't be seen: {error}. Nothing is concluded from that.")
                result = None
            except Exception as error:  # noqa: BLE001 - a supervisor's border: a bug of ours is no verdict
                self._say_trouble(f"The lookout itself failed: {error!r:.200}")
                await self._desk.sleep(PAUSE_AFTER_ERROR_SECONDS)
                result = None
            if result is not None:
                return result.but(progress=self._reader.progress, try_number=self._order.info.try_number)
            await self._desk.sleep(self._order.poll_seconds)

    async def _turn(self) -> LookoutResult | None:
        state, code, reason = await self._look()
        chunks, cursors = await self._read()
        await asyncio.to_thread(self._take, chunks)
        self._cursors = cursors
        if self._order.touched is not None:
            self._touch(await asyncio.to_thread(newest_change, self._order.touched))
        self._trouble = ""
        self._why = reason
        await self._tell()
        return self._judge(state, code, reason)

    # --- seeing --------------------------------------------------------------------------------------------------

    async def _look(self) -> tuple[JobState | None, int | None, str]:
        if self._pods is not None and self._order.pods is not None:
            seen = await limited(self._pods.observe_pods(self._order.pods), LOOK_SECONDS, "looking at the pods")
        elif self._backend is not None and self._order.ref is not None:
            seen = await limited(self._backend.observe(self._order.ref), LOOK_SECONDS, "looking at the job")
        else:
            return None, None, ""
        return seen.state, seen.code, seen.reason

    async def _read(self) -> tuple[Sequence[LogChunk], Cursors]:
        if self._pods is not None and self._order.pods is not None:
            of_pods = self._pods.read_pod_logs(self._order.pods, self._cursors, READ_BYTES)
            return await limited(of_pods, LOOK_SECONDS, "reading the pods' logs")
        if self._backend is not None and self._order.ref is not None:
            reading = self._backend.read_logs(self._order.ref, self._cursors, READ_BYTES)
            return await limited(reading, LOOK_SECONDS, "reading logs")
        return await asyncio.to_thread(read_files, self._order.files or "", self._cursors, READ_BYTES)

    def _take(self, chunks: Sequence[LogChunk]) -> None:
        now = self._desk.now()  # of one look: lines read together came at one moment, as far as we know
        for chunk in chunks:
            if chunk.restarted or chunk.source not in self._lines:
                self._lines[chunk.source] = LineReader()
            for line in self._lines[chunk.source].feed(chunk.data):
                self._take_line(line, chunk.source, now)

    def _take_line(self, line: str, source: str, now: datetime) -> None:
        self._reader.feed(line, now, source)
        progress = self._reader.progress
        self._hang.observe(now.timestamp(), progress.step, progress.phase)
        if self._reader.sure_step is None:
            self._hang.grows(now.timestamp())
        if self._end is not None and self._end.search(line):
            self._said_end = True

    def _touch(self, changed: int | None) -> None:
        """A file that was changed is a step; the first look only says that it is there."""
        if changed is None or changed <= (self._changed or 0):
            return
        first, self._changed = self._changed is None, changed
        if not first:
            self._touches += 1
            self._take_line(f'ft-progress {{"step":{self._touches}}}', TOUCHED, self._desk.now())

    # --- judging -------------------------------------------------------------------------------------------------

    def _judge(self, state: JobState | None, code: int | None, reason: str) -> LookoutResult | None:
        progress, until = self._reader.progress, self._order.until_step
        if until is not None and progress.step is not None and progress.step >= until:
            return LookoutResult(end=PASSED, text=f"Training is at step {progress.step:,} and has passed {until:,}.")
        if state is JobState.GONE and self._has_ended(progress):
            state, code = JobState.ENDED, 0  # whoever ran it has cleaned up
        if state is JobState.GONE or (state is JobState.ENDED and code != 0):
            said = reason or (f"exit code {code}" if code is not None else "its result is not known")
            return LookoutResult(end=FAILED, text=f"The job has ended without success: {said}.")
        if state is JobState.ENDED or self._said_end or (state is None and self._has_ended(progress)):
            if until is not None:
                return LookoutResult(end=FAILED, text=f"Training has ended before step {until:,}.")
            return LookoutResult(end=ENDED, text="Training has ended.")
        if state not in (None, JobState.RUNNING):
            return None  # queued, starting, held: somebody else's clock
        return self._hung()

    def _has_ended(self, progress: Progress) -> bool:
        if self._end is not None:
            return self._said_end
        reached = progress.total is not None and progress.step is not None and progress.step >= progress.total
        return progress.phase == FINISH or (reached and progress.phase != EPOCH_END)

    def _hung(self) -> LookoutResult | None:
        verdict = self._hang.check(self._desk.now().timestamp())
        if verdict is None or verdict.is_chatter:
            return None
        if self._order.on_hang == "act":
            return LookoutResult(end=HUNG, text=verdict.text, verdict=verdict)
        if verdict.incident != self._told_incident:
            self._told_incident = verdict.incident
            self._desk.say(f"{verdict.text} Notice only.", warning=True)
        return None

    # --- telling -------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        now = self._desk.now()
        if self._said_at is None or now - self._said_at >= SAY_EVERY:
            self._said_at = now
            self._desk.say(f"{line_about(self._reader)} {self._why}".rstrip())
        if self._published_at is None or now - self._published_at >= PUBLISH_EVERY:
            await self._publish(now)

    async def _publish(self, now: datetime) -> None:
        value = sanitise({"progress": self._reader.progress.to_record(), "format": self._reader.format})
        self._published_at = now
        if value == self._published:
            return
        try:
            await limited(self._desk.publish(PROGRESS_KEY, value), LOOK_SECONDS, "publishing progress")
            await limited(self._desk.publish(STATE_KEY, sanitise(self._state())), LOOK_SECONDS, "publishing state")
            self._published = value
        except Exception as error:  # noqa: BLE001 - a supervisor's border: no live view is no reason to stop looking
            self._say_trouble(f"Progress could not be published: {error!r:.200}")

    def _say_trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            self._desk.say(text, warning=True)

    def _state(self) -> dict[str, Any]:
        unfinished = {source: reader.unfinished for source, reader in self._lines.items()}
        return {
            "try_number": self._order.info.try_number,
            "cursors": {source: at - unfinished.get(source, 0) for source, at in self._cursors.items()},
            "reader": self._reader.to_state(),
            "hang": self._hang.to_state(),
            "changed": [self._changed, self._touches],
        }

    async def _take_up(self) -> None:
        """Take up what an earlier process of this try has saved; without it the logs are read from their beginning."""
        try:
            saved: Any = await limited(self._desk.recall(STATE_KEY), LOOK_SECONDS, "recalling the state")
            if isinstance(saved, dict) and saved.get("try_number") == self._order.info.try_number:
                cursors = {str(source): int(at) for source, at in saved["cursors"].items()}
                self._reader = ProgressReader.from_state(saved["reader"], self._order.progress_pattern)
                self._hang = HangDetector.from_state(self._config, saved["hang"])
                self._changed, self._touches = saved.get("changed") or (None, 0)
                self._cursors = cursors
        except Exception as error:  # noqa: BLE001 - a supervisor's border
            self._desk.say(f"The saved state can't be used ({error!r:.200}); reading from the beginning.")


def newest_change(pattern: str) -> int | None:
    """Return the newest modification time of the files of a glob, in nanoseconds; ``None`` if there is none yet."""
    paths = [pattern] if Path(pattern).exists() else glob.glob(pattern, recursive=True)[:MOST_FILES]
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(Path(path).stat().st_mtime_ns)
    return max(times, default=None)


def line_about(reader: ProgressReader) -> str:
    """Say where training stands, in one line."""
    progress = reader.progress
    if progress.step is None:
        return f"No step seen yet; phase {progress.phase}." if progress.phase else "No step seen yet."
    total = f" of {progress.total:,}" if progress.total else ""
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    speed = f", {progress.throughput:,.4g} {progress.throughput_unit}" if progress.throughput is not None else ""
    return f"Step {progress.step:,}{total}{loss}{speed} ({reader.format}, {reader.confidence:.0%} sure)."
