"""What ``progress`` has to remember beside the progress itself. Saved with it, and small: it goes into a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter


@dataclass
class Memory:
    """The memory of one reader. Changed in place: it is touched with every line."""

    driver: str | None = None
    advances: dict[str, int] = field(default_factory=dict)  # of other sources while the driver stood still
    last: dict[str, int] = field(default_factory=dict)  # the last step of other sources
    doubtful: int | None = None
    increments: tuple[int, ...] = ()
    saving: int | None = None
    saving_path: str | None = None
    loading: int | None = None
    base: int = 0  # steps of finished epochs, for counters that begin again
    counter: int | None = None
    counter_total: int | None = None
    epoch: int | None = None
    new_run: bool = False  # a load was announced: steps may begin anywhere
    lines: int = 0
    stepped: int = 0  # lines with a step
    waiting: dict[str, bool] = field(default_factory=dict)  # ranks that printed since the last step: do they wait?
    entries: int = 0  # lines with a loss and no step
    formats: dict[str, int] = field(default_factory=dict)


MEMORY = TypeAdapter(Memory)
