"""The retry chain: the original attempt and every attempt that followed it in one DAG run.

Two kinds of records are stored, because the store has no transactions and a chain of 128 attempts must stay small:

- ``Chain``, one a task instance: identity, segment, ledger, the open attempt or the decision about the last one.
- ``Attempt``, one each: what was submitted, what happened, what was decided.

The life of an attempt is a small table. Each arrow is one write, and whatever dies between two writes, the next try
reads the table and goes on::

    INTENT     -> the name is known, nothing is created       (the job may or may not exist: look it up)
    SUBMITTED  -> the job's id is written down                (adopt it)
    CONCLUDED  -> outcome and decision are written            (replay the decision)
"""

from __future__ import annotations

from enum import Enum

from pydantic import AwareDatetime, Field, JsonValue

from airflow_ft.core.decisions import Decision
from airflow_ft.core.faults import Diagnosis
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.progress import Progress
from airflow_ft.core.records import RECORD_VERSION, Record
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.user_rules import RuleHit


class AttemptState(str, Enum):
    """How far an attempt has come in the chain's own records."""

    INTENT = "intent"
    SUBMITTED = "submitted"
    CONCLUDED = "concluded"

    @classmethod
    def _missing_(cls, value: object) -> AttemptState:
        return cls.SUBMITTED  # a word of a newer version: look at the job


class End(str, Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAULT = "fault"  # a diagnosis and a decision exist
    DISRUPTED = "disrupted"  # a planned end: preemption, drain, TERM
    TIMED_OUT = "timed_out"  # a limit of the user: attempt_timeout or execution_timeout
    CANCELLED = "cancelled"  # a person: clear, mark failed, mark success, delete
    UNKNOWN = "unknown"  # gone without a trace

    @classmethod
    def _missing_(cls, value: object) -> End:
        return cls.UNKNOWN


class JobRef(Record):
    """A job that exists (or existed). A name is not an identity: ``uid`` and ``submitted_at`` must fit too.

    :param foreign: what it is, if somebody else has submitted it: ``process 4711``. Empty for our own jobs.
    :param own: whether it may be stopped. A job that is foreign and not owned is only watched.
    """

    backend: str
    name: str
    uid: str
    chain_id: str
    attempt: int
    submitted_at: AwareDatetime
    where: dict[str, JsonValue] = Field(default_factory=dict)  # to find it again; never a credential
    foreign: str = ""
    own: bool = True

    @property
    def not_ours(self) -> str:
        """Why this job is left alone, in words; empty if it may be stopped."""
        return "" if self.own else f"not ours: somebody else has submitted {self.foreign}, and own=True is not given"


class PastFault(Record):
    """What the policy needs to know of an earlier fault of the segment. ``decide.past_fault`` makes it."""

    cause: tuple[str, str]
    step: int | None = None
    action: str
    nodes: tuple[str, ...] = ()
    finished: bool = False  # it had loaded the last step that there is
    gained: bool | None = None  # whether the run gained a step beyond the chain's highest; None: not known
    lasted: bool = False  # whether the run made progress that lasts: consecutive counts began anew with it
    charged: str = ""  # what the decision cost; a "disruption" is nobody's fault and counts in no rule
    rule: str = ""  # the user's rule that was followed


class Inputs(Record):
    """What a decision was made of, beside the diagnosis, the run and the earlier faults: enough to make it again.

    ``at`` is when it was made, ``policy`` the digest of the policy (the attempt has the whole of it), ``faults`` how
    many earlier faults of the segment were known. The other fields are those of ``situation.Situation``.
    """

    at: AwareDatetime
    policy: str = ""
    faults: int = 0
    ledger: Ledger = Ledger()
    step: int | None = None
    can: tuple[str, ...] = ()
    nodes_needed: int = 1
    pool_nodes: tuple[str, ...] = ()
    pool_size: int = 0
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()
    finished: bool = False
    hang: bool = False
    replaces_pods: bool = False
    foreign_restarts: int = 0
    foreign: str = ""
    gpus: int = 0
    rule_hits: tuple[RuleHit, ...] = ()
    salt: str = ""


class Incident(Record):
    """One fault and what was done about it. Generation n is the one that failed."""

    attempt: int
    generation: int = 0
    detected_at: AwareDatetime
    began_at: AwareDatetime | None = None  # when the process died or the silence began
    ordered_at: AwareDatetime | None = None  # when the first order for a restart in place was accepted
    diagnosis: Diagnosis
    decision: Decision
    run: Run = Run()
    progress: Progress | None = None
    recovery: Recovery | None = None
    past: PastFault | None = None  # what the policy remembers of it
    inputs: Inputs | None = None  # None: an older version's, or left out to make the record smaller
    again: bool = False  # still the incident before it: a node failed again before all had joined; not charged

    def decided(self, decision: Decision) -> Incident:
        """Return the incident with another decision than the policy's, also in what the policy remembers of it."""
        past = self.past.but(action=decision.action.value, charged=decision.charged) if self.past else None
        return self.but(decision=decision, past=past)


class Outcome(Record):
    """How an attempt ended, in one sentence and a few facts."""

    end: End
    text: str
    code: int | None = None
    warnings: tuple[str, ...] = ()


class Debt(Record):
    """A cancel that could not be carried out. Paid by the next try, seen by ``doctor``, collected by ``reap``.

    ``held``: it is not due yet; the job is kept while a person is asked.
    """

    ref: JobRef
    since: AwareDatetime
    why: str
    held: bool = False
    told: bool = False  # the installation's own notifiers were told


class Notice(Record):
    """Something a watch saw that belongs into the chain although it is no fault."""

    at: AwareDatetime
    kind: str
    text: str


class Attempt(Record):
    """One run of the training job on the cluster."""

    version: int = RECORD_VERSION
    number: int
    segment: int = 0
    name: str
    state: AttemptState = AttemptState.INTENT
    try_number: int = 1
    ref: JobRef | None = None
    nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()  # avoided where others are free
    policy: dict[str, JsonValue] = Field(default_factory=dict)  # what is not at its default; {}: not recorded
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    expected_checkpoint: int | None = None
    resume_from: str = ""  # where that checkpoint is, as its line said: the hint FT_RESUME_FROM
    progress: Progress | None = None
    incidents: tuple[Incident, ...] = ()  # the last one has the decision that ended the attempt
    recovery: Recovery | None = None  # of the fault before this attempt
    outcome: Outcome | None = None
    fenced: bool = False  # nothing of it runs, or will ever run
    debts: tuple[Debt, ...] = ()  # of its end: the chain's head has those that are still owed
    notices: tuple[Notice, ...] = ()
    log_path: str | None = None

    @property
    def decision(self) -> Decision | None:
        """The decision that ended the attempt."""
        last = self.incidents[-1].decision if self.incidents else None
        return last if last is not None and last.ends_attempt else None


class ChainEvent(Record):
    """Something a reader of the chain has to know that is no fault: a lost try, a clear, an adoption.

    ``id`` is unique in the chain; notifications are keyed by it.
    """

    id: int
    at: AwareDatetime
    kind: str
    text: str
    attempt: int | None = None
    try_number: int | None = None


class Chain(Record):
    """The chain's head: who it is, where it stands."""

    version: int = RECORD_VERSION
    chain_id: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    created_at: AwareDatetime
    segment: int = 0
    segment_first: int = 0  # the first attempt of the segment
    max_tries: int = 0  # grows when a person clears the task: that is how a clear is told from a retry
    try_number: int = 0  # the latest try that was seen
    put_off: int = 0  # the try that itself asked to be tried again later: it is not lost
    attempts: int = 0  # how many there are; their numbers are 0..attempts-1
    open: int | None = None  # the attempt that runs, or should
    concluded: End | None = None  # how the last attempt ended, when none is open
    decision: Decision | None = None  # what was decided then; every try replays it first
    max_restarts: int = 0
    grace_seconds: float = 30.0  # what its jobs get between TERM and KILL, also from those who know only the chain
    ledger: Ledger = Ledger()
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()
    faults: tuple[PastFault, ...] = ()  # of this segment, the newest last, at most 64
    highest_step: int | None = None  # over all segments
    good: JobRef | None = None  # the last attempt that made steps: what it printed by then is no news
    last_checkpoint: int | None = None
    last_checkpoint_path: str | None = None  # of just that one; None: its line named no path
    debts: tuple[Debt, ...] = ()
    events: tuple[ChainEvent, ...] = ()  # the newest last, at most 40
    next_event: int = 0
    notified: int = -1  # the last event that was sent
    told_generation: int = -1  # of the open attempt: incidents up to it are among the events
    told_notice_at: AwareDatetime | None = None  # and notices up to then
    sending: int = -1  # the event whose sending began: its result is unknown if it is not `notified`
