"""The ledger: the budgets and what has been spent of them (DESIGN §4).

A pure value. ``charge`` says what one decision costs, ``after_run`` what a run of the training earned back. The maxima
are not in here: they are the policy's, and a policy may change between two tries.

There are three kinds of counts, and what was learned of nodes (``blames``), which outlives a segment:

- *budgets* (``restarts``, ``pod_restarts``): only grow, for the whole segment of the chain;
- *consecutive counts* (``unconditional_streak``, ``hang_streak``, ``unprogressed``): begin anew after progress that
  lasts, and after nothing else, so that "one new step, then a crash, for ever" comes to an end;
- *a window* (``free_at``): free restarts of the last hours, whatever progress they made.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from pydantic import AwareDatetime, Field

from airflow_ft.core.records import Record

# Progress lasts when a checkpoint keeps it, or after this many seconds of steps beyond the highest one: an order of
# magnitude more than a restart in place costs (agent-notes §2: 10 to 30 s), so a loop of free restarts can't be cheap.
LASTING_SECONDS = 600.0
# Where steps can't be read, so much running without a fault stands in for progress (DESIGN §4).
HEALTHY_SECONDS = 3600.0
# Times of free restarts that are kept: policies count at most this many in a window of at most a day. 32 times are
# 1 kB of the 4 kB that a decision may take in an order to the agents.
MAX_FREE_KEPT = 32
MAX_FREE_WINDOW = timedelta(days=1)
# Times of charged restarts that are kept, for a policy with a budget in a time window.
MAX_CHARGED_KEPT = 16
# Nodes whose blame is kept, the repeat offenders before the newest others: 1 kB.
MAX_BLAMES = 12

CHARGES = ("", "restart", "unconditional", "hang", "in_place", "pod", "disruption")


class Run(Record):
    """What one run (one generation of one attempt) achieved. ``None`` means that it isn't known.

    :param last_step: the last step that was seen.
    :param seconds_beyond: seconds of steps beyond the chain's highest step before this run.
    :param new_checkpoint: the newest checkpoint's step that was saved in this run, if newer than the one loaded.
    :param healthy_seconds: seconds of running without a fault, whatever is known about steps.
    :param lost_seconds: seconds of its work that no checkpoint keeps; 0 if that isn't known.
    """

    first_step: int | None = None
    last_step: int | None = None
    seconds_beyond: float = 0.0
    new_checkpoint: int | None = None
    healthy_seconds: float = 0.0
    lost_seconds: float = Field(default=0.0, ge=0.0)

    def reached(self) -> int | None:
        """The highest step that this run is known to have reached."""
        known = [step for step in (self.last_step, self.new_checkpoint) if step is not None]
        return max(known, default=None)

    def gained(self, highest_step: int | None) -> bool | None:
        """Whether it went beyond the chain's highest step before it. ``None``: not known, which proves nothing."""
        reached = self.reached()
        return None if reached is None else _beyond(reached, highest_step)


class Blame(Record):
    """A node that was suspected in this chain: when last, how often, and how sure the surest diagnosis was."""

    node: str
    at: AwareDatetime
    times: int = Field(default=1, ge=1)
    confidence: float = Field(default=0.0, ge=0.0, le=1.0)


class Ledger(Record):
    """What has been spent in this segment of the chain.

    ``restarts`` is charged to ``max_restarts``. ``unprogressed`` is the count that in-place and hang restarts share,
    ``hang_streak`` and ``unconditional_streak`` are consecutive counts of their own; ``free_at`` holds the times of all
    free restarts of the last hours; ``disruptions`` are counted without a step in between; ``restarted_at`` is when
    ``restarts`` was charged last, ``charged_at`` when it was charged the last times; ``lost_gpu_seconds`` is what
    faults have cost; ``blames`` are the suspected nodes of the whole chain, the last suspected last.
    """

    restarts: int = Field(default=0, ge=0)
    unconditional_streak: int = Field(default=0, ge=0)
    hang_streak: int = Field(default=0, ge=0)
    unprogressed: int = Field(default=0, ge=0)
    pod_restarts: int = Field(default=0, ge=0)
    disruptions: int = Field(default=0, ge=0)
    free_at: tuple[AwareDatetime, ...] = ()
    highest_step: int | None = None
    restarted_at: AwareDatetime | None = None
    charged_at: tuple[AwareDatetime, ...] = ()
    lost_gpu_seconds: float = Field(default=0.0, ge=0.0)
    blames: tuple[Blame, ...] = ()

    def charge(self, what: str, now: datetime) -> Ledger:
        """Return the ledger after a decision that costs ``what`` (``Decision.charged``).

        One decision is one charge, however many pods or nodes it took. A disruption is not among the free restarts of
        the window: that window stops loops of our own making, and a preemption is made by others; it backs off instead.
        """
        if what not in CHARGES:
            raise ValueError(f"charge: {what!r} is not allowed. Give one of {', '.join(map(repr, CHARGES))}.")
        if what == "restart":
            return self.but(**self._charged(now))
        if what == "unconditional":
            streak = self.unconditional_streak + 1
            return self.but(**self._charged(now), unconditional_streak=streak)
        if what == "hang":
            return self.but(hang_streak=self.hang_streak + 1, **self._free(now))
        if what == "in_place":
            return self.but(**self._free(now))
        if what == "pod":
            return self.but(pod_restarts=self.pod_restarts + 1)
        if what == "disruption":
            return self.but(disruptions=self.disruptions + 1)
        return self

    def after_run(self, run: Run, gpus: int = 0) -> Ledger:
        """Return the ledger after a run: progress beyond the highest step that lasts resets the consecutive counts.

        What no checkpoint keeps of the run's work is lost on all ``gpus`` (0: not known, nothing is counted).
        """
        lasted = self.lasting(run)
        reached = run.reached()
        known = [step for step in (self.highest_step, reached) if step is not None]
        changes: dict[str, object] = {"highest_step": max(known, default=None)}
        if lasted:
            changes |= {"unconditional_streak": 0, "hang_streak": 0, "unprogressed": 0}
        if lasted or run.gained(self.highest_step):
            changes["disruptions"] = 0
        if gpus and run.lost_seconds:
            changes["lost_gpu_seconds"] = round(self.lost_gpu_seconds + gpus * run.lost_seconds, 1)
        return self.but(**changes)

    def lasting(self, run: Run) -> bool:
        """Whether ``run`` made progress beyond the chain's highest step that lasts. Replayed steps never do."""
        gained = run.gained(self.highest_step)
        if gained is None:
            return run.healthy_seconds >= HEALTHY_SECONDS
        saved = run.new_checkpoint is not None and _beyond(run.new_checkpoint, self.highest_step)
        return gained and (saved or run.seconds_beyond >= LASTING_SECONDS)

    def blamed(self, nodes: Sequence[str], confidence: float, now: datetime, *, again: bool = True) -> Ledger:
        """Return the ledger after ``nodes`` were suspected. ``again``: it is a further time, not the same incident."""
        at, confidence = _utc(now), round(confidence, 2)
        known = {blame.node: (blame.at, blame.times, blame.confidence) for blame in self.blames}
        for node in dict.fromkeys(nodes):
            _, times, sure = known.pop(node, (at, 0, 0.0))
            known[node] = (at, max(1, times + again), max(sure, confidence))
        least = sorted(known, key=lambda node: known[node][1] > 1)  # the oldest first, offenders behind all others
        for node in least[: max(0, len(known) - MAX_BLAMES)]:
            del known[node]
        return self.but(
            blames=tuple(
                Blame(node=node, at=when, times=times, confidence=sure) for node, (when, times, sure) in known.items()
            )
        )

    def of_next_segment(self, highest_step: int | None) -> Ledger:
        """Return the ledger with which a new segment begins: fresh budgets; who was suspected is not forgotten."""
        return Ledger(highest_step=highest_step, blames=self.blames)

    def restarts_within(self, now: datetime, window_seconds: float) -> int:
        """How many charged restarts lie within ``window_seconds`` of ``now``, on either side."""
        return sum(abs((now - at).total_seconds()) < window_seconds for at in self.charged_at)

    @property
    def lost_gpu_hours(self) -> float:
        """What faults have cost, as far as it is known."""
        return self.lost_gpu_seconds / 3600.0

    def free_restarts(self, now: datetime, window_seconds: float) -> int:
        """How many free restarts lie within ``window_seconds`` of ``now``, on either side: clocks can be set back."""
        return sum(abs((now - at).total_seconds()) < window_seconds for at in self.free_at)

    def _charged(self, now: datetime) -> dict[str, object]:
        now = _utc(now)
        at = (*self.charged_at, now)[-MAX_CHARGED_KEPT:]
        return {"restarts": self.restarts + 1, "restarted_at": now, "charged_at": at}

    def _free(self, now: datetime) -> dict[str, object]:
        now = _utc(now)
        recent = (at for at in self.free_at if abs(now - at) < MAX_FREE_WINDOW)
        return {"unprogressed": self.unprogressed + 1, "free_at": (*recent, now)[-MAX_FREE_KEPT:]}


def _beyond(step: int, highest_step: int | None) -> bool:
    return highest_step is None or step > highest_step


def _utc(now: datetime) -> datetime:
    if now.tzinfo is None:
        raise ValueError(f"now: {now!r} is not allowed. Give a time with a time zone.")
    return now.astimezone(timezone.utc).replace(microsecond=0)
