"""Decisions: what is done about a fault, at which level, and why."""

from __future__ import annotations

import hashlib
import json
from enum import Enum

from pydantic import Field

from airflow_ft.core.ledger import Ledger
from airflow_ft.core.records import Record

UNTOUCHED = "untouched"  # the level of a decision about a job that is not ours: nothing is done


class Action(str, Enum):
    """What can be done about a fault (DESIGN §1)."""

    RESTART_IN_PLACE = "RESTART_IN_PLACE"
    RESUBMIT = "RESUBMIT"
    RESUBMIT_EXCLUDING = "RESUBMIT_EXCLUDING"
    BISECT = "BISECT"
    ASK = "ASK"
    FAIL = "FAIL"

    @classmethod
    def _missing_(cls, value: object) -> Action:
        return cls.RESUBMIT  # a word of a newer version: doubt restarts, certainty stops

    @property
    def ends_attempt(self) -> bool:
        """Whether the attempt is over with it; only a restart in place keeps it."""
        return self is not Action.RESTART_IN_PLACE


class Considered(Record):
    """One rule that was looked at: whether it applied, and why not."""

    rule: str
    applied: bool = False
    why: str = ""


class Proposal(Record):
    """What would have been done where a switch says ``notify``, or what a person is asked to approve (``ask``)."""

    action: Action
    text: str
    charged: str = ""
    level: str = "job"
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()
    delay: float = 0.0


class Decision(Record):
    """What to do about one fault.

    ``generation`` is the one that a restart in place leads to. ``excluded_nodes`` are *all* nodes that the next attempt
    avoids, ``soft_nodes`` those that it avoids where others are free. ``shadow`` is what was not done, only told
    (notify); ``proposed`` what a person is asked about (ask), ``answer`` what the person said. ``rule`` is the user's
    rule that was followed. ``delay`` is in seconds. ``ledger`` is the ledger after this decision; ``charged`` names
    what it cost.
    """

    action: Action
    reason: str
    level: str = "job"  # process, pod or job (mission M1), or UNTOUCHED
    generation: int = 0
    excluded_nodes: tuple[str, ...] = ()
    delay: float = Field(default=0.0, ge=0.0)
    charged: str = ""  # "", "restart", "unconditional", "hang", "in_place", "pod", "disruption"
    considered: tuple[Considered, ...] = ()
    ledger: Ledger = Ledger()
    soft_nodes: tuple[str, ...] = ()
    shadow: Proposal | None = None
    proposed: Proposal | None = None
    answer: str = ""
    rule: str = ""

    @property
    def ends_attempt(self) -> bool:
        """Whether the attempt is over with it. A question that was answered goes on, until its watch follows it."""
        return self.action.ends_attempt and not (self.action is Action.ASK and bool(self.answer))

    def digest(self) -> str:
        """A short fingerprint. Agents accept an order again only with the same one. How it was found doesn't count."""
        text = json.dumps(self.but(considered=()).to_record(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
