"""One task on real processes, without Airflow: driven as the operator drives it, until it succeeds or stops."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

from pydantic import JsonValue

from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.quarantine import Quarantine, cluster_of, entries_of, written
from airflow_ft.attempts.record import write_conclusion
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.base import TrainingJob
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Attempt, Chain, End
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.diagnosis.signature_files import load_rules
from tests.attempts.dict_store import DictStore


class LogDesk:
    """A desk with a real clock."""

    def __init__(self, said: list[str]) -> None:
        self.said, self.xcoms = said, DictStore()

    def say(self, text: str, *, warning: bool = False) -> None:
        self.said.append(text)

    async def publish(self, key: str, value: JsonValue) -> None:
        self.xcoms.set(key, value)

    async def recall(self, key: str) -> JsonValue:
        return self.xcoms.get(key)

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Driver:
    """One task, try after try, without Airflow."""

    def __init__(
        self, job: TrainingJob, policy: FaultTolerancePolicy, shared: DictStore | None = None, dag: str = "dag"
    ):
        self.job, self.policy, self.dag = job, policy, dag
        self.said: list[str] = []
        self.store = ChainStore(DictStore())
        self.quarantine = Quarantine(shared or DictStore(), cluster_of(job))
        self.backend = create_backend(job.backend)

    def run(self, tries: int = 8) -> Chain:
        for number in range(1, tries + 1):
            try:
                if asyncio.run(self._try(number)):
                    break
            except TrainingFault:
                break
        chain = self.store.load()
        assert chain is not None
        return chain

    def info(self, number: int, max_tries: int = 1000) -> TryInfo:
        ids = {"dag_id": self.dag, "run_id": "run", "task_id": "task", "ti_id": f"ti-{self.dag}"}
        return TryInfo(**ids, try_number=number, max_tries=max_tries)

    def starter(self, number: int, desk: LogDesk, max_tries: int = 1000) -> Starter:
        info = self.info(number, max_tries)
        return Starter(
            store=self.store, backend=self.backend, job=self.job, policy=self.policy, info=info, now=desk.now,
            say=desk.say, quarantine=self.quarantine,
        )  # fmt: skip

    async def _try(self, number: int) -> bool:
        desk = LogDesk(self.said)
        starter = self.starter(number, desk)
        chain, started = await starter.start()
        if started is None:
            return True
        attempt = started.attempt
        assert attempt.ref is not None
        order = WatchOrder(
            info=starter.info, ref=attempt.ref, policy=write_policy(self.policy), ledger=chain.ledger,
            faults=chain.faults, excluded_nodes=attempt.excluded_nodes, soft_nodes=attempt.soft_nodes,
            nodes_needed=self.job.nodes_needed(),
        )  # fmt: skip
        backend = create_backend(attempt.ref.backend)
        conclusion = await Watch(order, self.policy, backend, desk, load_rules()).watch()
        chain = write_conclusion(self.store, chain, attempt, conclusion)
        written(self.quarantine, entries_of(chain, conclusion.incidents), desk.say)
        return chain.concluded is End.SUCCEEDED or (chain.decision is not None and chain.decision.action is Action.FAIL)

    @property
    def attempts(self) -> list[Attempt]:
        chain = self.store.load()
        found = [self.store.load_attempt(number) for number in range(chain.attempts if chain else 0)]
        return [attempt for attempt in found if attempt is not None]
