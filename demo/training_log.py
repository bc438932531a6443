"""The training's own words, read from its logs as they grow: the demo's judge.

It is on purpose not airflow_ft's own reader: whether a recovery is real is judged here from what the script printed, by
a few lines of code that know only that script (`dags/training/train_gpt.py`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = re.compile(r"^\[\w+\]: ?")  # torchrun puts the rank before every line
STEP = re.compile(r"^step (\d+)/(\d+) loss ([\d.naif]+)")
SAVED = re.compile(r"^saved checkpoint step (\d+) ")
LOADED = re.compile(r"^resumed from checkpoint step (\d+) ")
FINISHED = re.compile(r"^training finished at step (\d+)")


@dataclass
class Start:
    """One start of the training: what it loaded, and its first step."""

    at: float
    loaded: int
    saved_before: int  # the newest checkpoint that was saved before it
    first_step: int | None = None
    first_step_at: float | None = None
    last_step: int = 0


@dataclass
class TrainingLog:
    """All attempts of the demo's training. ``root`` is the local backend's folder."""

    root: Path
    step: int = 0
    total: int = 0
    loss: float = 0.0
    saved: int = 0
    finished: bool = False
    starts: list[Start] = field(default_factory=list)
    _offsets: dict[Path, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read what is new. Times are those of reading: at most one poll late."""
        for path in sorted(self.root.glob("jobs/*/nodes/*/output.log"), key=lambda path: path.stat().st_mtime):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            for line in data[:whole].decode("utf-8", "replace").splitlines():
                self._take(PREFIX.sub("", line.strip()), time.time())

    def _take(self, line: str, now: float) -> None:
        if found := LOADED.match(line):
            self.starts.append(Start(at=now, loaded=int(found[1]), saved_before=self.saved))
        elif line.startswith("no checkpoint, starting at step 0"):
            self.starts.append(Start(at=now, loaded=0, saved_before=self.saved))
        elif found := STEP.match(line):
            self.step, self.total, self.loss = int(found[1]), int(found[2]), float(found[3])
            start = self.starts[-1]
            start.last_step = self.step
            if start.first_step is None:
                start.first_step, start.first_step_at = self.step, now
        elif found := SAVED.match(line):
            self.saved = int(found[1])
        elif FINISHED.match(line):
            self.finished = True
