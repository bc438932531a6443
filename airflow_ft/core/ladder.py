"""The ladder: what is done about each class of fault, rung after rung, as one table.

Theory
------
A fault of a class climbs that class's list from the top, every time anew. It stops at the first rung that

1. *applies*: all conditions in ``when`` hold (``CONDITIONS`` names them, ``situation`` computes them);
2. *is not used up*: it was taken fewer than ``times`` times for this class, counted since training last made progress
   that lasts (``per="streak"``) or in the whole segment of the chain (``per="segment"``);
3. *is possible now*: an agent holds the nodes, the backend can exclude, there is a suspect, room below the cap, and so
   on. Restarts in place have limits that all classes share (the policy's ``max_in_place`` and the window).

A rung that is passed over says why in ``Decision.considered``. Past the last rung is ``FAIL``. So a fault that returns
escalates by itself: from the process, over the pod if the policy has a budget for that, to the job, to a person.

Nothing here is about money: which budget a rung is charged to, and whether that budget has something left, is the
business of ``decide``. A class that can't be cured by running again has ``FAIL`` as its only rung: the diagnosis's
advice goes into the reason.

``BISECT`` splits four rungs: where none is possible ("no_bisect") the job is resubmitted until the budget is used up;
right after one ("after_bisect") it is resubmitted without what was found; a fault that returns after that stops.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator

from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.settings import CheckedSettings, Whole, did_you_mean, setting

# A rung's condition, and what ``considered`` says where it does not hold.
CONDITIONS: dict[str, str] = {
    "elsewhere": "it hung at the same place with the same suspect before",
    "no_agents": "a restart in place is possible",
    "seen_twice": "no suspect has been suspected before",
    "retry_useful": "nothing says that running again can help",
    "after_bisect": "no bisect came right before",
    "no_bisect": "a bisect is possible",
}


class Rung(CheckedSettings):
    """One rung: an action, the conditions under which it is right, and how often.

    :param action: what is done.
    :param when: names of ``CONDITIONS``; all have to hold.
    :param times: how often it may be taken for one class; ``None``: as long as the budgets last.
    :param per: what ``times`` is counted over: ``streak`` (since progress that lasts) or ``segment``.
    :param backoff: wait before the first restart already: the cause needs time to go away.
    :param stands_in: it replaces a restart in place that can't be done; for a hang it is charged like one.
    """

    action: Action
    when: tuple[str, ...] = ()
    times: Whole | None = setting(None, ge=1, le=128, allowed="Give a number from 1 to 128, or leave it out.")
    per: Literal["streak", "segment"] = setting("streak", allowed="Give streak or segment.")
    backoff: bool = False
    stands_in: bool = False

    @field_validator("action", mode="before")
    @classmethod
    def _known_action(cls, given: object) -> object:
        # Action itself takes an unknown word for RESUBMIT: right for records of a newer version, wrong for a typo.
        if isinstance(given, Action) or given in [action.value for action in Action]:
            return given
        raise ValueError(f"{given!r} is not allowed. {did_you_mean(given, [action.value for action in Action])}")

    @field_validator("when")
    @classmethod
    def _known_conditions(cls, when: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in when if name not in CONDITIONS]
        if unknown:
            raise ValueError(" ".join(f"{name!r} is not allowed. {did_you_mean(name, CONDITIONS)}" for name in unknown))
        return when


def _rung(action: Action, *when: str, **more: Any) -> Rung:
    return Rung(action=action, when=when, **more)


_AFTER_BISECT = (
    _rung(Action.RESUBMIT_EXCLUDING, "after_bisect"),
    _rung(Action.RESUBMIT, "after_bisect"),  # it was inconclusive: doubt restarts
)

DEFAULT_LADDER: dict[FaultClass, tuple[Rung, ...]] = {
    FaultClass.HW_NODE: (
        _rung(Action.RESUBMIT_EXCLUDING, times=1),
        _rung(Action.BISECT, times=1),
        *_AFTER_BISECT,
        _rung(Action.RESUBMIT_EXCLUDING, "no_bisect"),
        _rung(Action.RESUBMIT, "no_bisect"),
        _rung(Action.FAIL),
    ),
    FaultClass.NET_FABRIC: (
        _rung(Action.RESTART_IN_PLACE, times=1),
        _rung(Action.RESUBMIT_EXCLUDING, "seen_twice"),
        _rung(Action.RESUBMIT, times=1),
        _rung(Action.BISECT, times=1),
        *_AFTER_BISECT,
        _rung(Action.RESUBMIT, "no_bisect"),
        _rung(Action.FAIL),
    ),
    FaultClass.COMM_HANG: (
        _rung(Action.RESTART_IN_PLACE, "elsewhere"),
        _rung(Action.RESUBMIT, "elsewhere", "no_agents", times=3, stands_in=True),
        _rung(Action.RESUBMIT_EXCLUDING, times=1),
        _rung(Action.BISECT, times=1),
        *_AFTER_BISECT,
        _rung(Action.RESUBMIT_EXCLUDING, "no_bisect"),
        _rung(Action.RESUBMIT, "no_bisect"),
        _rung(Action.FAIL),
    ),
    FaultClass.OOM_HOST: (
        _rung(Action.RESUBMIT, times=1, per="segment"),  # a leak comes back: once is enough to know
        _rung(Action.FAIL),
    ),
    FaultClass.OOM_GPU: (
        # Only where the diagnosis says that foreign memory holds the GPU: another node, or the same one later.
        _rung(Action.RESUBMIT_EXCLUDING, "retry_useful", times=1),
        _rung(Action.RESUBMIT, "retry_useful", times=1, backoff=True),
        _rung(Action.FAIL),
    ),
    FaultClass.APP_ERROR: (_rung(Action.FAIL),),
    FaultClass.ENV_ERROR: (
        _rung(Action.RESUBMIT, "retry_useful", backoff=True),  # DNS, rate limit, port in use
        _rung(Action.FAIL),
    ),
    FaultClass.UNKNOWN: (
        # Somebody killed a rank and every node is healthy: the cheapest cure first.
        _rung(Action.RESTART_IN_PLACE),
        _rung(Action.RESUBMIT, times=2),
        _rung(Action.FAIL),
    ),
}
