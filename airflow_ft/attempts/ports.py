"""What an attempt needs from Airflow's side, and the values that it is driven by."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from pydantic import AwareDatetime, Field, JsonValue

from airflow_ft.attempts.deadlines import QUIET_SECONDS
from airflow_ft.core.chain import Attempt, Debt, Incident, JobRef, Notice, Outcome, PastFault
from airflow_ft.core.faults import Diagnosis
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import RECORD_VERSION, Record
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.user_rules import RuleHit

# The states of Airflow in which a task instance is over: no try of it will see to its job any more.
TASK_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class KeyValueStore(Protocol):
    """The chain's home: Airflow's task state store, kept across tries."""

    def get(self, key: str) -> JsonValue:
        """Return the stored value, or ``None``."""

    def set(self, key: str, value: JsonValue) -> None:
        """Store the value. Raises when this try has been replaced by a newer one."""


class Desk(Protocol):
    """Where a watching attempt writes: the try's log, the try's XComs, the clock."""

    def say(self, text: str, *, warning: bool = False) -> None:
        """Write one line into the try's log."""

    async def publish(self, key: str, value: JsonValue) -> None:
        """Store a value in the try's XComs. Raises or hangs when Airflow can't be reached: the caller puts a limit."""

    async def recall(self, key: str) -> JsonValue:
        """Return a value that this try published before, or ``None``."""

    def now(self) -> datetime:
        """Return the time, timezone-aware UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class TryInfo(Record):
    """Which try of which task instance this is."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int
    max_tries: int
    ti_id: str

    def tags(self) -> dict[str, str]:
        """What a job is tagged with, for people who list jobs."""
        return {
            "dag_id": self.dag_id,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "map_index": str(self.map_index),
        }


class WatchOrder(Record):
    """Everything that the watch of one attempt needs: the trigger's one argument. It never holds a credential."""

    version: int = RECORD_VERSION
    info: TryInfo
    ref: JobRef
    good: JobRef | None = None  # the chain's last attempt that made steps
    segment: int = 0
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    ledger: Ledger = Ledger()
    faults: tuple[PastFault, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()
    nodes_needed: int = 1
    gpus: int = 0  # of one attempt; 0: not known
    highest_step: int | None = None
    last_checkpoint: int | None = None
    recovery: Recovery | None = None  # of the fault before this attempt, still pending
    incidents: tuple[Incident, ...] = ()  # restarts in place that are known already
    notices: tuple[Notice, ...] = ()  # and what else an earlier watch of this attempt has handed over
    tells: bool = False  # somebody wants to hear of restarts in place when they happen
    told_generation: int = -1  # the incidents up to this generation are events of the chain already
    told_notice_at: AwareDatetime | None = None  # and the notices up to this time
    deadline: AwareDatetime | None = None  # of the attempt (attempt_timeout, execution_timeout)
    deadline_name: str = ""
    deferred_at: AwareDatetime | None = None
    quiet_seconds: float = QUIET_SECONDS  # after the deferral nothing is handed to the worker for so long
    progress_pattern: str | None = None
    staged: bool = False  # a fault is handed over before it is looked into: tasks of their own diagnose, decide, act
    until_recovered: bool = False  # hand over as soon as it is known whether training has recovered


class SeenFault(Record):
    """A fault on its way through the stages of the explicit form; each of them adds what it found."""

    attempt: int
    generation: int = 0
    detected_at: AwareDatetime
    verdict: HangVerdict | None = None
    diagnosis: Diagnosis | None = None
    rule_hits: tuple[RuleHit, ...] = ()
    incident: Incident | None = None  # with the decision


class Conclusion(Record):
    """What one watch came to. It travels as the trigger's event, and is recorded by the worker.

    ``interim``: the attempt goes on; incidents and notices so far are handed over, to be told now.
    """

    version: int = RECORD_VERSION
    interim: bool = False
    chain_id: str
    attempt: int
    try_number: int
    outcome: Outcome
    incidents: tuple[Incident, ...] = ()
    progress: Progress | None = None
    run: Run = Run()
    ledger: Ledger = Ledger()
    recovery: Recovery | None = None
    nodes: tuple[str, ...] = ()
    ended_at: AwareDatetime
    stopped: bool = False  # nothing of the job is left
    debts: tuple[Debt, ...] = ()
    notices: tuple[Notice, ...] = ()
    log_path: str | None = None
    fault: SeenFault | None = None  # of a staged watch: what it was ended by, with nothing done about it yet


class Started(Record):
    """What ``start`` came to when there is a job to watch."""

    attempt: Attempt
    adopted: bool = False
