"""The rhythm of a training: how long the next step may take, learned from the steps so far.

Feeds ``hang``. Pure, of constant size. What is learned:

- *The usual step* is the middle of the recent time, not of the recent steps: half of the time was spent in intervals
  at least so long. A log that is flushed each 30 s (thirty steps at once, then nothing) has a rhythm of 30 s. It is
  taken from the last 64 intervals and from each eighth of the last 512, and the slower one counts: a burst of quick
  lines, as a validation may print them, doesn't change the rhythm.
- *Pauses*, intervals far above the usual, or above most others: a save, a loader that starts again, a recompile. One
  that came k steps after the one before is expected again within 2k steps, and allowed to last longer than it did; one
  that doesn't recur is forgotten. So the minutes of compilation at step 2 don't make us slow for the whole run.
- *Steps below our own look.* Who looks each half second sees five steps of 0.1 s at once. Where intervals are no longer
  than two looks, the usual step is the time divided by the steps that came in it, and one look more is given.
- *Round steps.* Who saves or evaluates without a word does so at step 500, not at step 487. Behind a round step (and
  before it) a longer clock runs, until that kind of round step was passed ``CLEAN`` times without a pause. For kinds
  that come rarely it always runs: a first evaluation may come after an hour.

Rejected: a median of the intervals (bursts make it worthless: backend-notes §6) and a multiple of the longest interval
(one slow step, and the run is never judged again).
"""

from __future__ import annotations

from pydantic import Field

from airflow_ft.core.records import Record

FEW_INTERVALS = 5
QUICK_INTERVALS = 16  # before so many steps were seen nobody knows the rhythm well enough to be quick
KEPT_INTERVALS = 64
QUICK_LEARNED_SECONDS = 2.0  # and so much time: the lines of one burst are no rhythm
QUICK_STEP_SECONDS = 2.0  # slower steps are big training, whose silent saves and recompiles last a minute
FULL_MULTIPLE_SECONDS = 12.0  # beyond this, ten more of a step are too patient: SLOW_MULTIPLE
SLOW_MULTIPLE = 2.5
PAUSE = 4.0  # times the usual step
PAUSE_SECONDS = 0.1  # lines that come in bursts have no time between them
PAUSE_MARGIN = 2.5  # the next pause may be so much longer
KEPT_PAUSES = 8
CLEAN = 10  # both sides of a round step count
NEVER_CLEAN = 1_000  # printed steps: so round that it stays suspicious
OFTEN, OFTEN_SECONDS = 100, 20.0  # so does this, if it comes so rarely: step 3,600 after an hour, a first evaluation
ROUND = 50  # printed steps: closer together, nothing is round
SLOW_LINE_SECONDS, SLOW_ROUND = 10.0, 5  # who prints each 100th step evaluates each 1,000th
KEPT_ROUNDS = 12
ROUND_SHARE = 3  # of the ceiling, behind a round step: evaluations of minutes
SHARE = 4  # a quarter of the ceiling is given where little is known: the first steps, the first step after a phase
FEW_MULTIPLE = 6.0
SAMPLED_EVERY = 8
OUTLIERS = 2
LOOKS = 2.0  # intervals up to so many looks may be ours, not the training's
BURSTS = 1.2  # steps an interval: below that, there is nothing to divide
SLOWER = 1.5  # a step that takes so many times as long is told; below it is weather


class RhythmState(Record):
    """What a successor needs to go on."""

    intervals: tuple[float, ...] = ()
    sampled: tuple[float, ...] = ()  # each SAMPLED_EVERY-th, of a longer time
    strides: tuple[int, ...] = ()
    count: int = 0
    last_pause: int = 0
    pauses: tuple[tuple[float, int], ...] = ()
    clean: dict[str, int] = Field(default_factory=dict)
    round_pause: float = 0.0
    early: float = 0.0
    crowd: tuple[float, float, float] = (0.0, 0.0, 0.0)  # fading sums: intervals, their seconds, their steps


class Rhythm:
    """The rhythm of one run."""

    def __init__(self, state: RhythmState | None = None) -> None:
        state = state or RhythmState()
        self._intervals = list(state.intervals)
        self._sampled = list(state.sampled)
        self._strides = list(state.strides)
        self._count = state.count
        self._last_pause = state.last_pause
        self._pauses = [tuple(pause) for pause in state.pauses]  # (seconds, the count up to which it is expected)
        self._clean = dict(state.clean)
        self._round_pause = state.round_pause
        self._early = state.early  # the usual step when the rhythm was first known well
        self._crowd = state.crowd
        self._usual: float | None = None
        self._most = 0.0  # as long as half of the recent intervals, at most

    def to_state(self) -> RhythmState:
        """Return what a successor needs to go on."""
        return RhythmState(
            intervals=tuple(self._intervals),
            sampled=tuple(self._sampled),
            strides=tuple(self._strides),
            count=self._count,
            last_pause=self._last_pause,
            pauses=tuple((seconds, until) for seconds, until in self._pauses),
            clean=self._clean,
            round_pause=self._round_pause,
            early=self._early,
            crowd=self._crowd,
        )

    def add(self, seconds: float, before: int, step: int, at_once: int = 1) -> None:
        """Learn from a step that came ``seconds`` after the one before.

        :param at_once: how many steps were seen in one look, the last time that some were.
        """
        self._count += 1
        kept = 1 - 1 / KEPT_INTERVALS
        if seconds <= PAUSE * self._crowd[1] / max(self._crowd[0], 1e-9) or self._crowd[0] < FEW_INTERVALS:
            intervals, spent, steps = self._crowd
            self._crowd = (kept * intervals + 1, kept * spent + seconds, kept * steps + at_once)
        usual = self._usual
        if usual is None:
            usual = self.usual_seconds()
        pause = usual > 0 and seconds > PAUSE * min(usual, max(self._most, PAUSE_SECONDS))
        if pause:
            self._remember_pause(seconds)
        stride = self._stride()
        if stride and (which := _roundness(before, stride, self._round())):
            self._cross(str(which), seconds if pause else 0.0)
        self._intervals.append(seconds)
        if step > before:
            self._strides.append(step - before)
        if len(self._intervals) > KEPT_INTERVALS:
            del self._intervals[0]
        if self._count == KEPT_INTERVALS:
            self._early = _middle(self._intervals)
        if self._count % SAMPLED_EVERY == 0:
            self._sampled.append(seconds)
            if len(self._sampled) > KEPT_INTERVALS:
                del self._sampled[0]
        if len(self._strides) > FEW_INTERVALS:
            del self._strides[0]
        if self._count <= KEPT_INTERVALS or self._count % SAMPLED_EVERY == 0:
            self._usual = None

    def usual_seconds(self) -> float:
        """Return the usual interval: half of the recent time was spent in intervals at least so long."""
        if self._usual is None:
            self._usual = max(_middle(self._intervals), _middle(self._sampled))
            self._most = sorted(self._intervals)[len(self._intervals) // 2] if self._intervals else 0.0
        return self._usual

    @property
    def slowdown(self) -> float | None:
        """How many times as long as at first a step takes, if that is worth a word."""
        if not self._early or self._count < 2 * KEPT_INTERVALS:
            return None
        times = _middle(self._intervals) / self._early
        return times if times >= SLOWER else None

    @property
    def known(self) -> bool:
        """Whether enough steps were seen to speak of a rhythm."""
        return len(self._intervals) >= FEW_INTERVALS

    def _below_a_look(self, look: float) -> float | None:
        """Return the usual step where several are seen at once only because we look so rarely."""
        intervals, seconds, steps = self._crowd
        if self.usual_seconds() > LOOKS * look or steps < BURSTS * intervals:
            return None
        return seconds / steps

    def allowed(
        self, quick: float, floor: float, ceiling: float, multiple: float, step: int | None, look: float = 0.0
    ) -> float:
        """Return how long the step after ``step`` may take. Without a step: in general, round or not.

        :param look: seconds between two looks of ours.
        """
        if not self.known:
            longest = FEW_MULTIPLE * max(self._intervals) if len(self._intervals) > 1 else ceiling
            return max(floor, min(ceiling, max(ceiling / SHARE, longest)))
        usual = self.usual_seconds()
        patient = multiple * min(usual, FULL_MULTIPLE_SECONDS)
        patient += min(multiple, SLOW_MULTIPLE) * max(0.0, usual - FULL_MULTIPLE_SECONDS)
        pause = PAUSE_MARGIN * max((seconds for seconds, until in self._pauses if until >= self._count), default=0.0)
        fast = (
            usual < QUICK_STEP_SECONDS
            and max(self._count, self._crowd[2]) >= QUICK_INTERVALS
            and sum(self._intervals) + sum(self._sampled) >= QUICK_LEARNED_SECONDS
        )
        if fast and (finer := self._below_a_look(look)) is not None:
            patient = min(patient, multiple * finer + look)
        allowed = max(quick + patient, pause) if fast else max(floor, patient, pause)
        if self._is_suspicious(step):
            allowed = max(allowed, floor, ceiling / ROUND_SHARE, PAUSE_MARGIN * self._round_pause)
        return min(allowed, max(ceiling, floor, SLOW_MULTIPLE * usual))

    def _remember_pause(self, seconds: float) -> None:
        since = self._count - self._last_pause
        self._last_pause = self._count
        self._pauses = [pause for pause in self._pauses if pause[1] >= self._count]
        self._pauses.append((seconds, self._count + 2 * since + 8))
        if len(self._pauses) > KEPT_PAUSES:
            self._pauses.remove(min(self._pauses))

    def _cross(self, which: str, pause: float) -> None:
        if pause:
            self._round_pause = max(self._round_pause, pause)
        self._clean[which] = 0 if pause else self._clean.pop(which, 0) + 1
        if len(self._clean) > KEPT_ROUNDS:
            self._clean.pop(next(iter(self._clean)))

    def _is_suspicious(self, step: int | None) -> bool:
        stride = self._stride()
        which = _roundness(step, stride, self._round()) if stride and step is not None else 0
        if not which or self._clean.get(str(which), 0) < CLEAN:
            return which > 0
        lines = which / stride
        return lines >= NEVER_CLEAN or (lines >= OFTEN and lines * self.usual_seconds() >= OFTEN_SECONDS)

    def _round(self) -> int:
        return ROUND if self.usual_seconds() < SLOW_LINE_SECONDS else SLOW_ROUND

    def _stride(self) -> int:
        return sorted(self._strides)[len(self._strides) // 2] if self._strides else 0


def _middle(intervals: list[float]) -> float:
    """Return the interval in the middle of the time; the longest few don't count once there are many."""
    ordered = sorted(intervals)
    if len(ordered) > 8 * OUTLIERS:
        del ordered[-OUTLIERS:]
    left = sum(ordered) / 2
    for seconds in ordered:
        left -= seconds
        if left <= 0:
            return seconds
    return 0.0


def _roundness(step: int, stride: int, least: int) -> int:
    """Return which kind of round number this step or the next one is: the largest of 50, 100, 500, … that divides it.

    It is asked of the printed lines, too: where each 64th step is printed, step 64,000 is the thousandth line. 0 if
    nothing is round, or if round numbers of that kind come too often to mean anything.
    """
    kinds = [_roundest(at) for at in (step, step + stride)]
    if stride > 1:
        kinds += [stride * _roundest(at // stride) for at in (step, step + stride) if at % stride == 0]
    kind = max(kinds)
    return kind if kind >= least * stride else 0


def _roundest(number: int) -> int:
    kind, unit = 0, 10
    while number > 0 and number % unit == 0:
        kind = max(kind, *(many * unit for many in (1, 5, 10) if number % (many * unit) == 0))
        unit *= 10
    return kind
