"""What a watch tells while it watches: a line in the try's log a minute and at each event, progress in XCom.

Live progress goes into XCom at most every ten seconds and only on a change: each write is a request that the
triggerer's one supervisor thread handles for all triggers (airflow-notes §11.7).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import JsonValue

from airflow_ft.attempts.ports import Desk
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import Observation
from airflow_ft.backends.time_limits import within
from airflow_ft.core.chain import JobRef
from airflow_ft.core.sanitise import sanitise

PROGRESS_KEY = "ft_progress"
STATE_KEY = "ft_watch"
LINE_EVERY = timedelta(seconds=60)
PUBLISH_EVERY = timedelta(seconds=10)
PUBLISH_SECONDS = 10.0
PUBLISH_FAILURES_SAID = 3


class Reporter:
    """Tells the progress of one attempt."""

    def __init__(self, desk: Desk, ref: JobRef) -> None:
        self._desk, self._ref = desk, ref
        self._line_at: datetime | None = None
        self._published_at: datetime | None = None
        self._published: JsonValue = None
        self._state: str | None = None
        self._failures = 0

    async def tell(self, seen: Observation | None, sight: Sight, state: dict[str, JsonValue]) -> None:
        """Tell what is due."""
        now = self._desk.now()
        if seen is not None and seen.state.value != self._state:
            self._state = seen.state.value
            where = ", ".join(node.node for node in seen.nodes)
            self._desk.say(
                f"Job {self._ref.name} is {self._state}{f' on {where}' if where else ''}. {seen.reason}".strip()
            )
            self._line_at = now
        elif self._line_at is None or now - self._line_at >= LINE_EVERY:
            self._desk.say(progress_line(sight))
            self._line_at = now
        if self._published_at is None or now - self._published_at >= PUBLISH_EVERY:
            await self._publish(seen, sight, state, now)

    async def hand_over(self, state: dict[str, JsonValue]) -> None:
        """Save the state of the watch right now, because another process goes on with it."""
        try:
            await within(PUBLISH_SECONDS, self._desk.publish(STATE_KEY, sanitise(state)))
        except Exception as error:  # noqa: BLE001 - a supervisor's border: what was saved before, or the log, will do
            self._desk.say(f"The state of the watch could not be saved: {error!r}", warning=True)

    async def _publish(
        self, seen: Observation | None, sight: Sight, state: dict[str, JsonValue], now: datetime
    ) -> None:
        value = sanitise(
            {
                "attempt": self._ref.attempt,
                "generation": seen.generation if seen else None,
                "state": self._state,
                "nodes": [node.node for node in seen.nodes] if seen else [],
                "progress": sight.progress.to_record(),
                "recovery": sight.recovery.state if sight.recovery else None,
            }
        )
        self._published_at = now
        if value == self._published:
            return
        try:
            await within(PUBLISH_SECONDS, self._desk.publish(PROGRESS_KEY, value))
            await within(PUBLISH_SECONDS, self._desk.publish(STATE_KEY, sanitise(state)))
            self._published, self._failures = value, 0
        except Exception as error:  # noqa: BLE001 - a supervisor's border: no live view is no reason to stop watching
            self._failures += 1
            if self._failures <= PUBLISH_FAILURES_SAID:
                self._desk.say(f"Progress could not be published: {error!r}", warning=True)


def progress_line(sight: Sight) -> str:
    """Say where training stands, in one line."""
    progress = sight.progress
    if progress.step is None:
        return "No step seen yet." if progress.phase is None else f"No step seen yet; phase {progress.phase}."
    total = f" of {progress.total:,}" if progress.total else ""
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    saved = f", newest checkpoint {progress.checkpoint:,}" if progress.checkpoint is not None else ""
    slow = f" Steps take {sight.slowdown:.1f} times as long as at first." if sight.slowdown is not None else ""
    return f"Step {progress.step:,}{total}{loss}{saved}.{slow}"
