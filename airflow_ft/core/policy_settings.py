"""The parts of a policy: hang detection, exclusion, backoff, asking a person. ``policy`` puts them together.

Each is validated at construction and says what is wrong with it (``settings``). Where a default is a threshold, its
source stands beside it.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import ConfigDict, ValidationInfo, field_validator

from airflow_ft.core.settings import CheckedSettings, Seconds, Whole, at_least, setting

SECONDS = "Give seconds: a number above 0."
ACT, NOTIFY, ASK = "act", "notify", "ask"
Switch = Literal["act", "notify", "ask"]
SWITCH = "Give act, notify or ask."


class HangSettings(CheckedSettings):
    """When silence is a hang, and what is done then.

    The detector learns the job's rhythm: the threshold is ``multiple`` recent step intervals, within ``floor_seconds``
    and ``ceiling_seconds``. All clocks have to stay clear of what is slow but healthy: model loading, data preparation,
    evaluation, the set-up of communication.

    :param action: ``act``, or ``notify``: say so and leave the job alone.
    :param startup_seconds: the clock until the first step.
    :param judgement_seconds: a fixed threshold instead of the learned one.
    :param check_interval_seconds: how often progress is looked at.
    """

    model_config = ConfigDict(validate_default=True)  # defaults are checked against what was given, too

    action: Literal["act", "notify"] = setting("act", allowed="Give act or notify.")
    check_interval_seconds: Seconds = setting(15.0, gt=0, allowed=SECONDS)
    # Well below NCCL's own time limit (600 s), so that we speak first; a gut feeling beyond that.
    floor_seconds: Seconds = setting(120.0, gt=0, allowed=SECONDS)
    ceiling_seconds: Seconds = setting(1800.0, gt=0, allowed=SECONDS)
    multiple: Seconds = setting(10.0, gt=1, allowed="Give a number above 1: how many step intervals of silence.")
    # The longest healthy start in 563 MLPerf training runs took 1,736 s; twice that.
    startup_seconds: Seconds = setting(3600.0, gt=0, allowed=SECONDS)
    judgement_seconds: Seconds | None = setting(None, gt=0, allowed=f"{SECONDS} Or leave it out.")

    @field_validator("floor_seconds", "startup_seconds", "judgement_seconds")
    @classmethod
    def _longer_than_a_check(cls, value: float | None, info: ValidationInfo) -> float | None:
        return at_least(value, info, "check_interval_seconds")

    @field_validator("ceiling_seconds")
    @classmethod
    def _above_the_floor(cls, value: float, info: ValidationInfo) -> float | None:
        return at_least(value, info, "floor_seconds")


class ExclusionSettings(CheckedSettings):
    """Which nodes later attempts avoid, how many, and for how long. A retry has to stay schedulable.

    :param kind: ``hard`` (never there) or ``soft`` (rather elsewhere). Who is over the cap is always soft.
    :param max_share: of the pool of nodes in service, rounded down. What the job needs is always left.
    :param max_nodes: how many at most, whatever the share says.
    :param max_unseen: how many where the pool can't be seen. A gut feeling: one rack's unlucky week, no more.
    :param expiry_seconds: how long after it was suspected last; nothing: as long as the chain lives.
    :param offender_after: a node that was suspected so many times is avoided by every later attempt, without expiry.
    :param unschedulable_seconds: an attempt that waits for nodes so long gets its least sure exclusion softened;
        nothing: never.
    """

    kind: Literal["hard", "soft"] = setting("hard", allowed="Give hard or soft.")
    max_share: Seconds = setting(0.5, ge=0, lt=1, allowed="Give a share from 0 to below 1.")
    max_nodes: Whole | None = setting(None, ge=0, le=10_000, allowed="Give a number from 0 to 10000, or leave it out.")
    max_unseen: Whole = setting(4, ge=0, le=1000, allowed="Give a number from 0 to 1000.")
    # Three of four repairs in InfiniteHBD's trace of 400 GPU servers were done within 3.2 days.
    expiry_seconds: Seconds | None = setting(3 * 86_400.0, gt=0, allowed=f"{SECONDS} Or nothing: it never ends.")
    offender_after: Whole = setting(2, ge=1, le=128, allowed="Give a number from 1 to 128.")
    # Longer than a busy scheduler takes for one round, shorter than a person's coffee: a gut feeling.
    unschedulable_seconds: Seconds | None = setting(900.0, gt=0, allowed=f"{SECONDS} Or nothing: never softened.")


class BackoffSettings(CheckedSettings):
    """How long to wait before a restart: nothing, then ``base_seconds``, then ``factor`` times as long each time.

    :param jitter: a share of each delay that is added by chance, so that many chains don't come back at once. The
        chance is the chain's name: the same decision, asked for again, is the same.
    """

    base_seconds: Seconds = setting(30.0, ge=0, allowed="Give seconds, or 0 to never wait.")
    factor: Seconds = setting(2.0, ge=1, le=100, allowed="Give a number from 1 to 100.")
    max_seconds: Seconds = setting(900.0, ge=0, le=86400, allowed="Give seconds, at most a day (86400).")
    jitter: Seconds = setting(0.2, ge=0, le=1, allowed="Give a share from 0 to 1.")

    def delay(self, times: int, salt: str = "") -> float:
        """Seconds before the restart that follows ``times`` restarts without progress. No ``salt``, no jitter."""
        if times <= 0:
            return 0.0
        plain = min(self.max_seconds, self.base_seconds * min(self.factor ** min(times - 1, 64), 1e9))
        return round(plain * (1 + self.jitter * _chance(salt)), 1) if salt else plain


class AskSettings(CheckedSettings):
    """How a person is asked, where a switch says ``ask``.

    :param timeout_seconds: how long the answer is waited for; then ``default`` holds.
    :param default: ``approve`` what was proposed, ``resubmit``, or ``stop``.
    :param job: ``hold`` what is left of the job until the answer (its GPUs stay taken, and an approved restart in place
        is one), or ``release`` it. The agents hold for longer than ``timeout_seconds``, also if nobody supervises them.
    """

    timeout_seconds: Seconds = setting(4 * 3600.0, ge=30, le=7 * 86_400, allowed="Give seconds from 30 to 604800.")
    default: Literal["approve", "resubmit", "stop"] = setting("approve", allowed="Give approve, resubmit or stop.")
    job: Literal["hold", "release"] = setting("release", allowed="Give hold or release.")


def _chance(salt: str) -> float:
    return int.from_bytes(hashlib.sha256(salt.encode()).digest()[:4], "big") / 2**32
