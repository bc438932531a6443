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

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationInfo, field_validator
from typing_extensions import Self

from airflow_ft.core.annotations import MAX_RESTARTS, read_annotations
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.ladder import DEFAULT_LADDER, Rung
from airflow_ft.core.ledger import MAX_CHARGED_KEPT, MAX_FREE_KEPT, MAX_FREE_WINDOW
from airflow_ft.core.policy_settings import (
    ASK,
    SECONDS,
    SWITCH,
    AskSettings,
    BackoffSettings,
    ExclusionSettings,
    HangSettings,
    Switch,
)
from airflow_ft.core.policy_yaml import read_document, write_document
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.settings import (
    CheckedSettings,
    Flag,
    Seconds,
    SettingsError,
    Whole,
    by_name,
    did_you_mean,
    setting,
)
from airflow_ft.core.user_rules import UserRule

__all__ = ["PRESETS", "AskSettings", "BackoffSettings", "ExclusionSettings", "FaultTolerancePolicy", "HangSettings"]

S = TypeVar("S", bound=CheckedSettings)

_SWITCH = "Give a number from 1 to 128, or 0 to switch fault tolerance off."
_COUNT = "Give a number from 1 to 128."
_DAY = MAX_FREE_WINDOW.total_seconds()
# Airflow looks for questions whose time is over every 15 s; a worker takes the answer, a watch carries it out.
_ANSWER_MARGIN_SECONDS = 300.0


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
    :param max_restarts_in_window: charged restarts within ``restart_window_seconds``, whatever ``max_restarts`` has
        left: a storm ends early. Nothing: no such limit.
    :param gpus_per_node: for that limit, where the job doesn't say how many GPUs it has.
    :param max_lost_gpu_hours: the GPU time that faults may cost in all; then it stops. Nothing: no such limit.
    :param ladder: for single fault classes another list of rungs than the default one.
    :param signature_ladders: the same for single signatures, by their id; before the class's.
    :param rules: what you know yourself: patterns of lines, and what is done then; before the ladder.
    :param on_fault: ``notify``: a rehearsal. What would be done is recorded, what basic mode does is done.
        ``ask``: everything but a disruption waits for a person. The switches below are for single actions.
    :param ask: how a person is asked.
    :param bisect: how nodes are bisected when nobody knows which one is bad. Left out: never.
    :param preflight: what is looked at on every node before training.
    :param on_preflight_error: a preflight that breaks or takes too long: ``train`` all the same, or ``fail``.
    :param settle_seconds: from the first node that is held to the decision, for evidence to arrive.
    :param hold_seconds: how long a node waits for the decision; longer where a job is held for a person (``ask``).
    :param grace_seconds: between TERM and KILL.
    """

    mode: Literal["off", "basic", "advanced", "full"] = setting("full", allowed="Give off, basic, advanced or full.")
    max_restarts: Whole = setting(3, ge=0, le=MAX_RESTARTS, allowed=_SWITCH)
    unconditional: Flag = setting(False, allowed="Give true or false.")
    hang: HangSettings = setting(HangSettings(), allowed=by_name(HangSettings))
    pod_restarts: Whole = setting(0, ge=0, le=MAX_RESTARTS, allowed="Give a number from 0 to 128.")
    max_unconditional_streak: Whole = setting(3, ge=1, le=MAX_RESTARTS, allowed=_COUNT)
    max_hang_streak: Whole = setting(3, ge=1, le=MAX_RESTARTS, allowed=_COUNT)
    max_in_place: Whole = setting(3, ge=0, le=MAX_RESTARTS, allowed="Give a number from 0 (never) to 128.")
    max_free_restarts: Whole = setting(
        10, ge=0, le=MAX_FREE_KEPT, allowed=f"Give a number from 0 (none is free) to {MAX_FREE_KEPT}."
    )
    free_window_seconds: Seconds = setting(6 * 3600.0, gt=0, le=_DAY, allowed="Give seconds, at most a day (86400).")
    max_restarts_in_window: Whole | None = setting(
        None, ge=1, le=MAX_CHARGED_KEPT, allowed=f"Give a number from 1 to {MAX_CHARGED_KEPT}, or leave it out."
    )
    restart_window_seconds: Seconds = setting(6 * 3600.0, gt=0, allowed=SECONDS)
    max_lost_gpu_hours: Seconds | None = setting(None, gt=0, allowed="Give GPU-hours above 0, or leave it out.")
    gpus_per_node: Whole | None = setting(None, ge=1, le=128, allowed="Give a number from 1 to 128, or leave it out.")
    exclusion: ExclusionSettings = setting(ExclusionSettings(), allowed=by_name(ExclusionSettings))
    backoff: BackoffSettings = setting(BackoffSettings(), allowed=by_name(BackoffSettings))
    ladder: dict[FaultClass, tuple[Rung, ...]] = setting({}, allowed="Give a list of rungs for a fault class.")
    signature_ladders: dict[str, tuple[Rung, ...]] = setting({}, allowed="Give a list of rungs for a signature's id.")
    rules: tuple[UserRule, ...] = setting((), allowed="Give a list of rules: match, action.")
    on_fault: Switch = setting("act", allowed=SWITCH)
    on_restart_in_place: Switch = setting("act", allowed=SWITCH)
    on_resubmit: Switch = setting("act", allowed=SWITCH)
    on_exclude: Switch = setting("act", allowed=SWITCH)
    on_bisect: Switch = setting("act", allowed=SWITCH)
    on_stop: Switch = setting("act", allowed=SWITCH)
    ask: AskSettings = setting(AskSettings(), allowed=by_name(AskSettings))
    bisect: BisectSettings | None = setting(None, allowed="Give BisectSettings, or leave it out.")
    preflight: PreflightSettings = setting(PreflightSettings(), allowed="Give PreflightSettings.")
    on_preflight_error: Literal["train", "fail"] = setting("train", allowed="Give train or fail.")
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

    @field_validator("signature_ladders", mode="before")
    @classmethod
    def _spelled_ladders(cls, given: object) -> object:
        return _read_signature_ladders(given) if isinstance(given, Mapping) else given

    @field_validator("rules", mode="before")
    @classmethod
    def _spelled_rules(cls, given: object) -> object:
        return _read_all(given, UserRule) if isinstance(given, (list, tuple)) else given

    @property
    def enabled(self) -> bool:
        """Whether anything is done about faults at all (and nodes are checked before training)."""
        return self.mode != "off" and self.max_restarts > 0

    def preflight_for_agent(self) -> dict[str, Any]:
        """Return what the agent looks at before training; empty for nothing (``max_restarts=0``: M2)."""
        return self.preflight.for_agent(self.on_preflight_error) if self.enabled else {}

    @property
    def detects_hangs(self) -> bool:
        """Whether silence is judged."""
        return self.enabled and self.mode == "full"

    @property
    def acts_on_hangs(self) -> bool:
        """Whether a hang ends the run; else it is only told."""
        return self.hang.action == "act" and self.on_fault != "notify"

    @property
    def asks(self) -> bool:
        """Whether a person may be asked."""
        rungs = (rung for ladder in (*self.ladder.values(), *self.signature_ladders.values()) for rung in ladder)
        switches = {self.on_fault, *(getattr(self, name) for name in SWITCHES.values())}
        return ASK in switches or any(one.action is Action.ASK for one in rungs) or any(r.asks for r in self.rules)

    @property
    def agents_hold_seconds(self) -> float:
        """How long a node waits for an order: where a person is asked meanwhile, longer than the question stands."""
        asked = self.ask.timeout_seconds + _ANSWER_MARGIN_SECONDS if self.asks and self.ask.job == "hold" else 0.0
        return max(self.hold_seconds, asked)

    def switch(self, action: Action) -> Switch:
        """Whether ``action`` is done, only told, or a person is asked first."""
        own: Switch = getattr(self, SWITCHES[action]) if action in SWITCHES else "act"
        return self.on_fault if self.on_fault != "act" else own

    def rungs(self, fault_class: FaultClass, signature: str | None = None) -> tuple[Rung, ...]:
        """The ladder of one signature, else of its class."""
        own = self.signature_ladders.get(signature) if signature else None
        return own if own is not None else self.ladder.get(fault_class, DEFAULT_LADDER[fault_class])

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
        changes = read_annotations(metadata)
        return cls(**changes) if changes.get("max_restarts") else cls.off()

    # --- files ---------------------------------------------------------------------------------------------------

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a policy file. Raises ``SettingsError``, each problem with the file's name before it.

        The keys are the fields of this class; ``preset: multi_node`` takes the others from a preset.
        """
        return cls.from_document(read_document(path), str(path))

    @classmethod
    def from_document(cls, document: Any, source: str = "") -> Self:
        """Read what a policy file says: a mapping of fields, with ``preset`` if wanted. ``source`` names the file."""
        try:
            if not isinstance(document, Mapping):
                raise SettingsError([f"{document!r:.80} is not a policy. Give settings by name, one a line."])
            fields = dict(document)
            preset = fields.pop("preset", None)
            if preset is None:
                return cls.from_dict(fields)
            if preset not in PRESETS:
                wrong = [f"preset: {preset!r:.80} is not allowed. {did_you_mean(preset, PRESETS)}"]
                raise SettingsError([*wrong, *cls._wrong_in_any(fields)])
            made: Self = getattr(cls, preset)(**cls._named(fields))
            return made
        except SettingsError as error:
            named = f"{source}: " if source else ""
            raise SettingsError(f"{named}{problem}" for problem in error.problems) from None

    @classmethod
    def _wrong_in_any(cls, fields: dict[Any, Any]) -> tuple[str, ...]:
        """Return what is wrong with ``fields`` whatever the preset: mode full has every setting."""
        try:
            cls.full(**cls._named(fields))
        except SettingsError as error:
            return error.problems
        return ()

    @classmethod
    def named(cls, text: str) -> Self:
        """Return a preset by its name, or the policy of a file. Raises ``SettingsError``."""
        if text in PRESETS:
            made: Self = getattr(cls, text)()
            return made
        if not any(sign in text for sign in "./\\"):
            raise SettingsError(
                [f"{text!r:.80} is no preset. {did_you_mean(text, PRESETS)} A file has a dot in its name."]
            )
        return cls.from_yaml(text)

    def to_yaml(self) -> str:
        """Return the policy as YAML: its mode, and what is not at its default."""
        return self.dumped(self.to_dict())

    @staticmethod
    def dumped(fields: dict[str, Any]) -> str:
        """Return fields of a policy as YAML."""
        return write_document(fields)

    @staticmethod
    def _named(fields: dict[Any, Any]) -> dict[str, Any]:
        if not all(isinstance(key, str) for key in fields):
            raise SettingsError([f"{fields!r:.80} is not allowed. Give settings by name."])
        return fields


SWITCHES = {
    Action.RESTART_IN_PLACE: "on_restart_in_place",
    Action.RESUBMIT: "on_resubmit",
    Action.RESUBMIT_EXCLUDING: "on_exclude",
    Action.BISECT: "on_bisect",
    Action.FAIL: "on_stop",
}
PRESETS = ("off", "basic", "advanced", "full", "single_node", "multi_node", "long_running")


def _read_ladder(given: Mapping[Any, Any]) -> dict[FaultClass, tuple[Rung, ...]]:
    # FaultClass itself takes an unknown word for UNKNOWN: right for records of a newer version, wrong for a typo.
    known = [one.value for one in FaultClass]
    ladder: dict[FaultClass, tuple[Rung, ...]] = {}
    problems: list[str] = []
    for key, rungs in given.items():
        name = key.value if isinstance(key, FaultClass) else key
        if name not in known:
            problems.append(f"{name}: there is no such fault class. {did_you_mean(name, known)}")
        else:
            ladder[FaultClass(name)] = _read_rungs(name, rungs, problems)
    if problems:
        raise SettingsError(problems)
    return ladder


def _read_signature_ladders(given: Mapping[Any, Any]) -> dict[str, tuple[Rung, ...]]:
    # Whether there is such a signature is not known here: users bring their own. ``airflow-ft policy check`` looks.
    problems: list[str] = []
    ladders = {str(name): _read_rungs(str(name), rungs, problems) for name, rungs in given.items()}
    if problems:
        raise SettingsError(problems)
    return ladders


def _read_rungs(name: str, rungs: Any, problems: list[str]) -> tuple[Rung, ...]:
    if not isinstance(rungs, (list, tuple)) or not rungs:
        problems.append(f"{name}: {rungs!r:.80} is not allowed. Give a list of at least one rung.")
        return ()
    spelled = [{"action": rung} if isinstance(rung, str) else rung for rung in rungs]
    try:
        return _read_all(spelled, Rung)
    except SettingsError as error:
        problems += [f"{name}.{problem}" for problem in error.problems]
        return ()


def _read_all(given: Iterable[Any], kind: type[S]) -> tuple[S, ...]:
    """Read a list of settings, each problem with its number before it."""
    read: list[S] = []
    problems: list[str] = []
    for number, one in enumerate(given):
        try:
            read.append(one if isinstance(one, kind) else kind.from_dict(one))
        except SettingsError as error:
            problems += [f"{number}.{problem}" for problem in error.problems]
    if problems:
        raise SettingsError(problems)
    return tuple(read)
