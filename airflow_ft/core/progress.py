"""Progress: evidence that training advances, read from what it prints.

``Progress`` is the newest state; ``ProgressReader`` makes it from lines (``steplines`` says what a single line means).
Pure: lines and their times come as arguments.

What makes a stream of lines safe to believe:

- *One driver.* Steps of one source count, the first that prints them; another one takes over when it has advanced
  ``TAKEOVER`` times while the driver stood still, unless it only says later what the driver has said (logs are read
  one after the other). A rank's prefix makes a source of its own.
- *Doubt.* A step that goes back, or leaps far beyond the usual increment or the total, counts when the next one follows
  it. So a stray line moves nothing, and a run that restarted below us is still seen.
- *A save has ended* when it says so, or when the next step comes.
- *Counters that begin again each epoch* (bars) are added up.
- *Who is behind*: of several ranks that print, those with fewer steps, and those that don't wait while others say that
  they do. Known only as long as nobody advances.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import re2
from pydantic import AwareDatetime, ValidationError

from airflow_ft.core.epochlines import EPOCHS, PERCENT
from airflow_ft.core.formats import ALWAYS, CERTAIN, LOG_GROWTH, RARELY, SURE_LINES, dominant, format_of
from airflow_ft.core.loglines import split_rank
from airflow_ft.core.progress_memory import MEMORY, Memory
from airflow_ft.core.records import Record
from airflow_ft.core.sightings import ENTRIES, LINES, Sighting
from airflow_ft.core.steplines import read_line, read_number

TAKEOVER = 3
FIRST_ENTRIES = 3  # losses without a step, before they are all that there is to count
MOST_SOURCES = 64
UNREADABLE_LINES = 200
EPOCH_END = "epoch"  # a bar is full: loaders start again, somebody evaluates or saves without a word
WAITS = re.compile(r"(?i)\b(?:wait(?:s|ing|ed)?|blocked|stalled)\b.{0,20}\b(?:for|on|in)\b")
RANK = re.compile(r"(?i)\brank[ _-]?(\d{1,6})\b")
LEAP = 1_000  # steps; together with 100 usual increments a gut feeling: no log skips more and means it


class Progress(Record):
    """The newest state of a training run. ``step`` is the last one seen, ``total`` what it said it will do."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None  # the newest finite one
    lr: float | None = None
    throughput: float | None = None
    throughput_unit: str | None = None
    diverged: bool = False  # the newest loss was NaN or infinite
    phase: str | None = None
    at: AwareDatetime | None = None
    first_step: int | None = None  # of this run
    first_step_at: AwareDatetime | None = None
    every: int | None = None  # the usual distance between two printed steps
    checkpoint: int | None = None  # the newest that was saved
    checkpoint_path: str | None = None  # where, if the line about it said so
    loaded: int | None = None  # the checkpoint that was loaded at the start; 0 with ``from_scratch``
    loaded_text: str | None = None
    from_scratch: bool | None = None


class InvalidPatternError(ValueError):
    """The user's progress pattern can't be used. The message says what to change."""


class ProgressReader:
    """Make the progress of one attempt from the lines of all its logs.

    :param pattern: the user's own pattern (RE2) with a group named ``step``, and ``loss`` and ``total`` if wanted.
        Where it is given, only it says what a step is; checkpoints and phases are read as ever.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = compile_pattern(pattern) if pattern else None
        self._progress = Progress(phase="startup")
        self._memory = Memory()
        self._changes: dict[str, Any] = {}

    @property
    def progress(self) -> Progress:
        """The newest state."""
        return self._progress

    @property
    def format(self) -> str | None:
        """The format that the steps are in; "log growth" if nothing in many lines says a step; ``None``: too early."""
        if self._pattern is not None:
            return "own pattern"
        name, _ = dominant(self._memory.formats)
        return name or (LOG_GROWTH if self._memory.lines >= UNREADABLE_LINES else None)

    @property
    def confidence(self) -> float:
        """How sure the format is, from 0 to 1."""
        return dominant(self._memory.formats)[1]

    @property
    def sure_step(self) -> int | None:
        """The step, if it is surely training's: what the hang detector may count on. Else there is the log's growth.

        "Step 4: wrap the model" and a bar without a name are none: ten lines, or a loss or a learning rate are needed,
        and a bar that is full has to begin again.
        """
        progress, memory = self._progress, self._memory
        metric = progress.loss is not None or progress.lr is not None or progress.diverged
        if metric or self._pattern is not None or not CERTAIN.isdisjoint(memory.formats):
            return progress.step
        over = memory.counter is not None and memory.counter == memory.counter_total
        return progress.step if memory.stepped >= SURE_LINES and not over else None

    def feed(self, line: str, at: datetime, source: str) -> bool:
        """Read one line. Returns whether the step moved."""
        ranked = split_rank(line)
        writer = f"rank{ranked.rank}" if ranked.rank is not None else ranked.local_rank
        key = source if writer is None else f"{source}#{writer}"
        sighting = self._read(ranked.text)
        self._memory.lines += 1
        if sighting.step is None and len(self._memory.waiting) < MOST_SOURCES and "ft-agent " not in line:
            waits = "ait" in line or "lock" in line or "stall" in line
            if waits and WAITS.search(ranked.text) is not None:
                self._memory.waiting[key] = True
            else:
                self._memory.waiting.setdefault(key, False)
        if sighting.step is not None or sighting.loss is not None or sighting.counter is not None:
            self._note_format(line, sighting)
        if not sighting.says_something:
            return False
        if sighting.counter is not None:
            if (
                self._progress.phase == "eval"
                and sighting.phase == "train"
                and sighting.counter not in (EPOCHS, PERCENT)
            ):
                return False  # statistics of the evaluation, under the same key
            key = f"{key}#{sighting.counter}"
            sighting = self._counted(sighting, key)
        moved = sighting.step is not None and self._step(sighting, at, key)
        if sighting.step is None or moved:
            self._beside(sighting, at, moved=moved)
        return moved

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that the others seem to wait for, if that is a minority; by their own lines since the last step."""
        memory, step = self._memory, self._progress.step
        steps = {**memory.last, **({memory.driver: step} if memory.driver and step is not None else {})}
        late = [key for key, last in steps.items() if last < max(steps.values())]
        if not late or 2 * len(late) > len(steps):
            late = [key for key, waits in memory.waiting.items() if not waits]
            if 2 * len(late) > len(memory.waiting):
                return ()
        found = [_rank_of(key) for key in late]
        return tuple(sorted(rank for rank in found if rank is not None))

    def restarted(self) -> None:
        """A new generation begins: its steps, its loads and its saves are its own."""
        self._progress = Progress(phase="startup", total=self._progress.total)
        old = self._memory
        self._memory = Memory(driver=old.driver, lines=old.lines, stepped=old.stepped, formats=old.formats)

    def to_state(self) -> dict[str, Any]:
        """Return what a successor needs to go on."""
        return {"progress": self._progress.to_record(), "memory": asdict(self._memory)}

    @classmethod
    def from_state(cls, state: object, pattern: str | None = None) -> ProgressReader:
        """Go on where another reader stood. A broken state is a fresh start: the log can be read again."""
        reader = cls(pattern)
        if isinstance(state, dict):
            try:
                progress = Progress.model_validate(state.get("progress"))
                memory = MEMORY.validate_python(state.get("memory"))
            except ValidationError:
                return reader
            reader._progress, reader._memory = progress, memory
        return reader

    @classmethod
    def rebuilt(cls, lines: Iterable[tuple[str, str]], at: datetime, pattern: str | None = None) -> ProgressReader:
        """Make a reader from a log, as (source, line). All that is seen gets the time ``at``."""
        reader = cls(pattern)
        for source, line in lines:
            reader.feed(line, at, source)
        return reader

    def _read(self, text: str) -> Sighting:
        sighting = read_line(text)
        if self._pattern is None:
            return sighting
        sighting = sighting._replace(step=None, total=None, restarts=False)
        if "ft-agent " in text or (found := self._pattern.search(text)) is None:
            return sighting._replace(loss=None, phase=None if sighting.phase == "train" else sighting.phase)
        groups = found.groupdict()
        try:
            step = read_number(groups["step"].strip())
            loss = float(groups["loss"]) if groups.get("loss") else None
            total = read_number(groups["total"].strip()) if groups.get("total") else None
        except (ValueError, AttributeError):
            return sighting
        return Sighting(step=step, total=total, loss=loss, phase="train")

    def _note_format(self, line: str, sighting: Sighting) -> None:
        memory = self._memory
        memory.stepped += 1
        if memory.stepped <= ALWAYS or memory.stepped % RARELY == 0:
            name = format_of(line)
            if sighting.step is not None or sighting.counter is not None or name == "Hugging Face Trainer":
                memory.formats[name] = memory.formats.get(name, 0) + 1

    def _counted(self, seen: Sighting, key: str) -> Sighting:
        """Number what training said without a number, as long as nothing has one."""
        memory = self._memory
        memory.entries += int(seen.counter == ENTRIES)
        if seen.counter not in (LINES, ENTRIES) or memory.driver not in (None, key):
            return seen
        if seen.counter == ENTRIES and memory.entries <= FIRST_ENTRIES:
            return seen
        return seen._replace(step=(self._progress.step or 0) + 1, phase=seen.phase or "train")

    def _step(self, seen: Sighting, at: datetime, key: str) -> bool:
        step = self._added_up(seen, key)
        weak = seen.counter in (None, EPOCHS, PERCENT, ENTRIES)
        better = seen.counter is None and (self._memory.driver or "").endswith(f"#{ENTRIES}")
        if step is None or not self._drives(key, step, at, 0 if better else TAKEOVER if weak else 1):
            return False
        known = self._progress.step
        if known is not None and step == known:
            return False
        if weak and not self._believable(step, known, seen.total):
            return False
        self._take(step, known, seen, at)
        return True

    def _added_up(self, seen: Sighting, key: str) -> int | None:
        """Return the step of a counter that may begin again, counted from the beginning; ``None`` for another bar."""
        memory = self._memory
        if not seen.restarts or seen.step is None or memory.driver not in (None, key):
            return seen.step
        if memory.counter_total is not None and seen.total != memory.counter_total:
            return None if self._progress.phase == "eval" or seen.total is None else self._other_counter(seen)
        base = memory.base
        counter, length, usual = memory.counter, memory.counter_total or memory.counter, self._progress.every
        if counter is not None and length:
            if seen.epoch is not None and memory.epoch is not None and seen.epoch > memory.epoch:
                base += length * min(seen.epoch - memory.epoch, 1_000)
            elif self._begins_again(seen.step, counter, memory.counter_total):
                base += length
            elif seen.step < counter and seen.total is None and seen.epoch is None and seen.step <= (usual or 0):
                base += counter  # of unknown length: it began again where it began before
        self._remember(base=base, counter=seen.step, counter_total=seen.total, epoch=seen.epoch)
        return base + seen.step

    def _begins_again(self, step: int, counter: int, total: int | None) -> bool:
        if total is None or step != total or step != counter:
            return total is not None and step < counter and counter >= 0.95 * total
        # A full bar after a full bar is a repetition, unless each line is one, as with ``verbose=2`` of Keras.
        return self._progress.first_step == total and all(step % total == 0 for step in self._memory.increments)

    def _other_counter(self, seen: Sighting) -> int | None:
        # A bar of another length: an evaluation without a name, or the last, shorter epoch. Ours goes on from its end.
        # Where entries tell of epochs (Hugging Face), one bar is of all epochs: another one is an evaluation's.
        counter, total = self._memory.counter or 0, self._memory.counter_total or 0
        if counter < 0.95 * total or seen.step is None or self._memory.entries:
            return None
        base = self._memory.base + total
        self._remember(base=base, counter=seen.step, counter_total=seen.total)
        return base + seen.step

    def _drives(self, key: str, step: int, at: datetime, takeover: int) -> bool:
        memory = self._memory
        if memory.driver in (None, key):
            memory.driver = key
            if memory.advances:
                memory.advances = {}
            return True
        last, known = memory.last.get(key), self._progress.step
        repeats = takeover > 0 and known is not None and step <= known
        advances, lasts = memory.advances, _newest({**memory.last, key: step})
        if not repeats or last is None or step < last or key in advances:
            later = not repeats or at > (self._progress.at or at)  # the driver had a look's time to go on
            advances = _newest({**advances, key: advances.get(key, 0) + int(later and (last is None or step > last))})
        if advances.get(key, 0) <= takeover:
            self._remember(advances=advances, last=lasts)
            return False
        lasts = {} if repeats else {str(memory.driver): known or 0}
        self._remember(driver=key, advances={}, last=lasts, doubtful=None, new_run=True)
        return True

    def _believable(self, step: int, known: int | None, total: int | None) -> bool:
        memory = self._memory
        if known is None or memory.new_run or self._near(step, known):
            return True
        if memory.doubtful is not None and step > memory.doubtful and self._follows(step, memory.doubtful, known):
            self._remember(increments=(), new_run=step < known)
            return True
        self._remember(doubtful=step)
        return False

    def _follows(self, step: int, doubtful: int, known: int) -> bool:
        """Whether a step bears out the doubtful one before it: near to it, or as far from it as that was from ours."""
        return self._near(step, doubtful) or 0.5 <= (step - doubtful) / max(1, doubtful - known) <= 2

    def _near(self, step: int, known: int) -> bool:
        usual = sorted(self._memory.increments)[len(self._memory.increments) // 2] if self._memory.increments else 1
        total = self._progress.total
        return known < step <= known + 100 * usual + LEAP and (total is None or step <= total or known > total)

    def _take(self, step: int, known: int | None, seen: Sighting, at: datetime) -> None:
        memory, progress = self._memory, self._progress
        begins = known is None or progress.first_step is None or (memory.new_run and step < known)
        increments = memory.increments if known is None or step <= known else (*memory.increments, step - known)[-16:]
        every = sorted(increments)[len(increments) // 2] if increments else None
        changes: dict[str, Any] = {"step": step, "at": at, "every": every}
        if seen.restarts:
            changes["total"] = seen.total if memory.base == 0 else None  # of one epoch: the whole isn't known
        elif seen.total is not None:
            changes["total"] = seen.total
        if begins:
            changes |= {"first_step": step, "first_step_at": at}
        self._changes = changes  # ``_beside`` makes the new state, once a line: a copy costs as much as a search
        memory.doubtful, memory.increments, memory.new_run = None, increments, False
        if memory.advances:
            memory.advances = {}
        if memory.waiting:
            memory.waiting.clear()

    def _beside(self, seen: Sighting, at: datetime, *, moved: bool) -> None:
        changes, self._changes = self._changes, {}
        saved, loaded = seen.saved, seen.loaded
        begun, begun_path = self._memory.saving, self._memory.saving_path
        if moved:
            saved = begun if saved is None else saved
            if loaded is None and self._progress.loaded is None:
                loaded = self._memory.loading
            self._memory.saving = self._memory.saving_path = self._memory.loading = None
        elif seen.phase == "train" and saved is None and self._memory.saving is not None:
            saved = begun  # "saved checkpoint", without a number
            self._remember(saving=None, saving_path=None)
        if seen.saving is not None:
            self._remember(saving=seen.saving, saving_path=seen.path)
        if seen.loading is not None:
            self._remember(loading=seen.loading)
        if saved is not None:
            known = self._progress.checkpoint_path if saved == self._progress.checkpoint else None
            path = seen.path if seen.saving is None else None
            changes |= {"checkpoint": saved, "checkpoint_path": path or (begun_path if saved == begun else known)}
        if loaded is not None:
            changes |= {"loaded": loaded, "loaded_text": seen.text, "from_scratch": False}
            self._remember(new_run=True, loading=None)
        if seen.from_scratch:
            changes |= {"loaded": 0, "loaded_text": seen.text, "from_scratch": True}
            self._remember(new_run=True, loading=None)
        if seen.loss is not None:
            finite = math.isfinite(seen.loss)
            changes |= {"diverged": not finite, **({"loss": seen.loss} if finite else {})}
        if seen.lr is not None:
            changes["lr"] = seen.lr
        if seen.throughput is not None:
            changes |= {"throughput": seen.throughput, "throughput_unit": seen.throughput_unit}
        if seen.phase is not None and (seen.phase != "train" or moved or self._progress.step is not None):
            changes["phase"] = EPOCH_END if moved and seen.restarts and seen.step == seen.total else seen.phase
        if changes:
            self._progress = self._progress.model_copy(update=changes)

    def _remember(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self._memory, name, value)


def compile_pattern(pattern: str) -> Any:
    """Compile a user's progress pattern. Raises ``InvalidPatternError``."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidPatternError(f"progress_pattern: {pattern!r} is no RE2 pattern: {error}.") from error
    if "step" not in compiled.groupindex:
        raise InvalidPatternError(f"progress_pattern: {pattern!r} has no group named step. Write (?P<step>\\d+) in it.")
    return compiled


def _rank_of(key: str) -> int | None:
    """Return the global rank of a source, if its name or the line's own prefix says so. A local rank is none."""
    source, _, writer = key.partition("#")
    named = RANK.match(writer) or RANK.search(source)
    return int(named[1]) if named is not None else None


def _newest(counts: dict[str, int]) -> dict[str, int]:
    return dict(list(counts.items())[-MOST_SOURCES:])
