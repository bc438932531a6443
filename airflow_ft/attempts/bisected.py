"""A bisect between two attempts: the decision BISECT carried out, and decided about anew with what it found.

The attempt that failed is over and its nodes are free. The search runs in the try that would submit the next attempt;
a try that is lost in between begins it again, and adopts the tests that have run. What was found becomes the suspects
of the same fault, and the policy decides once more (``ladder``: the rungs after a bisect).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.attempts.checkups import Witness, bisect_entries
from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.quarantine import Quarantine, looked_up, written
from airflow_ft.attempts.record import NOTICE, with_event
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.base import Backend, BackendError, PoolView, TrainingJob
from airflow_ft.core.bisect import BisectError, BisectResult
from airflow_ft.core.chain import Attempt, Chain
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry, Suspect
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import Situation
from airflow_ft.diagnosis.bisecting import Bisecting, looking

FEW_NODES = 4  # with fewer, a bad node and a bad pair can't be told apart: free nodes of the pool join in


@dataclass(frozen=True)
class Bisector:
    """What the search works with."""

    store: ChainStore
    backend: Backend
    job: TrainingJob
    policy: FaultTolerancePolicy
    now: Callable[[], datetime]
    say: Callable[[str], None]
    quarantine: Quarantine | None = None
    found: BisectResult | None = None  # by somebody who has searched already

    async def after(self, chain: Chain) -> Chain:
        """Return the chain with the decision that follows its bisect; unchanged if none is due."""
        due = chain.open is None and chain.decision is not None and chain.decision.action is Action.BISECT
        last = self.store.load_attempt(chain.attempts - 1) if due else None
        if last is None:
            return chain
        view = await self._pool()
        text, result = await self._searched(last, view, chain)
        diagnosis = _diagnosis(last, result, text)
        situation = Situation(
            diagnosis=diagnosis,
            ledger=chain.ledger,
            faults=chain.faults,
            can=(Action.RESUBMIT, Action.RESUBMIT_EXCLUDING, Action.FAIL),
            nodes_needed=self.job.nodes_needed(),
            pool_nodes=view.nodes,
            excluded_nodes=chain.excluded_nodes,
            soft_nodes=chain.soft_nodes,
            salt=last.name,
        ).compact()
        now = self.now()
        decision = decide(self.policy, situation, now)
        self.say(f"Decision: {decision.reason}")
        chain = with_event(chain, now, NOTICE, f"{text} {decision.reason}", last.number).but(
            decision=decision,
            ledger=decision.ledger,
            excluded_nodes=decision.excluded_nodes,
            soft_nodes=decision.soft_nodes,
            faults=(*chain.faults, past_fault(situation, decision)),
        )
        self.store.save(chain)
        self._remember(chain, result, now)
        return chain

    async def _pool(self) -> PoolView:
        try:
            return await limited(self.backend.pool(self.job), LOOK_SECONDS, "listing nodes")
        except BackendError as error:
            self.say(f"The nodes can't be listed: {error}")
            return PoolView()

    async def _searched(self, last: Attempt, view: PoolView, chain: Chain) -> tuple[str, BisectResult]:
        if self.found is not None:
            return f"Bisect: {self.found}.", self.found
        pool = view.nodes
        held = [node for node in last.nodes if node in pool]
        nodes = held + self._spare(held, view, chain)[: max(0, FEW_NODES - len(held))]
        settings = self.policy.bisect
        if settings is None:
            return "Bisect: the policy has none any more.", BisectResult()
        one = Bisecting(
            self.backend,
            self.job,
            settings,
            f"{last.name}-b",
            chain.chain_id,
            pool,
            self.now,
            self.say,
            look=looking(self.policy.preflight),
            owner=self.store.probe_work(f"{last.name}-b"),
        )
        try:
            result = await one.search(sorted(nodes, key=pool.index))
        except BisectError as error:
            return f"Bisect: not possible: {error}", BisectResult()
        return f"Bisect: {result}.", result

    def _spare(self, held: Sequence[str], view: PoolView, chain: Chain) -> list[str]:
        """Nodes that may join in, the free ones first: somebody else's would be waited for in vain."""
        bad = {one.node for one in looked_up(self.quarantine, self.now(), self.say)}
        spare = [node for node in view.nodes if node not in {*held, *chain.excluded_nodes, *bad}]
        return sorted(spare, key=lambda node: view.free is not None and node not in view.free)

    def _remember(self, chain: Chain, result: BisectResult, now: datetime) -> None:
        """What it found is known to all DAGs; what the user's own program said counts like a job's word."""
        if self.quarantine is None or self.policy.bisect is None:
            return
        task = f"{chain.dag_id}.{chain.task_id}"
        witness = Witness(chain.dag_id, task, f"{task}, bisect", now, chain.chain_id)
        entries = bisect_entries(result, bool(self.policy.bisect.command), witness)
        entries = [entry for entry in entries if entry.node in chain.excluded_nodes]
        written(self.quarantine, entries, self.say)


def _diagnosis(last: Attempt, result: BisectResult, text: str) -> Diagnosis:
    """The fault of the last attempt, with what the search found as its suspects. Of a bad pair one end is enough."""
    before = last.incidents[-1].diagnosis if last.incidents else None
    found = (*result.faulty_nodes, *(link[-1] for link in result.faulty_links))
    return Diagnosis(
        fault_class=before.fault_class if before else FaultClass.UNKNOWN,
        text=text,
        root=before.root if before else None,
        suspects=tuple(Suspect(kind="node", name=node) for node in dict.fromkeys(found)),
        confidence=min((result.confidence[node] for node in result.faulty_nodes), default=0.5),
        retry=Retry.USEFUL,
        signature="bisect",
        advice="Have the nodes that it names looked at." if found else "Nothing was proved: look at the job as well.",
    )
