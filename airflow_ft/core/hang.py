"""Hangs: no progress for longer than this job's own rhythm explains.

Fed by the watch of an attempt with what ``progress`` read (``observe``) and with the clock (``check``). Growth of the
log is not progress: only a step that moved is. How long silence may last is said by ``rhythm``; this module keeps the
time and gives the verdict.

Which clock runs depends on where training is:

- before the first step: ``startup_seconds`` (imports, loading, communication set-up, compilation); then the verdict is
  ``never_started``;
- training: the rhythm of recent steps and the pauses that recur. Steps below two seconds are quick to judge
  (``quick_seconds`` and ten steps), slower ones get ``floor_seconds`` at least;
- the first step after a phase: as long as it took before after that phase;
- checkpoint, evaluation and every other phase: twice the longest one seen; twice the ceiling for a phase that was never
  seen before;
- ``judgement_seconds``, when the user gave it, instead of all of these but the start-up clock.

Silence is the time that *we watched* without a step. If the clock jumps between two calls (a suspended machine, a
frozen triggerer) the jump counts nothing, and a detector that was restored from its state goes on where it stood. So
time in which nobody looked is never held against the job. Rejected: time since the last step's own stamp, which would
condemn a healthy job after each pause of ours. A new phase starts the clock anew, but not for ever: ``PATIENCE``
ceilings without a step are a hang, whatever is printed.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from airflow_ft.core.records import Record, Settings
from airflow_ft.core.rhythm import SHARE, Rhythm, RhythmState
from airflow_ft.core.settings import at_least

JUMP_SECONDS = 30.0  # longer between two calls than this, and than ten usual gaps: our clock jumped
COARSE_SECONDS = 600.0  # jumps up to this may be a watch that looks rarely: its steps did take so long
KEPT_GAPS = 9
KEPT_PHASES = 16
PATIENCE = 4
TRAIN = "train"
FINISH = "finish"
_TRAIN_WORDS = frozenset({TRAIN, "training"})
_STARTUP_WORDS = frozenset({"startup", "start-up", "start", "init", "initialization", "setup", "loading"})


class HangConfig(Settings):
    """When silence is a hang. ``judgement_seconds`` replaces what is learned; it must exceed saving and evaluation."""

    quick_seconds: float = Field(default=4.0, gt=0)  # with ``multiple`` steps, where a step takes less than 2 s
    floor_seconds: float = Field(default=120.0, gt=0)
    ceiling_seconds: float = Field(default=1800.0, gt=0)
    multiple: float = Field(default=10.0, ge=1)
    startup_seconds: float = Field(default=3600.0, gt=0)
    judgement_seconds: float | None = Field(default=None, gt=0)

    @field_validator("ceiling_seconds")
    @classmethod
    def _above_the_floor(cls, value: float, info: ValidationInfo) -> float | None:
        return at_least(value, info, "floor_seconds")


class HangVerdict(Record):
    """The training stands still.

    ``kind`` is ``hang`` or ``never_started``. ``incident`` counts the stalls of this run: the same number is the same
    stall, so that one is reported once and the next one again. ``ever_stepped`` says whether a step was ever read, also
    in an earlier generation: if not, the output may just be one that we can't read. ``ranks`` are those that second
    signals speak against, ``behind`` those that the others wait for by what they print.
    """

    kind: str = "hang"
    last_step: int | None = None
    phase: str | None = None
    silence: float = 0.0
    threshold: float = 0.0
    incident: int = 0
    ever_stepped: bool = False
    ranks: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    text: str = ""

    @property
    def is_chatter(self) -> bool:
        """Whether the log grows, with nothing in it that can be read: no hang, unless second signals say so."""
        return self.silence <= self.threshold


class _State(Record):
    last_call: float | None = None
    gaps: tuple[float, ...] = ()
    step: int | None = None
    stepped: bool = False  # in this generation
    ever_stepped: bool = False
    phase: str | None = None
    before: str | None = None  # the phase that ended, while no step has come since
    silence: float = 0.0  # watched seconds since the last step
    in_phase: float = 0.0  # watched seconds since the phase began
    waited: float = 0.0  # for the first step of this generation
    skipped: float = 0.0  # seconds since the last step that nobody watched
    longest: dict[str, float] = Field(default_factory=dict)  # of each phase, and of the first step after each
    incident: int = 0
    hung: bool = False
    doubtful: bool = False  # what was read as steps may be none
    finished: bool = False  # training said that it is over: what still comes (last evaluations, uploads) has no rhythm
    rhythm: RhythmState = RhythmState()


class HangDetector:
    """The detector of one attempt. Times are seconds of one clock that never goes back, or of the wall."""

    def __init__(self, config: HangConfig | None = None) -> None:
        self.config = config or HangConfig()
        clocks = (self.config.quick_seconds, self.config.floor_seconds, self.config.startup_seconds)
        self._least = min(*clocks, self.config.ceiling_seconds, self.config.judgement_seconds or math.inf)
        self._last_call: float | None = None
        self._gaps: list[float] = []
        self._step: int | None = None
        self._stepped = self._ever_stepped = self._hung = self._finished = self._doubtful = False
        self._phase: str | None = None
        self._before: str | None = None
        self._silence = self._in_phase = self._waited = self._skipped = 0.0
        self._longest: dict[str, float] = {}
        self._incident = 0
        self._at_once = 1  # steps that were seen at one moment, the last time that some were
        self._rhythm = Rhythm()

    def observe(self, at: float, step: int | None, phase: str | None) -> None:
        """Take note of the newest progress, as often as it is looked at. A step that differs has moved."""
        self._pass_time(at)
        phase = TRAIN if phase in _TRAIN_WORDS else phase
        self._finished |= phase == FINISH
        if step is not None and step != self._step:
            self._advance(step, phase)
        elif phase != self._phase:
            self._change_phase(phase)

    def grows(self, at: float) -> None:
        """A line came, and nothing surely says a step: the log's growth is all there is to go by.

        Until the next step the start-up clock runs. Each such line restarts it, but not for ever (``PATIENCE``).
        """
        self._pass_time(at)
        self._in_phase = 0.0
        self._doubtful = True

    def check(self, now: float) -> HangVerdict | None:
        """Say whether the silence is too long by now. The verdict is repeated until progress returns."""
        self._pass_time(now)
        if self._in_phase <= self._least and self._silence <= self.config.ceiling_seconds:
            return None  # nearly always: nothing has to be computed
        threshold = self.threshold()
        silence = self._in_phase
        longest = max(threshold, PATIENCE * max(self.config.ceiling_seconds, self.config.startup_seconds))
        if silence <= threshold and self._silence <= longest:
            return None
        if not self._hung:
            self._hung = True
            self._incident += 1
        return self._verdict(silence, threshold)

    def restarted(self) -> None:
        """A new generation begins: start-up again. What was learned about the rhythm stays."""
        self._step = self._phase = self._before = None
        self._stepped = self._hung = self._finished = self._doubtful = False
        self._silence = self._in_phase = self._skipped = 0.0

    @property
    def silence(self) -> float:
        """The silence so far, on the clock that runs."""
        return self._in_phase

    @property
    def slowdown(self) -> float | None:
        """How many times as long as at first a step takes, if that is worth a word. A notice, never a verdict."""
        return self._rhythm.slowdown

    def threshold(self) -> float:
        """Return the silence that is allowed right now, in seconds."""
        config = self.config
        if not self._stepped or self._doubtful or self._phase in _STARTUP_WORDS:
            return config.startup_seconds
        if config.judgement_seconds is not None:
            return config.judgement_seconds
        kind = self._kind()
        usual = self._usual(self._step if kind is None else None)
        if self._finished:
            usual = max(usual, config.ceiling_seconds)
        if kind is None:
            return usual
        seen = self._longest.get(kind)
        if seen is None and kind.startswith("after "):
            return max(config.ceiling_seconds / SHARE, usual, 1.5 * self._waited)
        return max(2 * config.ceiling_seconds, usual) if seen is None else max(usual, config.floor_seconds + 2 * seen)

    # --- state ---

    def to_state(self) -> dict[str, Any]:
        """Return what a successor needs to go on."""
        return _State(
            last_call=self._last_call,
            gaps=tuple(self._gaps),
            step=self._step,
            stepped=self._stepped,
            ever_stepped=self._ever_stepped,
            phase=self._phase,
            before=self._before,
            silence=self._silence,
            in_phase=self._in_phase,
            waited=self._waited,
            skipped=self._skipped,
            longest=self._longest,
            incident=self._incident,
            hung=self._hung,
            doubtful=self._doubtful,
            finished=self._finished,
            rhythm=self._rhythm.to_state(),
        ).to_record()

    @classmethod
    def from_state(cls, config: HangConfig | None, state: object) -> HangDetector:
        """Return a detector that goes on where the one of this state stood. A broken state is a fresh start.

        The time in between isn't counted.
        """
        detector = cls(config)
        try:
            saved = _State.model_validate(state)
        except ValidationError:
            return detector
        for name in _State.model_fields.keys() - {"rhythm", "gaps", "longest", "last_call"}:
            setattr(detector, f"_{name}", getattr(saved, name))
        detector._gaps, detector._longest = list(saved.gaps), dict(saved.longest)
        detector._rhythm = Rhythm(saved.rhythm)
        return detector

    # --- what happens ---

    def _pass_time(self, at: float) -> None:
        if self._last_call is None:
            self._last_call = at
            return
        gap = at - self._last_call
        if gap <= 0:  # two calls at one moment, or a clock that was set back
            if gap < -1:
                self._last_call = at
            return
        self._last_call = at
        watched = gap
        if gap > JUMP_SECONDS:
            usual = self._look()
            watched = gap if gap <= 10 * usual else usual
        self._skipped += gap - watched
        self._gaps.append(gap)
        if len(self._gaps) > KEPT_GAPS:
            del self._gaps[0]
        self._silence += watched
        self._in_phase += watched

    def _advance(self, step: int, phase: str | None) -> None:
        begins = self._stepped or step != 0  # a bar at 0: a sign of life, but no step has been trained
        kind = self._kind()
        if not self._stepped:
            self._waited = self._in_phase if begins else 0.0
        elif kind is not None:
            self._learn(kind)
        elif self._is_learnt() and self._silence > 0 and self._skipped <= COARSE_SECONDS:  # 0: read in one go
            self._rhythm.add(self._silence + self._skipped, self._step or 0, step, self._at_once)
        self._at_once = 1 if self._silence > 0 else self._at_once + 1
        self._step, self._phase, self._before = step, phase, None
        self._stepped, self._ever_stepped = begins, self._ever_stepped or begins
        self._silence = self._in_phase = self._skipped = 0.0
        self._hung = self._doubtful = False

    def _is_learnt(self) -> bool:
        """Whether the silence that ends is a part of the rhythm: a long one that was called a hang is none."""
        return not self._hung or self._silence <= self.config.floor_seconds / 2

    def _change_phase(self, phase: str | None) -> None:
        was = self._phase
        if was not in (None, TRAIN):
            self._learn(was)
            self._before = was
        self._phase, self._in_phase = phase, 0.0

    def _learn(self, kind: str | None) -> None:
        if kind is None or kind in _STARTUP_WORDS:
            return
        if not self._hung or kind in self._longest:
            self._longest[kind] = max(self._longest.pop(kind, 0.0), self._in_phase)
        while len(self._longest) > KEPT_PHASES:
            self._longest.pop(next(iter(self._longest)))

    def _kind(self) -> str | None:
        """Return which clock runs: a phase, the wait for the first step after one, or ``None`` for the rhythm."""
        if self._phase not in (None, TRAIN):
            return self._phase
        return None if self._before is None else f"after {self._before}"

    def _usual(self, step: int | None) -> float:
        config = self.config
        allowed = self._rhythm.allowed(
            config.quick_seconds, config.floor_seconds, config.ceiling_seconds, config.multiple, step, self._look()
        )
        return allowed if self._rhythm.known else max(allowed, 1.5 * self._waited)

    def _look(self) -> float:
        return sorted(self._gaps)[len(self._gaps) // 2] if self._gaps else 0.0

    def _verdict(self, silence: float, threshold: float) -> HangVerdict:
        allowed = f"{silence:.0f} s, {threshold:.0f} s are allowed"
        if not self._stepped:
            kind, text = "never_started", f"No step was seen since the start for {allowed}."
        elif self._phase not in (None, TRAIN):
            kind, text = "hang", f"The phase {self._phase} after step {self._step} has lasted {allowed}."
        else:
            kind, text = "hang", f"No step after step {self._step} for {allowed}."
        return HangVerdict(
            kind=kind,
            last_step=self._step,
            phase=self._phase,
            silence=silence,
            threshold=threshold,
            incident=self._incident,
            ever_stepped=self._ever_stepped,
            text=text,
        )
