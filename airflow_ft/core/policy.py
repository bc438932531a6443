"""The policy as one readable object: modes, budgets, limits and ladder. The rules that read it are in ``decide``.

| | basic | advanced | full |
|---|---|---|---|
| resubmit on any failure, limited by ``max_restarts`` alone | yes | yes, after the rules | yes |
| act on the fault class (in place, exclude, bisect, fail fast) | – | yes | yes |
| hang detection | – | – | yes |

``max_restarts=0`` or mode ``off`` switches everything off: no resubmission, no restart in place, no preflight.

    FaultTolerancePolicy.full(max_restarts=5, hang=HangSettings(floor_seconds=600))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, ValidationInfo, field_validator
from typing_extensions import Self

from airflow_ft.core.faults import FaultClass
from airflow_ft.core.ladder import DEFAULT_LADDER, Rung
from airflow_ft.core.ledger import MAX_FREE_KEPT, MAX_FREE_WINDOW
from airflow_ft.core.settings import CheckedSettings, Flag, Seconds, SettingsError, Whole, did_you_mean, setting

MAX_RESTARTS = 128  # mission M2
ANNOTATIONS = "fault-tolerance/"  # mission M7

_SWITCH = "Give a number from 1 to 128, or 0 to switch fault tolerance off."
_COUNT = "Give a number from 1 to 128."
_SECONDS = "Give seconds: a number above 0."
_DAY = MAX_FREE_WINDOW.total_seconds()


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
    check_interval_seconds: Seconds = setting(15.0, gt=0, allowed=_SECONDS)
    # Well below NCCL's own time limit (600 s), so that we speak first; a gut feeling beyond that.
    floor_seconds: Seconds = setting(120.0, gt=0, allowed=_SECONDS)
    ceiling_seconds: Seconds = setting(1800.0, gt=0, allowed=_SECONDS)
    multiple: Seconds = setting(10.0, gt=1, allowed="Give a number above 1: how many step intervals of silence.")
    # The longest healthy start in 563 MLPerf training runs took 1,736 s; twice that.
    startup_seconds: Seconds = setting(3600.0, gt=0, allowed=_SECONDS)
    judgement_seconds: Seconds | None = setting(None, gt=0, allowed=f"{_SECONDS} Or leave it out.")

    @field_validator("floor_seconds", "startup_seconds", "judgement_seconds")
    @classmethod
    def _longer_than_a_check(cls, value: float | None, info: ValidationInfo) -> float | None:
        interval = info.data.get("check_interval_seconds")
        if value is not None and interval is not None and value < interval:
            raise ValueError(f"{value:g} is not allowed. Give at least check_interval_seconds ({interval:g}).")
        return value

    @field_validator("ceiling_seconds")
    @classmethod
    def _above_the_floor(cls, value: float, info: ValidationInfo) -> float:
        floor = info.data.get("floor_seconds")
        if floor is not None and value < floor:
            raise ValueError(f"{value:g} is not allowed. Give at least floor_seconds ({floor:g}).")
        return value


class ExclusionSettings(CheckedSettings):
    """How many nodes an attempt may avoid, so that it can always be scheduled.

    :param max_share: of the pool of nodes in service, rounded down. What the job needs is always left.
    :param max_unseen: how many where the pool can't be seen. A gut feeling: one rack's unlucky week, no more.
    """

    max_share: Seconds = setting(0.5, ge=0, lt=1, allowed="Give a share from 0 to below 1.")
    max_unseen: Whole = setting(4, ge=0, le=1000, allowed="Give a number from 0 to 1000.")


class BackoffSettings(CheckedSettings):
    """How long to wait before a restart: nothing, then ``base_seconds``, then ``factor`` times as long each time."""

    base_seconds: Seconds = setting(30.0, ge=0, allowed="Give seconds, or 0 to never wait.")
    factor: Seconds = setting(2.0, ge=1, le=100, allowed="Give a number from 1 to 100.")
    max_seconds: Seconds = setting(900.0, ge=0, le=86400, allowed="Give seconds, at most a day (86400).")

    def delay(self, times: int) -> float:
        """Seconds before the restart that follows ``times`` restarts without progress."""
        if times <= 0:
            return 0.0
        return min(self.max_seconds, self.base_seconds * min(self.factor ** min(times - 1, 64), 1e9))


class FaultTolerancePolicy(CheckedSettings):
    """What may be done about faults.

    :param mode: ``off``, ``basic``, ``advanced`` or ``full``.
    :param max_restarts: the budget of job-level restarts, 1 to 128; 0 switches fault tolerance off.
    :param unconditional: restart after any anomaly, also where the ladder would stop; charged to ``max_restarts``.
    :param hang: hang detection; only mode ``full`` has it.
    :param pod_restarts: the budget of pod-level restarts, where the backend can replace single pods.
    :param max_unconditional_streak: consecutive unconditional restarts.
    :param max_hang_streak: consecutive hang restarts; they are not charged to ``max_restarts``.
    :param max_in_place: restarts in place and hang restarts together without progress that lasts.
    :param max_free_restarts: restarts in place and hang restarts together within ``free_window_seconds``.
    :param ladder: for single fault classes another list of rungs than the default one.
    :param settle_seconds: from the first node that is held to the decision, for evidence to arrive.
    :param hold_seconds: how long a node waits for the decision.
    :param grace_seconds: between TERM and KILL.
    """

    mode: Literal["off", "basic", "advanced", "full"] = setting("full", allowed="Give off, basic, advanced or full.")
    max_restarts: Whole = setting(3, ge=0, le=MAX_RESTARTS, allowed=_SWITCH)
    unconditional: Flag = setting(False, allowed="Give true or false.")
    hang: HangSettings = setting(HangSettings(), allowed="Give HangSettings.")
    pod_restarts: Whole = setting(0, ge=0, le=MAX_RESTARTS, allowed="Give a number from 0 to 128.")
    max_unconditional_streak: Whole = setting(3, ge=1, le=MAX_RESTARTS, allowed=_COUNT)
    max_hang_streak: Whole = setting(3, ge=1, le=MAX_RESTARTS, allowed=_COUNT)
    max_in_place: Whole = setting(3, ge=0, le=MAX_RESTARTS, allowed="Give a number from 0 (never) to 128.")
    max_free_restarts: Whole = setting(
        10, ge=0, le=MAX_FREE_KEPT, allowed=f"Give a number from 0 (none is free) to {MAX_FREE_KEPT}."
    )
    free_window_seconds: Seconds = setting(6 * 3600.0, gt=0, le=_DAY, allowed="Give seconds, at most a day (86400).")
    exclusion: ExclusionSettings = setting(ExclusionSettings(), allowed="Give ExclusionSettings.")
    backoff: BackoffSettings = setting(BackoffSettings(), allowed="Give BackoffSettings.")
    ladder: dict[FaultClass, tuple[Rung, ...]] = setting({}, allowed="Give a list of rungs for a fault class.")
    settle_seconds: Seconds = setting(2.0, ge=0, le=60, allowed="Give seconds from 0 to 60.")
    hold_seconds: Seconds = setting(120.0, ge=0, le=3600, allowed="Give seconds from 0 to 3600.")
    grace_seconds: Seconds = setting(60.0, ge=0, le=3600, allowed="Give seconds from 0 to 3600.")

    @field_validator("hang")
    @classmethod
    def _only_full_mode_has_hang_detection(cls, hang: HangSettings, info: ValidationInfo) -> HangSettings:
        mode = info.data.get("mode")  # absent: it is wrong itself
        if mode not in (None, "full"):
            raise ValueError(
                f"hang detection is not available in mode {mode!r}: what follows a hang is the policy's rules of mode "
                "'full'. Leave hang out, or use FaultTolerancePolicy.full()."
            )
        return hang

    @field_validator("ladder", mode="before")
    @classmethod
    def _spelled_ladder(cls, given: object) -> object:
        return _read_ladder(given) if isinstance(given, Mapping) else given

    @property
    def enabled(self) -> bool:
        """Whether anything is done about faults at all (and nodes are checked before training)."""
        return self.mode != "off" and self.max_restarts > 0

    @property
    def detects_hangs(self) -> bool:
        """Whether silence is judged."""
        return self.enabled and self.mode == "full"

    def rungs(self, fault_class: FaultClass) -> tuple[Rung, ...]:
        """The ladder of one class."""
        return self.ladder.get(fault_class, DEFAULT_LADDER[fault_class])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the mode, and what is not at its default."""
        return {"mode": self.mode, **super().to_dict()}

    # --- presets -------------------------------------------------------------------------------------------------

    @classmethod
    def off(cls, **changes: Any) -> Self:
        """Nothing is done about faults: the first failure is the last."""
        return cls(**{"mode": "off", "max_restarts": 0, **changes})

    @classmethod
    def basic(cls, **changes: Any) -> Self:
        """Resubmit on any failure. Blind to hangs and to causes: for the cautious."""
        return cls(**{"mode": "basic", **changes})

    @classmethod
    def advanced(cls, **changes: Any) -> Self:
        """Act on the fault class."""
        return cls(**{"mode": "advanced", **changes})

    @classmethod
    def full(cls, **changes: Any) -> Self:
        """Act on the fault class, and detect hangs."""
        return cls(**{"mode": "full", **changes})

    @classmethod
    def single_node(cls, **changes: Any) -> Self:
        """For one node (mission M10): two restarts."""
        return cls(**{"mode": "advanced", "max_restarts": 2, **changes})

    @classmethod
    def multi_node(cls, **changes: Any) -> Self:
        """For several nodes (mission M10): three restarts, unconditional, with hang detection."""
        return cls(**{"mode": "full", "max_restarts": 3, "unconditional": True, **changes})

    @classmethod
    def long_running(cls, **changes: Any) -> Self:
        """For weeks (mission M10): five restarts, unconditional, with hang detection, and three pod restarts."""
        return cls(**{"mode": "full", "max_restarts": 5, "unconditional": True, "pod_restarts": 3, **changes})

    @classmethod
    def from_annotations(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the annotations of a job's metadata (mission M7). All are strings; no ``job-retry-num`` means off.

        :param metadata: ``{"annotations": {...}}`` as in a manifest, or the annotations themselves.
        """
        annotations = metadata.get("annotations", metadata) or {}
        given = {key: value for key, value in annotations.items() if str(key).startswith(ANNOTATIONS)}
        changes: dict[str, Any] = {}
        problems: list[str] = []
        for key, value in given.items():
            name = key.removeprefix(ANNOTATIONS)
            if name not in _ANNOTATION:
                known = [ANNOTATIONS + known for known in _ANNOTATION]
                problems.append(f"{key}: there is no such annotation. {did_you_mean(key, known)}")
                continue
            field, read, allowed = _ANNOTATION[name]
            changes[field] = read(value) if isinstance(value, str) else None
            if changes[field] is None:
                problems.append(f"{key}: {value!r:.80} is not allowed. {allowed}")
        if problems:
            raise SettingsError(problems)
        if not changes.get("max_restarts"):
            return cls.off()
        changes["mode"] = "full" if changes.pop("hang", False) else "advanced"
        return cls(**changes)


def _count(text: str) -> int | None:
    whole = int(text) if re.fullmatch("[0-9]{1,3}", text) else None
    return whole if whole is not None and whole <= MAX_RESTARTS else None


def _flag(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


_STRING_COUNT = 'Give a string from "1" to "128", or "0" to switch it off.'
_STRING_FLAG = 'Give the string "true" or "false".'
_ANNOTATION: dict[str, tuple[str, Any, str]] = {
    "job-retry-num": ("max_restarts", _count, _STRING_COUNT),
    "job-unconditional-retry": ("unconditional", _flag, _STRING_FLAG),
    "hang-retry": ("hang", _flag, _STRING_FLAG),
    "pod-retry-num": ("pod_restarts", _count, _STRING_COUNT),
}


def _read_ladder(given: Mapping[Any, Any]) -> dict[FaultClass, tuple[Rung, ...]]:
    # FaultClass itself takes an unknown word for UNKNOWN: right for records of a newer version, wrong for a typo.
    known = [one.value for one in FaultClass]
    ladder: dict[FaultClass, tuple[Rung, ...]] = {}
    problems: list[str] = []
    for key, rungs in given.items():
        name = key.value if isinstance(key, FaultClass) else key
        if name not in known:
            problems.append(f"{name}: there is no such fault class. {did_you_mean(name, known)}")
        elif not isinstance(rungs, (list, tuple)) or not rungs:
            problems.append(f"{name}: {rungs!r:.80} is not allowed. Give a list of at least one rung.")
        else:
            ladder[FaultClass(name)] = _read_rungs(name, rungs, problems)
    if problems:
        raise SettingsError(problems)
    return ladder


def _read_rungs(name: str, rungs: list[Any] | tuple[Any, ...], problems: list[str]) -> tuple[Rung, ...]:
    read = []
    for number, rung in enumerate(rungs):
        try:
            if not isinstance(rung, Rung):
                rung = Rung(action=rung) if isinstance(rung, str) else Rung.from_dict(rung)
            read.append(rung)
        except SettingsError as error:
            problems += [f"{name}.{number}.{problem}" for problem in error.problems]
    return tuple(read)
