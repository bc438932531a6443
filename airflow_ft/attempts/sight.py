"""What a watch has seen of the training: its logs as they grow, progress, the hang detector, recovery.

Fed by ``watch`` with observations and log bytes; asked by ``conclude`` for the facts of the run. Its state can be saved
and taken up again, so that a triggerer that was replaced doesn't start from nothing.

Where one generation ends and the next begins is read in the logs themselves, at the agents' lines: what the old one
printed in its last moments, and is read after the restart was ordered, is not taken for the new one, nor what one node
still prints when another one's agent has begun anew. A line about a generation that the backend has not told of begins
nothing: everybody can print one.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from pydantic import JsonValue

from airflow_ft.attempts.ports import WatchOrder
from airflow_ft.backends.base import Cursors, LogChunk, LogTail
from airflow_ft.core.hang import HangConfig, HangDetector, HangVerdict
from airflow_ft.core.ledger import Run
from airflow_ft.core.loglines import LineReader, lines_of
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.core.progress import Progress, ProgressReader
from airflow_ft.core.recovery import Recovery, begin, ended, follow
from airflow_ft.core.vitals import RankVitals, Sample, read_ranks

# torchrun announces the end, unprefixed (its ranks' lines have a prefix), as soon as a rank died; until it ends itself
# it closes the other ranks, which takes seconds, and 30 s when one of them ignores TERM.
GIVES_UP = re.compile(
    r"^[EW]\d{4} .*torch/distributed/elastic/\S+\] failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)"
)
QUICK_SECONDS = 3.0  # with ten steps: a verdict that needs second signals
BEGINS = re.compile(r"ft-agent \S+ \{.*\"event\":\"start\"")
VITALS = re.compile(r"ft-agent \S+ (\{.*\"event\":\"vitals\".*\})")
KEPT_SAMPLES = 16
SAME_SAMPLE_SECONDS = 3.0
GENERATION = re.compile(r"\"generation\": ?(\d{1,6})\b")


class Sight:
    """The growing picture of one attempt."""

    def __init__(self, order: WatchOrder, policy: FaultTolerancePolicy, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lines: dict[str, LineReader] = {}
        self._reader = ProgressReader(pattern=order.progress_pattern)
        self._pattern = order.progress_pattern
        self._config = hang_config(policy)
        self.may_act = policy.acts_on_hangs  # else the job must not even notice that it is looked at
        self._hang = HangDetector(self._config)
        self._highest = order.highest_step
        self._beyond_since: datetime | None = None
        self._generation_since = now()
        self._saved_at: datetime | None = None  # when this generation was seen to save a checkpoint last
        self._foreign: tuple[int, int | None] = (0, None)  # restarts that nobody ordered, the highest step before them
        self._given_up: set[str] = set()  # the logs in which a launcher has announced its end
        self._heard: dict[str, int] = {}  # the newest generation that the agent in this log has told of
        self._behind: set[str] = set()  # the logs that still hold lines of the generation before
        self.samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)  # of this silence, from the agents' lines
        self._vitals: dict[str, list[RankVitals]] = {}  # by log (several pods share a node), the newest last
        self._afresh: int | None = None  # the newest step that only a fresh look has found
        self._marked = True  # whether the beginning of this generation was read in the log
        self.generation = 0
        self.expected = 0  # the newest generation that the backend has told of
        self.over_since: datetime | None = None  # set by who looks at a run later than at its end
        self.cursors: Cursors = {}
        self.recoveries: dict[int, Recovery] = {0: order.recovery} if order.recovery else {}  # by generation
        self.loaded_checkpoint = order.last_checkpoint

    @property
    def progress(self) -> Progress:
        """The newest progress of the current generation."""
        return self._reader.progress

    @property
    def recovery(self) -> Recovery | None:
        """What this generation has to recover from, and how far it has come."""
        return self.recoveries.get(self.generation)

    @property
    def highest_step(self) -> int | None:
        """The highest step that the chain has ever seen."""
        return self._highest

    def take(self, chunks: Sequence[LogChunk], cursors: Cursors) -> list[str]:
        """Read new log bytes. Returns what is worth telling a person: recovery, checkpoints loaded."""
        told: list[str] = []
        now = self._now()  # of one look: lines read together came at one moment, as far as we know
        for chunk in chunks:
            reader = self._lines.setdefault(chunk.source, LineReader())
            if chunk.restarted:
                reader = self._lines[chunk.source] = LineReader()
                self._behind.discard(chunk.source)
            for line in reader.feed(chunk.data):
                told += self._take_line(line, chunk.source, now)
        self.cursors = cursors
        return told

    def _take_line(self, line: str, source: str, now: datetime) -> list[str]:
        if GIVES_UP.match(line):
            self._given_up.add(source)
        elif "ft-agent " in line:
            self._hear(line, source)
        if source in self._behind:
            return []
        before = self.progress
        moved = self._reader.feed(line, now, source)
        after = self.progress
        if moved or after.phase != before.phase:
            self._hang.observe(now.timestamp(), after.step, after.phase)
        if self._reader.sure_step is None and "ft-agent " not in line:
            self._hang.grows(now.timestamp())
        if moved:
            self.samples.clear()
        elif (told_vitals := VITALS.search(line)) is not None:
            self._take_vitals(told_vitals[1], source, now)
        if moved and after.step is not None and (self._highest is None or after.step > self._highest):
            self._highest = after.step
            self._beyond_since = self._beyond_since or now
        if after.checkpoint is not None and after.checkpoint != before.checkpoint:
            self._saved_at = now
        if before.first_step_at is not None and after.first_step_at != before.first_step_at:
            self._began_again()
        told = [after.loaded_text] if after.loaded_text and after.loaded_text != before.loaded_text else []
        if self.recovery is not None and self.recovery.state == "pending":
            followed = self.recoveries[self.generation] = follow(self.recovery, after)
            if followed.state != "pending":
                told.append(followed.text)
        return told

    def _take_vitals(self, text: str, source: str, now: datetime) -> None:
        """The agents' own lines: the second signals where the backend can't look at processes itself."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return
        self._vitals.pop(source, None)
        entries = said.get("ranks") if isinstance(said, dict) else None
        self._vitals[source] = read_ranks(source.partition("/")[0], entries)
        told = [(log, rank) for log, ranks in self._vitals.items() for rank in ranks]
        newest = {rank.rank if rank.rank is not None else log: rank for log, rank in told}
        ranks = tuple(newest.values())  # a rank that was placed anew is told by its old log, too
        at = now.timestamp()
        if self.samples and at - self.samples[-1].at < SAME_SAMPLE_SECONDS:
            self.samples.pop()  # the nodes of one period, one after the other
        self.samples.append(Sample(at=at, ranks=ranks))

    def _hear(self, line: str, source: str) -> None:
        """An agent tells of a generation after everything of the one before is dead: what follows is of the new one."""
        found = GENERATION.search(line)
        generation = int(found[1]) if found else 0
        self._heard[source] = max(generation, self._heard.get(source, 0))
        if BEGINS.search(line):
            self._given_up.discard(source)
            self._begins(generation)
        if self._heard[source] >= self.generation:
            self._behind.discard(source)

    def _begins(self, generation: int) -> None:
        if self.generation < generation <= self.expected:
            self.failed()
            self.restarted(generation)
        if generation == self.generation and not self._marked:
            self._begin()
            self._marked = True
            self._behind = {source for source, heard in self._heard.items() if heard < generation}

    def _began_again(self) -> None:
        """Steps began again in a generation that we did not restart: a launcher, an operator or a scheduler did."""
        count, highest = self._foreign
        gained = highest is None or (self._highest or 0) > highest
        self._foreign = (1 if gained else count + 1, self._highest)

    @property
    def foreign_restarts(self) -> int:
        """How often others restarted this generation without a step gained in between (PRG-05)."""
        return self._foreign[0]

    def gives_up(self, node: str) -> bool:
        """Whether the launcher on ``node`` has announced that it ends because a rank of its own died."""
        return any(source.partition("/")[0] == node for source in self._given_up)

    def take_afresh(self, tails: Sequence[LogTail]) -> int | None:
        """Look into the ends of the logs, which were read anew. Returns the step that is there, if it is a newer one.

        The same step is believed once: the end of a log may tell of an earlier generation, which had come further.
        """
        lines = [(tail.source, line) for tail in tails for line in lines_of(tail.data)]
        there, known = ProgressReader.rebuilt(lines, self._now(), self._pattern).progress, self.progress.step
        if there.step is None or there.step <= max(known or 0, self._afresh or 0):
            return None
        self._afresh = there.step
        self._hang.observe(self._now().timestamp(), there.step, there.phase)
        return there.step

    def verdict(self) -> HangVerdict | None:
        """Ask the hang detector."""
        found = self._hang.check(self._now().timestamp())
        behind = self._reader.behind if found is not None else ()
        if found is None or not behind:
            return found
        names = ", ".join(map(str, behind[:8]))
        return found.but(behind=behind, text=f"{found.text} Behind, by what they print: rank {names}.")

    @property
    def is_silent(self) -> bool:
        """Whether half of the silence that is allowed has passed: time to look more closely."""
        return self._hang.silence > self._hang.threshold() / 2

    @property
    def silence(self) -> float:
        """How long the silence has lasted, in seconds."""
        return self._hang.silence

    @property
    def seconds_left(self) -> float:
        """How much more silence is allowed."""
        return self._hang.threshold() - self._hang.silence

    @property
    def slowdown(self) -> float | None:
        """How many times as long as at first a step takes, if that is worth a word."""
        return self._hang.slowdown

    def run(self) -> Run:
        """Return what the current generation has achieved: until now, or until it was seen to fail."""
        now, progress = self.over_since or self._now(), self.progress
        last = progress.at or now
        beyond = (last - self._beyond_since).total_seconds() if self._beyond_since else 0.0
        saved = progress.checkpoint
        newer = saved is not None and saved > max(progress.loaded or 0, self.loaded_checkpoint or 0)
        return Run(
            first_step=progress.first_step,
            last_step=progress.step,
            seconds_beyond=max(0.0, beyond),
            new_checkpoint=saved if newer else None,
            healthy_seconds=max(0.0, (now - self._generation_since).total_seconds()),
            lost_seconds=max(0.0, (now - (self._saved_at or self._generation_since)).total_seconds()),
        )

    def failed(self) -> None:
        """The run is over by a fault: what it hasn't recovered from by now, it never will."""
        if self.recovery is not None:
            self.recoveries[self.generation] = ended(self.recovery)

    def restarted(self, generation: int) -> None:
        """A new generation was ordered. Does nothing if it is known already."""
        if generation > self.generation:
            before = self.recovery
            self.generation, self.expected, self._marked = generation, max(self.expected, generation), False
            if before is not None:
                self.recoveries[generation] = before
            self._begin()

    def _begin(self) -> None:
        """The next lines belong to a run that resumes from the last checkpoint."""
        died = self.progress
        self.loaded_checkpoint = died.checkpoint if died.checkpoint is not None else self.loaded_checkpoint
        # Who died before a first step has not got behind the place where the one before died.
        at, loss = died.step, died.loss
        if at is None and self.recovery is not None:
            at, loss = self.recovery.died_at_step, self.recovery.loss_before
        self.recoveries[self.generation] = begin(at, self.loaded_checkpoint, loss)
        self._beyond_since = self._saved_at = self.over_since = None
        self._foreign = (0, None)
        self._generation_since = self._now()
        self._reader.restarted()
        self._hang.restarted()

    # --- saved state ---------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, JsonValue]:
        """Return what a replaced triggerer needs: small JSON values."""
        return {
            # A line without an end is read again: its beginning is only in this process's memory.
            "cursors": {source: at - self._unfinished(source) for source, at in self.cursors.items()},
            "reader": self._reader.to_state(),
            "hang": self._hang.to_state(),
            "generation": self.generation,
            "marked": self._marked,
            "recoveries": {str(at): recovery.to_record() for at, recovery in self.recoveries.items()},
            "loaded": self.loaded_checkpoint,
            "highest": self._highest,
            "since": self._generation_since.isoformat(),
            "beyond": self._beyond_since.isoformat() if self._beyond_since else None,
            "saved": self._saved_at.isoformat() if self._saved_at else None,
            "foreign": list(self._foreign),
            "given_up": list[JsonValue](sorted(self._given_up)),
            "heard": dict[str, JsonValue](self._heard),
            "behind": list[JsonValue](sorted(self._behind)),
        }

    def _unfinished(self, source: str) -> int:
        return self._lines[source].unfinished if source in self._lines else 0

    def take_up(self, state: dict[str, JsonValue]) -> None:
        """Take up saved state. Raises ``ValueError``, ``KeyError`` or ``TypeError`` if it can't be read."""
        cursors, recoveries, generation = state["cursors"], state["recoveries"], state["generation"]
        if not isinstance(cursors, dict) or not isinstance(recoveries, dict) or not isinstance(generation, int):
            raise TypeError("it is not what this version writes")
        self._reader = ProgressReader.from_state(state["reader"], self._pattern)
        self._hang = HangDetector.from_state(self._config, state["hang"])
        self.recoveries = {int(at): Recovery.from_record(recovery) for at, recovery in recoveries.items()}
        self.generation = self.expected = generation
        self._marked = state["marked"] is True
        self.loaded_checkpoint, self._highest = state["loaded"], state["highest"]  # type: ignore[assignment]
        self._generation_since = datetime.fromisoformat(str(state["since"]))
        beyond, saved, given_up = state.get("beyond"), state.get("saved"), state.get("given_up")
        self._saved_at = datetime.fromisoformat(str(saved)) if saved else None
        foreign = state.get("foreign")
        self._foreign = (int(foreign[0]), foreign[1]) if isinstance(foreign, list) else (0, None)  # type: ignore[arg-type, assignment]
        self._beyond_since = datetime.fromisoformat(str(beyond)) if beyond else None
        self._given_up = {str(source) for source in given_up} if isinstance(given_up, list) else set()
        heard, logs_behind = state.get("heard"), state.get("behind")
        self._heard = {source: int(at) for source, at in heard.items()} if isinstance(heard, dict) else {}  # type: ignore[arg-type]
        self._behind = {str(source) for source in logs_behind} if isinstance(logs_behind, list) else set()
        self.cursors = {str(source): int(offset) for source, offset in cursors.items()}  # type: ignore[arg-type]


def hang_config(policy: FaultTolerancePolicy) -> HangConfig:
    """Return the detector's settings as the policy has them. It is quick: second signals are asked before acting."""
    config = detector_settings(policy.hang)
    return config.model_copy(update={"quick_seconds": min(QUICK_SECONDS, policy.hang.floor_seconds)})


def detector_settings(hang: HangSettings) -> HangConfig:
    """Return the detector's settings as a user has them. Where nobody can be asked, nothing is judged quickly."""
    shared = HangConfig.model_fields.keys() & HangSettings.model_fields.keys()
    return HangConfig(**{name: getattr(hang, name) for name in shared}, quick_seconds=hang.floor_seconds)
