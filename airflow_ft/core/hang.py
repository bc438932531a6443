"""Hangs: no progress for longer than this job's own rhythm explains.

Fed by the watch of an attempt with what ``progress`` read (``observe``) and with the clock (``check``). Growth of the
log is not progress: only a step that moved is.

Which clock runs depends on where training is:

- before the first step: ``startup_seconds`` (imports, loading, communication set-up, compilation); then the verdict is
  ``never_started``;
- training: a robust multiple of the recent intervals between steps, between floor and ceiling; the ceiling alone while
  fewer than ``FEW_INTERVALS`` are known;
- checkpoint, evaluation and every other phase: a multiple of the longest one seen of this phase; the ceiling for a
  phase that was never seen before;
- ``judgement_seconds``, when the user gave it, instead of all of these but the start-up clock.

Silence is the time that *we watched* without a step. If the clock jumps between two calls (a suspended machine, a
frozen triggerer) the jump counts nothing, and a detector that was restored from its state goes on where it stood. So
time in which nobody looked is never held against the job. Rejected: time since the last step's own stamp, which would
condemn a healthy job after each pause of ours. A new phase starts the clock anew, but not for ever: ``PATIENCE``
ceilings without a step are a hang, whatever is printed.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from airflow_ft.core.records import Record, Settings

FEW_INTERVALS = 5
KEPT_INTERVALS = 64
JUMP_SECONDS = 30.0  # longer between two calls than this, and than ten usual gaps: our clock jumped
PATIENCE = 4
TRAIN = "train"


class HangConfig(Settings):
    """When silence is a hang. ``judgement_seconds`` replaces what is learned; it must exceed saving and evaluation."""

    floor_seconds: float = Field(default=120.0, gt=0)
    ceiling_seconds: float = Field(default=1800.0, gt=0)
    multiple: float = Field(default=10.0, ge=1)
    startup_seconds: float = Field(default=1800.0, gt=0)
    judgement_seconds: float | None = Field(default=None, gt=0)


class HangVerdict(Record):
    """The training stands still.

    ``kind`` is ``hang`` or ``never_started``. ``incident`` counts the stalls of this run: the same number is the same
    stall, so that one is reported once and the next one again. ``ever_stepped`` says whether a step was ever read, also
    in an earlier generation: if not, the output may just be one that we can't read.
    """

    kind: str = "hang"
    last_step: int | None = None
    phase: str | None = None
    silence: float = 0.0
    threshold: float = 0.0
    incident: int = 0
    ever_stepped: bool = False
    text: str = ""


class _State(Record):
    last_call: float | None = None
    gaps: tuple[float, ...] = ()
    step: int | None = None
    stepped: bool = False  # in this generation
    ever_stepped: bool = False
    phase: str | None = None
    silence: float = 0.0  # watched seconds since the last step
    in_phase: float = 0.0  # watched seconds since the phase began
    intervals: tuple[float, ...] = ()
    longest: dict[str, float] = Field(default_factory=dict)
    incident: int = 0
    hung: bool = False


class HangDetector:
    """The detector of one attempt. Times are seconds of one clock that never goes back, or of the wall."""

    def __init__(self, config: HangConfig | None = None) -> None:
        self.config = config or HangConfig()
        self._now = _State()

    def observe(self, at: float, step: int | None, phase: str | None) -> None:
        """Take note of the newest progress, as often as it is looked at. A step that differs has moved."""
        self._pass_time(at)
        moved = step is not None and step != self._now.step
        if phase != self._now.phase and not (moved and phase == TRAIN):
            self._change_phase(phase)
        if moved:
            self._advance(step, phase)

    def check(self, now: float) -> HangVerdict | None:
        """Say whether the silence is too long by now. The verdict is repeated until progress returns."""
        self._pass_time(now)
        state = self._now
        threshold = self.threshold()
        silence = state.in_phase if state.stepped else state.silence
        longest = max(threshold, PATIENCE * self.config.ceiling_seconds)
        if silence <= threshold and not (state.stepped and state.silence > longest):
            return None
        if not state.hung:
            self._set(hung=True, incident=state.incident + 1)
        return _verdict(self._now, silence, threshold)

    def restarted(self) -> None:
        """A new generation begins: start-up again. What was learned about the rhythm stays."""
        self._set(step=None, stepped=False, phase=None, silence=0.0, in_phase=0.0, hung=False)

    def threshold(self) -> float:
        """Return the silence that is allowed right now, in seconds."""
        state, config = self._now, self.config
        if not state.stepped:
            return config.startup_seconds
        if config.judgement_seconds is not None:
            return config.judgement_seconds
        if self._waits_for_step():
            return self._train_threshold()
        seen = state.longest.get(state.phase or "")
        if seen is None:
            return max(config.ceiling_seconds, self._train_threshold())
        return max(self._train_threshold(), min(config.ceiling_seconds, config.multiple * seen), 2 * seen)

    def to_state(self) -> dict[str, Any]:
        """Return what a successor needs to go on."""
        return self._now.to_record()

    @classmethod
    def from_state(cls, config: HangConfig | None, state: object) -> HangDetector:
        """Return a detector that goes on where the one of this state stood. A broken state is a fresh start.

        The time in between isn't counted.
        """
        detector = cls(config)
        try:
            detector._now = _State.model_validate(state).model_copy(update={"last_call": None})
        except ValidationError:
            detector._now = _State()
        return detector

    # --- what happens ---

    def _pass_time(self, at: float) -> None:
        state = self._now
        if state.last_call is None:
            self._set(last_call=at)
            return
        gap = at - state.last_call
        if gap <= 0:  # two calls at one moment, or a clock that was set back
            self._set(last_call=min(at, state.last_call) if gap < -1 else state.last_call)
            return
        usual = sorted(state.gaps)[len(state.gaps) // 2] if state.gaps else 0.0
        watched = gap if gap <= max(JUMP_SECONDS, 10 * usual) else usual
        self._set(
            last_call=at,
            gaps=(*state.gaps, gap)[-9:],
            silence=state.silence + watched,
            in_phase=state.in_phase + watched,
        )

    def _advance(self, step: int | None, phase: str | None) -> None:
        state = self._now
        only_training = state.phase in (None, TRAIN) and state.in_phase >= state.silence
        learns = state.stepped and only_training and not state.hung and state.silence > 0  # 0: read in one go
        intervals = (*state.intervals, state.silence)[-KEPT_INTERVALS:] if learns else state.intervals
        if not self._waits_for_step():
            self._change_phase(phase)
        self._set(step=step, stepped=True, ever_stepped=True, intervals=intervals, silence=0.0, in_phase=0.0)
        self._set(phase=phase, hung=False)

    def _change_phase(self, phase: str | None) -> None:
        state = self._now
        longest = dict(state.longest)
        if state.phase not in (None, TRAIN) and not state.hung:
            longest[str(state.phase)] = max(longest.get(str(state.phase), 0.0), state.in_phase)
        self._set(phase=phase, in_phase=0.0, longest=dict(list(longest.items())[-16:]))

    def _waits_for_step(self) -> bool:
        return not self._now.stepped or self._now.phase in (None, TRAIN)

    def _train_threshold(self) -> float:
        config, intervals = self.config, self._now.intervals
        if config.judgement_seconds is not None:
            return config.judgement_seconds
        if len(intervals) < FEW_INTERVALS:
            return max(config.ceiling_seconds, config.floor_seconds)
        ordered = sorted(intervals)
        slow = ordered[int(0.9 * (len(ordered) - 1))]  # one slow step in ten is part of the rhythm, the slowest isn't
        return max(config.floor_seconds, min(config.ceiling_seconds, config.multiple * slow))

    def _set(self, **changes: Any) -> None:
        self._now = self._now.model_copy(update=changes)


def _verdict(state: _State, silence: float, threshold: float) -> HangVerdict:
    allowed = f"{silence:.0f} s, {threshold:.0f} s are allowed"
    if not state.stepped:
        kind, text = "never_started", f"No step was seen since the start for {allowed}."
    elif state.phase not in (None, TRAIN):
        kind, text = "hang", f"The phase {state.phase} after step {state.step} has lasted {allowed}."
    else:
        kind, text = "hang", f"No step after step {state.step} for {allowed}."
    return HangVerdict(
        kind=kind,
        last_step=state.step,
        phase=state.phase,
        silence=silence,
        threshold=threshold,
        incident=state.incident,
        ever_stepped=state.ever_stepped,
        text=text,
    )
