"""One training through one world under one policy: a discrete-event model with the real ``decide``.

Training needs all its nodes at once; it advances until the next deadly fault on one of them (or one of nobody's). A
crash is seen after ``crash_seconds``. A hang is seen when the policy's detector sees it; else the framework's watchdog
ends it after its limit, or it stands until a person looks. What is newer than the last checkpoint is lost. Then the
policy decides, from what the (imperfect) diagnosis says, and the decision is carried out:

- a restart in place runs on the same nodes, also on a bad one: then it dies again before a first step;
- a resubmission takes any nodes of the pool that are in service and not excluded, drawn by chance: also the bad one, as
  long as neither the platform nor the policy knows of it. Are there too few, it waits; after the policy's limit its
  exclusions are softened, the least sure first;
- a stop pages a person, who finds what is really broken, leaves it out until it is mended, and starts anew: a new
  segment.

The ETTR (effective training time ratio) is the work that was kept, as a share of the time that passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from random import Random

from airflow_ft.core.chain import PastFault
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.exclusions import softened
from airflow_ft.core.faults import Diagnosis, FaultClass
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import Situation
from airflow_ft.core.switches import APPROVE, answered
from airflow_ft.simulation.assumptions import Assumptions
from airflow_ft.simulation.blame import Accuracy, diagnose
from airflow_ft.simulation.trace import NodeFault
from airflow_ft.simulation.world import World

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
FAULTS_KEPT = 64
MOST_TURNS = 100_000  # of one run: more would be an endless loop of the model


@dataclass(frozen=True)
class Result:
    """What one run came to. Times in seconds; ``held`` are node-seconds in exclusion, ``held_healthy`` of good ones."""

    ettr: float
    faults: int = 0
    restarts: int = 0
    in_place: int = 0
    pages: int = 0
    held: float = 0.0
    held_healthy: float = 0.0
    waited: float = 0.0  # for nodes
    hung: float = 0.0  # between the beginning of a hang and the moment when somebody saw it
    lost: float = 0.0  # work that no checkpoint kept


class Simulation:
    """The state of one run."""

    def __init__(
        self, policy: FaultTolerancePolicy, world: World, assumed: Assumptions, accuracy: Accuracy, seed: int
    ) -> None:
        self.policy, self.world, self.assumed, self.accuracy = policy, world, assumed, accuracy
        self.seed = seed
        self.placing = Random(f"placing/{seed}")
        self.now = 0.0
        self.kept = 0.0  # seconds of work that a checkpoint has
        self.nodes: tuple[str, ...] = ()
        self.ledger = Ledger()
        self.faults: list[PastFault] = []
        self.excluded: tuple[str, ...] = ()
        self.soft: tuple[str, ...] = ()
        self.by_person: set[str] = set()  # nodes that a person left out until they are mended
        self.segment = self.attempt = self.generation = 0
        self.result = Result(0.0)

    def run(self) -> Result:
        """Run to the end."""
        self._place()
        for _ in range(MOST_TURNS):
            if self.now >= self.world.seconds:
                break
            self._live()
        return replace(self.result, ettr=min(1.0, self.kept / self.world.seconds))

    # --- training ------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """Train until the next fault, and see to it."""
        began = self.now
        bad = next((fault for node in self.nodes for fault in self._deadly_now(node)), None)
        if bad is not None:  # a start on a bad node
            self._spend(self.assumed.early_death_seconds)
            self._fault(bad, None, Run(healthy_seconds=self.assumed.early_death_seconds), hangs=False)
            return
        fault = self._next_fault(began)
        until = min(fault.start if fault is not None else self.world.seconds, self.world.seconds)
        worked = until - began
        self._hold(until)
        self.now = until
        slice_ = self.assumed.checkpoint_seconds + self.assumed.checkpoint_cost_seconds
        saved = int(worked / slice_) * self.assumed.checkpoint_seconds
        done = worked * self.assumed.checkpoint_seconds / slice_
        if fault is None:
            self.kept += done
            return
        before = self.kept
        self.kept += saved
        self.result = replace(self.result, lost=self.result.lost + done - saved)
        chance = Random(f"fault/{self.seed}/{fault.start}/{fault.node}")
        run = self._run(before, done, saved, worked)
        self._fault(fault, int((before + done) / self.assumed.step_seconds), run, chance.random() < fault.effect.hangs)

    def _run(self, before: float, done: float, saved: float, worked: float) -> Run:
        step = self.assumed.step_seconds
        reached = int((before + done) / step)
        highest = self.ledger.highest_step
        beyond = (before + done) - (highest * step if highest is not None else 0.0)
        return Run(
            first_step=int(before / step),
            last_step=reached,
            seconds_beyond=max(0.0, min(beyond, worked)),
            new_checkpoint=int(self.kept / step) if saved else None,
            healthy_seconds=worked,
            lost_seconds=done - saved,
        )

    def _next_fault(self, after: float) -> NodeFault | None:
        mine = set(self.nodes)
        return next((f for f in self.world.deadly if f.start > after and (not f.node or f.node in mine)), None)

    def _deadly_now(self, node: str) -> list[NodeFault]:
        return [fault for fault in self.world.active(node, self.now) if fault.effect.fatal]

    # --- a fault -------------------------------------------------------------------------------------------------

    def _fault(self, fault: NodeFault, step: int | None, run: Run, hangs: bool) -> None:
        chance = Random(f"said/{self.seed}/{self.attempt}/{self.generation}/{fault.start}/{fault.node}")
        self.result = replace(self.result, faults=self.result.faults + 1)
        seen_as_hang = self._seen(chance) if hangs else self._crashed()
        if seen_as_hang is None:
            return  # nobody but a person noticed
        truth = fault.effect.fault_class
        if hangs and fault.node and not seen_as_hang:
            truth = FaultClass.COMM_HANG  # the watchdog's word: who was late is in it, why is not
        self._decide(self._said(fault, truth, chance), step, run, fault, seen_as_hang, chance)

    def _crashed(self) -> bool:
        self._spend(self.assumed.crash_seconds)
        return False

    def _seen(self, chance: Random) -> bool | None:
        """Let a hang be noticed. Returns whether the policy's detector saw it; ``None``: a person did."""
        hang, policy, began = self.policy.hang, self.policy, self.now
        usual = max(hang.floor_seconds, min(hang.ceiling_seconds, hang.multiple * self.assumed.step_seconds))
        threshold = hang.judgement_seconds if hang.judgement_seconds is not None else usual
        watched, unwatched = chance.random() < self.assumed.watchdog_share, chance.expovariate(1.0)
        acts = policy.detects_hangs and policy.acts_on_hangs
        if acts and not (watched and self.assumed.watchdog_seconds < threshold):
            self._spend(threshold + hang.check_interval_seconds / 2 + self.assumed.crash_seconds)
        elif watched:
            self._spend(self.assumed.watchdog_seconds + self.assumed.crash_seconds)
        else:
            told = threshold if policy.detects_hangs else unwatched * self.assumed.unwatched_seconds
            self._spend(told)
        self.result = replace(self.result, hung=self.result.hung + self.now - began)
        if acts or watched:
            return acts and not (watched and self.assumed.watchdog_seconds < threshold)
        self._person(chance)
        return None

    def _said(self, fault: NodeFault, truth: FaultClass, chance: Random) -> Diagnosis:
        if fault.effect.planned:
            return Diagnosis(fault_class=FaultClass.UNKNOWN, text=fault.kind, disruption="drain", signature=fault.kind)
        return diagnose(
            truth,
            fault.node or None,
            fault.kind,
            blame=self.assumed.blame,
            accuracy=self.accuracy,
            others=[node for node in self.nodes if node != fault.node],
            chance=chance,
            by_platform=fault.effect.visible,
        )

    # --- the decision --------------------------------------------------------------------------------------------

    def _decide(
        self, said: Diagnosis, step: int | None, run: Run, fault: NodeFault, hang: bool, chance: Random
    ) -> None:
        in_service = tuple(node for node in self.world.nodes if not self._out(node))
        can = [Action.RESUBMIT, Action.RESUBMIT_EXCLUDING]
        if self.assumed.agents and not (fault.effect.visible and fault.node):
            can.append(Action.RESTART_IN_PLACE)
        situation = Situation(
            diagnosis=said,
            ledger=self.ledger,
            faults=tuple(self.faults[-FAULTS_KEPT:]),
            step=step,
            run=run,
            generation=self.generation,
            can=tuple(can),
            nodes_needed=self.assumed.nodes,
            pool_nodes=in_service,
            excluded_nodes=self.excluded,
            soft_nodes=self.soft,
            hang=hang,
            gpus=self.assumed.nodes * self.assumed.gpus_per_node,
            salt=f"{self.seed}/{self.attempt}",
        )
        decision = decide(self.policy, situation, EPOCH + timedelta(seconds=self.now))
        self.faults.append(past_fault(situation, decision))
        if decision.action is Action.ASK:
            self._page(chance)
            decision = answered(decision, APPROVE, "A person", self.policy, EPOCH + timedelta(seconds=self.now))
        self.ledger, self.excluded, self.soft = decision.ledger, decision.excluded_nodes, decision.soft_nodes
        self._carry_out(decision, chance)

    def _carry_out(self, decision: Decision, chance: Random) -> None:
        if decision.action is Action.FAIL:
            self._person(chance)
        elif decision.action is Action.RESTART_IN_PLACE:
            self.result = replace(self.result, in_place=self.result.in_place + 1)
            self.generation += 1
            self._spend(self.assumed.in_place_seconds)
        else:
            self._spend(decision.delay)
            self._resubmit()

    def _resubmit(self) -> None:
        self.result = replace(self.result, restarts=self.result.restarts + 1)
        self.attempt, self.generation = self.attempt + 1, 0
        self._place()
        self._spend(self.assumed.resubmit_seconds)

    # --- people --------------------------------------------------------------------------------------------------

    def _page(self, chance: Random) -> None:
        self.result = replace(self.result, pages=self.result.pages + 1)
        self._spend(chance.expovariate(1.0) * self.assumed.person_seconds)

    def _person(self, chance: Random) -> None:
        """A person comes, finds what is broken, and begins a new segment without it."""
        self._page(chance)
        self.by_person |= {node for node in self.nodes if self._deadly_now(node)}
        self.segment += 1
        self.ledger, self.faults = self.ledger.of_next_segment(self.ledger.highest_step), []
        self._resubmit()

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _out(self, node: str) -> bool:
        """Whether the platform's people or its own eyes have taken a node out of service."""
        active = self.world.active(node, self.now)
        if node in self.by_person and not active:
            self.by_person.discard(node)
        known = (f.effect.visible or self.now - f.start >= self.assumed.cordon_seconds for f in active)
        return node in self.by_person or any(known)

    def _place(self) -> None:
        """Draw the nodes of the next attempt. Waits until there are enough."""
        waited = 0.0
        while self.now < self.world.seconds:
            free = [node for node in self.world.nodes if node not in self.excluded and not self._out(node)]
            if len(free) >= self.assumed.nodes:
                self.placing.shuffle(free)
                free.sort(key=lambda node: node in self.soft)
                self.nodes = tuple(free[: self.assumed.nodes])
                return
            pause = self._until_next_change()
            limit = self.policy.exclusion.unschedulable_seconds
            self._spend(pause)
            waited += pause
            self.result = replace(self.result, waited=self.result.waited + pause)
            if limit is not None and waited >= limit and (node := softened(self.excluded, self.ledger)) is not None:
                self.excluded = tuple(one for one in self.excluded if one != node)
                self.soft, waited = (*self.soft, node), 0.0

    def _until_next_change(self) -> float:
        ends = [fault.end - self.now for fault in self.world.faults if fault.end > self.now]
        limit = self.policy.exclusion.unschedulable_seconds
        if self.excluded and limit is not None:
            ends.append(limit)
        return max(1.0, min([*ends, self.world.seconds - self.now]))

    # --- time ----------------------------------------------------------------------------------------------------

    def _spend(self, seconds: float) -> None:
        until = min(self.now + seconds, self.world.seconds)
        self._hold(until)
        self.now = max(self.now, until)

    def _hold(self, until: float) -> None:
        span = max(0.0, until - self.now)
        if self.excluded and span:
            healthy = sum(not self.world.active(node, self.now) for node in self.excluded)
            held = self.result.held + span * len(self.excluded)
            self.result = replace(self.result, held=held, held_healthy=self.result.held_healthy + span * healthy)


def simulate(policy: FaultTolerancePolicy, world: World, assumed: Assumptions, accuracy: Accuracy, seed: int) -> Result:
    """Run one training through ``world``."""
    return Simulation(policy, world, assumed, accuracy, seed).run()
