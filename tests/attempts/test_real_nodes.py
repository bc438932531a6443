"""Whole chains on real processes of the local backend: the node that is bad is found, excluded, and training recovers.

Each chain is driven as the operator drives it: start, watch, record, until it succeeds or stops.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pydantic import JsonValue

from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.quarantine import Quarantine, cluster_of, entries_of, written
from airflow_ft.attempts.record import write_conclusion
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.chain import Attempt, Chain, End
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.diagnosis.signature_files import load_rules
from tests.attempts.dict_store import DictStore

pytestmark = [pytest.mark.row("S4"), pytest.mark.row("S3"), pytest.mark.timeout(280)]

SKIPPED = ("disk-size root", "disk-size shm", "disk-free root", "memory-free", "xid", "gpu-check", "gpu-health")
# Trains for a moment when no bad company is there, else fails like a program that doesn't know why.
TRAIN = """
import os, sys, time
bad, place = set(sys.argv[1].split(",")), os.path.join(sys.argv[2], os.environ["FT_JOB"].split(":")[0])
os.makedirs(place, exist_ok=True)
open(os.path.join(place, os.environ["FT_NODE"]), "w").close()
end = time.monotonic() + 40
while len(os.listdir(place)) < int(os.environ["FT_NNODES"]) and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(17 if bad <= set(os.listdir(place)) else 0)
"""


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

    def __init__(self, job: LocalJob, policy: FaultTolerancePolicy, shared: DictStore | None = None, dag: str = "dag"):
        self.job, self.policy, self.dag = job, policy, dag
        self.said: list[str] = []
        self.store = ChainStore(DictStore())
        self.quarantine = Quarantine(shared or DictStore(), cluster_of(job))
        self.backend = create_backend()

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

    async def _try(self, number: int) -> bool:
        info = TryInfo(
            dag_id=self.dag, run_id="run", task_id="task", try_number=number, max_tries=1000, ti_id=f"ti-{self.dag}"
        )
        desk = LogDesk(self.said)
        starter = Starter(
            store=self.store, backend=self.backend, job=self.job, policy=self.policy, info=info, now=desk.now,
            say=desk.say, quarantine=self.quarantine,
        )  # fmt: skip
        chain, started = await starter.start()
        if started is None:
            return True
        attempt = started.attempt
        assert attempt.ref is not None
        order = WatchOrder(
            info=info, ref=attempt.ref, policy=write_policy(self.policy), ledger=chain.ledger, faults=chain.faults,
            excluded_nodes=attempt.excluded_nodes, soft_nodes=attempt.soft_nodes, nodes_needed=self.job.nodes_needed(),
        )  # fmt: skip
        conclusion = await Watch(order, self.policy, self.backend, desk, load_rules()).watch()
        chain = write_conclusion(self.store, chain, attempt, conclusion)
        written(self.quarantine, entries_of(chain, conclusion.incidents), desk.say)
        return chain.concluded is End.SUCCEEDED or (chain.decision is not None and chain.decision.action is Action.FAIL)

    @property
    def attempts(self) -> list[Attempt]:
        chain = self.store.load()
        found = [self.store.load_attempt(number) for number in range(chain.attempts if chain else 0)]
        return [attempt for attempt in found if attempt is not None]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "root")
    assert [job.name for job in inventory.list_jobs(str(tmp_path / "root")) if not job.closed] == []


def job(root: str, scratch: Path, nodes: int, bad: str = "nobody", pool: int = 4) -> LocalJob:
    command = (sys.executable, "-I", "-S", "-c", TRAIN, bad, str(scratch / "meet"))
    return LocalJob(command=command, nodes=nodes, root=root, pool_nodes=pool, workdir=str(scratch))


def policy(**given: object) -> FaultTolerancePolicy:
    return FaultTolerancePolicy.advanced(**{"max_restarts": 3, "settle_seconds": 0.5, "hold_seconds": 20.0, **given})


@pytest.mark.row("P6")
def test_a_fault_that_appears_only_when_two_nodes_work_together_is_bisected_and_training_recovers(
    root: str, tmp_path: Path
) -> None:
    ladder = {
        "UNKNOWN": [
            {"action": "BISECT", "times": 1},
            {"action": "RESUBMIT_EXCLUDING", "when": ["after_bisect"]},
            {"action": "FAIL"},
        ]
    }
    training = job(root, tmp_path, nodes=7, bad="n3,n7", pool=8)
    bisect = BisectSettings(command=training.command, test_seconds=60.0)
    task = Driver(training, policy(ladder=ladder, bisect=bisect))
    chain = task.run()
    assert chain.concluded is End.SUCCEEDED, task.said
    first, second = task.attempts
    assert first.decision is not None and first.decision.action is Action.BISECT
    assert first.decision.charged == ""
    assert second.excluded_nodes == ("n7",)
    assert "n7" not in second.nodes and "n3" in second.nodes
    assert chain.ledger.restarts == 1, "the resubmission after it is charged, the bisect is not"
    assert any("found the link n3 – n7" in event.text for event in chain.events)
    assert any(line.startswith("Bisect, round 1:") for line in task.said), "its progress is shown"


@pytest.mark.row("M9")
def test_a_node_that_fails_its_preflight_is_excluded_charged_and_known_to_the_next_dag(
    root: str, tmp_path: Path
) -> None:
    check = ["sh", "-c", "test $FT_NODE != n1 || { echo uncorrected ECC errors; exit 1; }"]
    looks = {"set": "quick", "skip": SKIPPED, "commands": {"burn-in": check}}
    shared = DictStore()
    task = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks), shared)
    chain = task.run()
    assert chain.concluded is End.SUCCEEDED, task.said
    first, second = task.attempts
    assert first.incidents[-1].diagnosis.fault_class is FaultClass.HW_NODE
    assert first.incidents[-1].diagnosis.suspect_nodes == ("n1",)
    assert second.excluded_nodes == ("n1",)
    assert chain.ledger.restarts == 1
    # Another DAG: it never even meets the node.
    other = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks), shared, dag="other")
    chain = other.run()
    assert chain.concluded is End.SUCCEEDED
    (only,) = other.attempts
    assert "n1" not in only.nodes
    assert only.excluded_nodes == (), "it is no exclusion of the chain: it ends with the quarantine"
    assert any(line.startswith("n1 is in quarantine until") for line in other.said)


@pytest.mark.row("M9")
def test_when_the_budget_is_used_up_the_preflight_says_error_exiting(root: str, tmp_path: Path) -> None:
    looks = {"set": "quick", "skip": SKIPPED, "hosts": ["storage.does-not-exist.invalid"]}
    quick = {"base_seconds": 0.0}
    task = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks, max_restarts=1, backoff=quick))
    chain = task.run()
    assert chain.decision is not None and chain.decision.action is Action.FAIL
    assert chain.ledger.restarts == 1
    assert [attempt.incidents[-1].diagnosis.fault_class for attempt in task.attempts] == [FaultClass.ENV_ERROR] * 2
    assert any("error,exiting" in line for line in task.said)
