"""Hindsight: how far a run has come whose watch left nothing behind.

A watch keeps what it saw in the try's XComs, and Airflow deletes those when the next try begins. Where no watch has
told its end (a person cleared or ended the task), the highest step and the newest checkpoint are read from the ends of
the job's own logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.sight import BEGINS
from airflow_ft.backends.base import Backend, BackendError, LogTail
from airflow_ft.core.chain import JobRef
from airflow_ft.core.loglines import LineReader
from airflow_ft.core.progress import Progress, ProgressReader

TAIL_BYTES = 1_000_000  # of each log: some ten thousand steps, and a checkpoint is among them


async def progress_of(
    backend: Backend, ref: JobRef | None, pattern: str | None = None, say: Callable[[str], None] = lambda text: None
) -> Progress | None:
    """Return the progress with the highest step of all generations, and the newest checkpoint; ``None``: not known."""
    if ref is None:
        return None
    try:
        tails = await limited(backend.log_tails(ref, TAIL_BYTES), LOOK_SECONDS, f"reading the logs of {ref.name}")
    except BackendError as error:
        say(f"How far {ref.name} had come can't be seen: {error}")
        return None
    # In a thread: it takes a second for some megabytes, and others may share this event loop.
    return await asyncio.to_thread(_read, tails, pattern)


def _read(tails: Sequence[LogTail], pattern: str | None) -> Progress | None:
    reader, now = ProgressReader(pattern), datetime.now(timezone.utc)
    best: Progress | None = None
    for tail in tails:
        lines = LineReader()
        whole = tail.data.partition(b"\n")[2] if tail.offset else tail.data  # a cut first line tells wrong numbers
        for line in (*lines.feed(whole), *lines.flush()):
            if BEGINS.search(line):
                reader.restarted()
            reader.feed(line, now, tail.source)
            best = _better(best, reader.progress)
    return best


def _better(best: Progress | None, seen: Progress) -> Progress | None:
    if best is None:
        return seen if seen.step is not None or seen.checkpoint is not None else None
    if (seen.step or 0) > (best.step or 0):
        kept = seen if (seen.checkpoint or -1) >= (best.checkpoint or -1) else best
        return seen.but(checkpoint=kept.checkpoint, checkpoint_path=kept.checkpoint_path)
    if (seen.checkpoint or -1) > (best.checkpoint or -1):
        return best.but(checkpoint=seen.checkpoint, checkpoint_path=seen.checkpoint_path)
    return best
