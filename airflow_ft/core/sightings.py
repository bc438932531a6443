"""What one line of training output can say. Made by ``steplines`` and ``dictlines``, put together by ``progress``."""

from __future__ import annotations

from typing import NamedTuple


class Sighting(NamedTuple):
    """What one line says. ``restarts`` marks a counter that may begin anew each epoch."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    phase: str | None = None
    saved: int | None = None
    saving: int | None = None
    loaded: int | None = None
    loading: int | None = None
    from_scratch: bool = False
    restarts: bool = False
    text: str | None = None
    path: str | None = None  # of the checkpoint that is saved
    lr: float | None = None
    throughput: float | None = None
    throughput_unit: str | None = None
    epoch: int | None = None  # in which ``step`` counts, if it restarts
    counter: str | None = None  # what ``step`` counts, in a log that has several counters (MLPerf); ``LINES``: nothing

    @property
    def says_something(self) -> bool:
        """Whether anything was recognised."""
        return self != NOTHING


NOTHING = Sighting()
LINES = "lines"  # training has advanced by something that has no number
ENTRIES = "entries"  # the same, but only where nothing else says how far: a loss with the part of an epoch
