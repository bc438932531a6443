"""The situation in which a decision is made, and what can be read off it.

``Situation`` is what the caller hands in: plain values, gathered by ``attempts/``. ``Case`` is a situation under a
policy, after the ledger has seen the last run: every question that a rule asks is a property of it.

Faults are counted over two spans: the *segment* (``situation.faults``), and the *streak*, the faults since training
last made progress that lasts. Disruptions are nobody's fault: they are in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pydantic import Field

from airflow_ft.core.chain import PastFault
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry
from airflow_ft.core.ladder import Rung
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import Record
from airflow_ft.core.user_rules import RuleHit

# What every backend can do.
ALWAYS_POSSIBLE = (Action.RESUBMIT, Action.FAIL)


class Situation(Record):
    """One fault, and everything that the decision about it depends on.

    :param ledger: as it was before this run of the training.
    :param faults: the earlier faults of this segment, the newest last.
    :param step: where the run died; ``None`` if that isn't known, or it never came to a step.
    :param run: what the run that just failed achieved.
    :param generation: the generation that failed.
    :param can: the actions that are possible now. RESUBMIT and FAIL always are. RESTART_IN_PLACE only if the backend
        can and agents hold the nodes, RESUBMIT_EXCLUDING only if the backend can exclude.
    :param nodes_needed: how many nodes an attempt takes.
    :param pool_nodes: the nodes in service that could be used; empty if that can't be seen.
    :param excluded_nodes: the nodes that this attempt avoided, the newest last.
    :param finished: whether it had loaded the last step that there is, and died before a further one.
    :param hang: whether it was judged to hang (and not to have ended by itself).
    :param replaces_pods: whether the backend can replace single pods of a running job.
    :param foreign_restarts: restarts of this attempt that others made (operator, scheduler, torchrun) without progress.
    :param foreign: what the job is, if somebody else has submitted it and nothing may be done to it; empty: it is ours.
    :param pool_size: how many nodes are in service, where ``pool_nodes`` names only those that matter (``compact``).
    :param soft_nodes: the nodes that this attempt avoided where others were free.
    :param gpus: how many an attempt holds; 0 if that isn't known.
    :param rule_hits: the lines that set off rules of the policy.
    :param salt: what makes this decision's chance (the jitter) its own: the chain's name and the attempt's number.
    """

    diagnosis: Diagnosis
    ledger: Ledger = Ledger()
    faults: tuple[PastFault, ...] = ()
    step: int | None = None
    run: Run = Run()
    generation: int = Field(default=0, ge=0)
    can: tuple[Action, ...] = (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING)
    nodes_needed: int = Field(default=1, ge=0)
    pool_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    finished: bool = False
    hang: bool = False
    replaces_pods: bool = False
    foreign_restarts: int = Field(default=0, ge=0)
    foreign: str = ""
    pool_size: int = Field(default=0, ge=0)
    soft_nodes: tuple[str, ...] = ()
    gpus: int = Field(default=0, ge=0)
    rule_hits: tuple[RuleHit, ...] = ()
    salt: str = ""

    def compact(self) -> Situation:
        """Return what the decision depends on and no more: of the pool its size, and the nodes that could be named."""
        named = {*self.diagnosis.suspect_nodes, *self.excluded_nodes, *self.soft_nodes}
        named |= {blame.node for blame in self.ledger.blames} | {node for fault in self.faults for node in fault.nodes}
        named |= {hit.node for hit in self.rule_hits if hit.node}
        pool = tuple(node for node in self.pool_nodes if node in named)
        return self.model_copy(update={"pool_nodes": pool, "pool_size": self.seen_in_service})

    @property
    def seen_in_service(self) -> int:
        """How many nodes are in service; 0 if that can't be seen."""
        return max(self.pool_size, len(self.pool_nodes))


def nothing_left(progress: Progress) -> bool:
    """Whether a run has loaded the last step that there is, and made no further one."""
    if progress.loaded is None or not progress.total:
        return False
    return progress.loaded >= progress.total and (progress.step is None or progress.step <= progress.loaded)


@dataclass(frozen=True)
class Case:
    """A situation under a policy. ``ledger`` has seen the run already, but not yet the decision."""

    policy: FaultTolerancePolicy
    situation: Situation
    ledger: Ledger
    now: datetime

    @classmethod
    def of(cls, policy: FaultTolerancePolicy, situation: Situation, now: datetime) -> Case:
        """Look at ``situation`` at the time ``now``."""
        return cls(policy, situation, situation.ledger.after_run(situation.run, situation.gpus), now)

    # --- budgets -------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """What is left of ``max_restarts``. A policy may have been lowered below what was spent."""
        return max(0, self.policy.max_restarts - self.ledger.restarts)

    @property
    def used(self) -> str:
        """The budget in words."""
        return f"{self.ledger.restarts} of {self.policy.max_restarts} restarts"

    @property
    def free_limit(self) -> str:
        """Which limit forbids another free restart (in place, or after a hang); empty if none does."""
        policy, ledger = self.policy, self.ledger
        foreign = self.situation.foreign_restarts
        if self.hang and ledger.hang_streak >= policy.max_hang_streak:
            return f"{ledger.hang_streak} consecutive hang restarts without lasting progress"
        if ledger.unprogressed + foreign >= policy.max_in_place:
            by_others = f", {foreign} of them by others" if foreign else ""
            return f"{ledger.unprogressed + foreign} restarts without lasting progress{by_others}"
        free = ledger.free_restarts(self.now, policy.free_window_seconds)
        if free >= policy.max_free_restarts:
            return f"{free} free restarts in {policy.free_window_seconds / 3600:g} h"
        return ""

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of this fault."""
        return self.situation.diagnosis

    @property
    def hang(self) -> bool:
        """Whether this is a hang in the ledger's sense; only mode full has those."""
        return self.situation.hang and self.policy.detects_hangs

    @property
    def ladder_class(self) -> FaultClass:
        """Whose ladder is climbed: a hang that nothing explains is a communication hang."""
        unexplained = self.hang and self.diagnosis.fault_class is FaultClass.UNKNOWN
        return FaultClass.COMM_HANG if unexplained else self.diagnosis.fault_class

    @cached_property
    def suspects(self) -> tuple[str, ...]:
        """The suspected nodes, each once."""
        return tuple(dict.fromkeys(self.diagnosis.suspect_nodes))

    @cached_property
    def cause(self) -> tuple[str, str]:
        """What makes two faults the same."""
        return self.diagnosis.cause()

    # --- what came before ----------------------------------------------------------------------------------------

    @cached_property
    def faults(self) -> tuple[PastFault, ...]:
        """The earlier faults of the segment, the newest last."""
        return tuple(fault for fault in self.situation.faults if fault.charged != "disruption")

    @cached_property
    def streak(self) -> tuple[PastFault, ...]:
        """The earlier faults since training last made progress that lasts, the newest last."""
        if self.situation.ledger.lasting(self.situation.run):
            return ()
        # A run that ended in a disruption may have made the progress too.
        every = self.situation.faults
        start = max((number for number, fault in enumerate(every) if fault.lasted), default=0)
        return tuple(fault for fault in every[start:] if fault.charged != "disruption")

    @cached_property
    def gained(self) -> bool | None:
        """Whether the run gained a step; ``None`` if that isn't known."""
        return self.situation.run.gained(self.situation.ledger.highest_step)

    @property
    def stood_still(self) -> bool:
        """Whether the run surely gained no step: also if it made none at all where steps were seen before."""
        silent = self.situation.run.reached() is None and self.situation.ledger.highest_step is not None
        return self.gained is False or silent

    @cached_property
    def same_place(self) -> tuple[PastFault, ...]:
        """The earlier faults of the same cause at the same step, with no step gained since."""
        if self.situation.step is None or self.gained is not False:
            return ()
        found = []
        for fault in reversed(self.situation.faults):
            if fault.cause == self.cause and fault.step == self.situation.step and fault.charged != "disruption":
                found.append(fault)
            if fault.gained is not False:
                break
        return tuple(found)

    @cached_property
    def seen_twice(self) -> tuple[str, ...]:
        """The suspects that were suspected before in this segment."""
        before = {node for fault in self.faults for node in fault.nodes}
        return tuple(node for node in self.suspects if node in before)

    def can(self, action: Action) -> bool:
        """Whether the place where training runs can do it now."""
        return action in ALWAYS_POSSIBLE or action in self.situation.can

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The ladder that is climbed."""
        return self.policy.rungs(self.ladder_class, self.diagnosis.signature)

    @property
    def blames_nodes(self) -> bool:
        """Whether a fault of this class can cost a node its place."""
        actions = {rung.action for rung in self.rungs}
        return not actions.isdisjoint((Action.RESUBMIT_EXCLUDING, Action.BISECT))

    @property
    def can_bisect(self) -> bool:
        """A bisect is possible, and what it finds can be excluded."""
        return self.can(Action.BISECT) and self.can(Action.RESUBMIT_EXCLUDING)

    def restarts_in_a_row(self) -> int:
        """Job-level restarts since progress that lasts: what the backoff grows with."""
        ended = (Action.RESUBMIT.value, Action.RESUBMIT_EXCLUDING.value)
        return sum(fault.action in ended for fault in self.streak)


def _elsewhere(case: Case) -> bool:
    return not any(set(fault.nodes) & set(case.suspects) for fault in case.same_place)


def _after_bisect(case: Case) -> bool:
    return bool(case.streak) and case.streak[-1].action == Action.BISECT.value


# The conditions that ``ladder.CONDITIONS`` names. After a bisect the job is over, with or without agents.
HOLDS: dict[str, Callable[[Case], bool]] = {
    "elsewhere": _elsewhere,
    "no_agents": lambda case: not case.can(Action.RESTART_IN_PLACE) and not _after_bisect(case),
    "seen_twice": lambda case: bool(case.seen_twice),
    "retry_useful": lambda case: case.diagnosis.retry is Retry.USEFUL,
    "after_bisect": _after_bisect,
    "no_bisect": lambda case: not case.can_bisect,
}
