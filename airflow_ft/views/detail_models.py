"""The shapes of the plugin's API about one run: what a row opens. Bounded like ``models``, made by ``run_detail``."""

from __future__ import annotations

from typing import Literal

from airflow_ft.views.models import API_VERSION, View


class EvidenceView(View):
    """One observed fact."""

    role: Literal["root", "cascade", "ambiguous", "advice"]
    source: str
    text: str
    cut: bool = False
    at: float | None = None
    line: int | None = None


class StackView(View):
    """Where some ranks stood, the innermost frame first. The odd ones are not where the others are."""

    who: str
    odd: bool
    stopped: bool = False
    frames: tuple[str, ...] = ()


class PreflightItem(View):
    """An item of the preflight that did not hold: what was found, what is needed, and what to do."""

    item: str
    where: str
    status: str
    value: str
    need: str
    advice: str


class Considered(View):
    """A rule of the policy that was looked at."""

    rule: str
    applied: bool
    why: str


class LedgerRow(View):
    """One budget before and after the decision."""

    name: str
    before: int
    after: int
    maximum: int | None = None


class DecisionView(View):
    """What was decided, at which level, and what it cost."""

    action: str
    level: str
    text: str
    reason: str
    delay: float
    charged: str
    ledger: tuple[LedgerRow, ...]
    considered: tuple[Considered, ...]


class RecoveryRow(View):
    """One line of "did training recover": before against after."""

    what: str
    before: str
    after: str
    ok: bool | None = None
    note: str = ""


class Link(View):
    """Somewhere to look. ``href`` is below Airflow's own base address."""

    text: str
    href: str


class Feedback(View):
    """What a person says about a diagnosis."""

    right: bool
    fault_class: str | None = None
    note: str = ""
    by: str = ""
    at: float | None = None


class RunDetail(View):
    """Everything about one run: what a row opens."""

    version: int = API_VERSION
    id: str
    text: str
    where: str = ""
    evidence: tuple[EvidenceView, ...] = ()
    stacks: tuple[StackView, ...] = ()
    preflight: tuple[PreflightItem, ...] = ()
    fault_class: str | None = None
    second_class: str | None = None
    confidence: float | None = None
    why: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    advice: str = ""
    decision: DecisionView | None = None
    nodes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    recovery: tuple[RecoveryRow, ...] = ()
    recovery_line: str = ""
    next: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    feedback: Feedback | None = None
