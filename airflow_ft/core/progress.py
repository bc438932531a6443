"""Progress: evidence that training advances, read from what it prints.

``Progress`` is the newest state; ``ProgressReader`` makes it from lines. Pure: lines and their times come as arguments.
"""

from __future__ import annotations

from pydantic import AwareDatetime

from airflow_ft.core.records import Record


class Progress(Record):
    """The newest state of a training run. ``step`` is the last one seen, ``total`` what it said it will do."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    phase: str | None = None
    at: AwareDatetime | None = None
    first_step: int | None = None  # of this run
    first_step_at: AwareDatetime | None = None
    checkpoint: int | None = None  # the newest that was saved
    loaded: int | None = None  # the checkpoint that was loaded at the start; 0 with ``from_scratch``
    loaded_text: str | None = None
    from_scratch: bool | None = None
