"""Verdicts: what one rule wants, before switches, exclusions and the ledger make a decision of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_ft.core import wording
from airflow_ft.core.decisions import Action, Considered, Decision, Proposal
from airflow_ft.core.exclusions import Exclusion, exclude, expired, offenders
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.situation import Case


@dataclass(frozen=True)
class Verdict:
    """What one rule wants. ``text`` is the reason without the budget, ``targets`` are the nodes to exclude."""

    action: Action
    text: str
    charged: str = ""
    level: str = "job"
    targets: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # suspects that a rung wanted out and the cap forbade
    waits: int = 0  # how many times the backoff has grown
    final: bool = True  # a stop that isn't final may be overridden by ``unconditional``
    lifts: bool = False  # all exclusions are lifted
    rungs: tuple[Considered, ...] = ()
    blames: bool = True  # its suspects are suspected once more; not if it is the same incident as before
    rule: str = ""  # the user's rule that was followed
    switched: bool = True  # a switch (act, notify, ask) may change it; not what nobody has a choice about
    blind: bool = False  # it is done as in basic mode: on any nodes
    shadow: Verdict | None = None  # what is only told
    proposed: Verdict | None = None  # what a person is asked about

    @property
    def paid(self) -> bool:
        """Whether ``max_restarts`` has to have something left: for itself, or for the restart after a bisect."""
        if self.proposed is not None:
            return self.proposed.paid
        return self.charged in ("restart", "unconditional") or self.action is Action.BISECT


def capped(case: Case, targets: tuple[str, ...], earlier: tuple[str, ...]) -> Exclusion:
    """Return whom the pool can spare."""
    situation = case.situation
    pool, size = situation.pool_nodes, situation.seen_in_service
    return exclude(case.policy.exclusion, targets, earlier, pool, situation.nodes_needed, size)


def decision_of(case: Case, verdict: Verdict, considered: tuple[Considered, ...]) -> Decision:
    """Return the decision: the verdict with its exclusions, its cost and its sentences."""
    blamed = _with_blame(case, verdict)
    exclusion = _exclusion(case, verdict, blamed)
    ledger = blamed.charge(verdict.charged, case.now)
    kept = tuple(dict.fromkeys((*verdict.kept, *exclusion.kept)))
    sentences = (
        wording.sentence(verdict.text),
        wording.cost(verdict.charged, ledger, case.policy),
        wording.kept(kept, bool(case.situation.seen_in_service)),
        wording.expired(exclusion.expired),
    )
    return Decision(
        action=verdict.action,
        reason=" ".join(sentence for sentence in sentences if sentence),
        level=verdict.level,
        generation=case.situation.generation + 1 if verdict.action is Action.RESTART_IN_PLACE else 0,
        excluded_nodes=exclusion.excluded,
        delay=_delay(case, verdict),
        charged=verdict.charged,
        considered=considered,
        ledger=ledger,
        soft_nodes=exclusion.soft,
        shadow=_proposal(case, verdict.shadow, blamed) if verdict.shadow else None,
        proposed=_proposal(case, verdict.proposed, blamed) if verdict.proposed else None,
        rule=verdict.rule,
    )


def _proposal(case: Case, verdict: Verdict, blamed: Ledger) -> Proposal:
    exclusion = _exclusion(case, verdict, blamed)
    return Proposal(
        action=verdict.action,
        text=wording.sentence(verdict.text),
        charged=verdict.charged,
        level=verdict.level,
        excluded_nodes=exclusion.excluded,
        soft_nodes=exclusion.soft,
        delay=_delay(case, verdict),
    )


def _delay(case: Case, verdict: Verdict) -> float:
    return case.policy.backoff.delay(verdict.waits, case.situation.salt)


def _with_blame(case: Case, verdict: Verdict) -> Ledger:
    if verdict.lifts:
        return case.ledger.but(blames=())
    who = (verdict.shadow or verdict.proposed or verdict).targets
    blamed = (*case.suspects, *who) if case.blames_nodes else who
    if case.diagnosis.disruption:  # nobody's fault; but who refuses twice will do so again, and is avoided then
        refused_by = case.diagnosis.refused_by
        blamed = (refused_by,) if refused_by else ()
    if not case.policy.enabled or case.policy.mode == "basic" or not blamed:
        return case.ledger
    return case.ledger.blamed(blamed, case.diagnosis.confidence, case.now, again=verdict.blames)


def _exclusion(case: Case, verdict: Verdict, blamed: Ledger) -> Exclusion:
    situation, settings = case.situation, case.policy.exclusion
    if verdict.lifts:
        return Exclusion(())
    earlier, soft = situation.excluded_nodes, situation.soft_nodes
    if verdict.action not in (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING) or verdict.blind:
        return Exclusion(earlier, soft=soft)
    over = expired(settings, (*earlier, *soft), blamed, case.now)
    if over:
        earlier, soft = (tuple(node for node in nodes if node not in over) for nodes in (earlier, soft))
    always = offenders(settings, blamed) if case.can(Action.RESUBMIT_EXCLUDING) else ()
    if settings.kind == "soft":
        wanted = dict.fromkeys((*earlier, *soft, *always, *reversed(verdict.targets)))
        return Exclusion((), soft=tuple(wanted), expired=over)
    found = capped(case, (*verdict.targets, *always), earlier)
    rather = dict.fromkeys((*soft, *reversed((*found.kept, *verdict.kept))))
    out = frozenset(found.excluded) if rather else frozenset()
    return replace(found, soft=tuple(node for node in rather if node not in out), expired=over)
