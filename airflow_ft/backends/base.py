"""The protocol between an attempt and the place where it runs.

All methods are coroutines and may block no event loop (file and process work goes to threads). Each caller puts a time
limit around each call. A backend never decides anything, and it says three things apart that others mix up:

- *It does not exist*: ``find`` returns ``None``, ``observe`` says ``GONE``.
- *We could not see*: ``UnreachableError``. Unreachable is not dead: nothing is cancelled or submitted because of it.
- *It was refused*: ``SubmissionRefusedError``, with the field that a person has to change.

What an author of a backend writes: a ``TrainingJob`` (what a user puts into the DAG), a ``Backend``, a line in
``registry`` (or an entry point ``airflow_ft.backends``), and a fixture for the conformance suite. What only some
backends can do is in ``abilities``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import AwareDatetime, Field
from typing_extensions import Self

from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence, Trust
from airflow_ft.core.records import Record
from airflow_ft.core.settings import CheckedSettings

# --- what a user writes ------------------------------------------------------------------------------------------


class TrainingJob(CheckedSettings):
    """What the user wants trained: a spec for one backend. Immutable: attempts never change it.

    Raises ``SettingsError`` with everything that is wrong: field, what was given, what is allowed.
    """

    backend: ClassVar[str]

    def rendered(self, render: Callable[[object], object]) -> Self:
        """Return a copy in which every string went through ``render`` (Airflow's templates)."""
        rendered = _render_tree(self.model_dump(), render)
        assert isinstance(rendered, dict)
        return self.__class__(**rendered)

    def nodes_needed(self) -> int:
        """How many nodes one attempt takes."""
        return 1

    def gpus(self) -> int:
        """How many GPUs one attempt holds; 0 if the job doesn't say (the policy's ``gpus_per_node`` may)."""
        return 0

    def secrets(self) -> tuple[str, ...]:
        """Return values in this job that must never be stored or shown: environment entries with a telling name."""
        env = self.model_dump().get("env") or {}
        return tuple(value for name, value in env.items() if SECRET_NAME.search(name) and len(value) >= SECRET_LENGTH)

    def remarks(self) -> tuple[str, ...]:
        """Return what a person should know of how this job is submitted: what is changed in it, who restarts it."""
        return ()

    def policy_annotations(self) -> dict[str, str]:
        """Return annotations of the job that set the policy when the task gives none (mission M7)."""
        return {}

    def serialize(self) -> dict[str, object]:
        """What the rendered-fields view of Airflow shows. Environment values and known secrets are never in it."""
        secrets = self.secrets()

        def masked(text: object) -> object:
            for secret in secrets:
                text = str(text).replace(secret, "***")
            return text

        shown = _render_tree(self.model_dump(mode="json"), masked)
        assert isinstance(shown, dict)
        if isinstance(shown.get("env"), dict):
            shown["env"] = dict.fromkeys(shown["env"], "***")
        return shown


# What the names of secret environment variables have in common, in the field's tools (GitHub's and Airflow's lists).
SECRET_NAME = re.compile(r"(?i)token|secret|passw|passphrase|credential|api_?key|access_?key|private|auth")
SECRET_LENGTH = 6  # shorter values would mask ordinary words; Airflow's masker has the same limit


def _render_tree(value: object, render: Callable[[object], object]) -> object:
    if isinstance(value, dict):
        return {key: _render_tree(item, render) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_render_tree(item, render) for item in value)
    return render(value) if isinstance(value, str) else value


# --- what goes in ------------------------------------------------------------------------------------------------


class Submission(Record):
    """One attempt, ready to be submitted. Two attempts of one job differ in these fields only, never in the job."""

    name: str  # deterministic: chain id + attempt number
    chain_id: str
    attempt: int
    tags: dict[str, str] = Field(default_factory=dict)  # dag, run, task, map_index: for people who list jobs
    excluded_nodes: tuple[str, ...] = ()  # never there
    soft_nodes: tuple[str, ...] = ()  # rather elsewhere: used only if no other is free
    preflight: dict[str, object] = Field(default_factory=dict)  # for the agent; empty: none
    resume_from: str = ""  # FT_RESUME_FROM: a hint for the training command, empty for the first attempt
    hold: float = 120.0  # seconds that a node waits for a decision after its command ended abnormally
    grace: float = 60.0  # seconds between TERM and KILL


class Order(Record):
    """A restart in place: the generation that it leads to, and the decision that it carries (agents echo it)."""

    generation: int
    digest: str
    note: dict[str, object] = Field(default_factory=dict)  # the decision's record, at most 4 kB
    by: str = ""


# --- what comes out ----------------------------------------------------------------------------------------------


class JobState(str, Enum):
    """What an observation can say about a job or one of its nodes (DESIGN §3)."""

    QUEUED = "queued"  # waits for nodes
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"  # at least one node's command ended abnormally and is kept for a decision
    ENDED = "ended"  # with a code
    GONE = "gone"  # the platform says that it does not exist


class NodeReport(Record):
    """One node of a job. ``lost`` is the platform's word that the node itself is gone."""

    node: str
    state: JobState
    generation: int = 0
    code: int | None = None  # the command's code; negative for a signal
    term: bool = False  # a TERM was seen before the end: a planned stop, whatever the code says
    lost: bool = False
    lost_why: str = ""
    agent: bool = True  # a live agent that takes orders
    exited_at: AwareDatetime | None = None
    spawned_at: AwareDatetime | None = None
    first_sign_at: AwareDatetime | None = None  # a child of the command vanished while the command lived
    unkillable: tuple[int, ...] = ()
    note: dict[str, object] | None = None  # the decision that the agent echoes
    notes: tuple[dict[str, object], ...] = ()  # the decisions of all orders that it was given, obeyed or not yet
    digest: str = ""


PERSON = "a person"
CLEAR = "a person's clear"  # of a task whose worker was at work: Airflow tells the next try nothing of it, the job does


class Observation(Record):
    """What was seen of a job at one moment."""

    state: JobState
    at: AwareDatetime
    nodes: tuple[NodeReport, ...] = ()
    code: int | None = None
    reason: str = ""
    cancelled: bool = False  # somebody cancelled it on purpose
    cancelled_by: str = ""  # PERSON (with the backend's own tools), or whoever of us

    @property
    def generation(self) -> int:
        """The highest generation that a node has reached."""
        return max((node.generation for node in self.nodes), default=0)


class LogChunk(Record):
    """Bytes of one log, from where the cursor stood. ``restarted`` says that the log began anew (rotation)."""

    source: str  # "n1/output", "n1/rank0.stderr"
    node: str | None = None
    data: bytes
    restarted: bool = False


class LogTail(Record):
    """The end of one log. ``offset`` is where in the whole log it begins.

    ``trust`` is ``PLATFORM`` for what the cluster itself says of the job (reasons, conditions, events).
    """

    source: str
    node: str | None = None
    data: bytes
    offset: int = 0
    path: str = ""
    trust: Trust = Trust.JOB


class StackGroup(Record):
    """Processes with an identical stack."""

    node: str
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    stack: str
    stopped: bool = False  # in state T: SIGSTOP, a debugger


class PoolView(Record):
    """The nodes that exist and are in service, for the cap on exclusions.

    ``free`` are those that nobody uses now; ``None`` where the backend can't tell.
    """

    nodes: tuple[str, ...] = ()
    free: tuple[str, ...] | None = None


class Capability(str, Enum):
    """What a backend can do. The conformance story for a missing one is skipped, with that reason."""

    RESTART_IN_PLACE = "restart_in_place"
    EXCLUDE_NODES = "exclude_nodes"
    DUMP_STACKS = "dump_stacks"
    PLATFORM_NODE_STATE = "platform_node_state"
    PROBE = "probe"  # a job on just these nodes, as a test of them


# --- errors ------------------------------------------------------------------------------------------------------


class BackendError(Exception):
    """The tree: ``UnreachableError`` (try again), ``SubmissionRefusedError`` (a person has to change something),
    ``ForeignJobError`` (the name is somebody else's), ``CancelIncompleteError`` (a cancel is owed)."""


class UnreachableError(BackendError):
    """We could not see: no answer, a broken answer, a time-out. It says nothing about the job."""


class SubmissionRefusedError(BackendError):
    """The backend will not take this job as it is. The message names the field, what was given, what is allowed."""


class ForeignJobError(BackendError):
    """Something exists under this name that is not ours. It is neither adopted nor touched."""


class CancelledJobError(BackendError):
    """The name was cancelled before: nothing will ever run under it again."""


class CancelIncompleteError(BackendError):
    """Something of the job is still there after the deadline, or could not be reached."""


# --- the protocol ------------------------------------------------------------------------------------------------

Cursors = dict[str, int]


@runtime_checkable
class Backend(Protocol):
    """One place where training runs."""

    name: ClassVar[str]
    can: ClassVar[frozenset[Capability]]
    poll_seconds: ClassVar[float]  # how often ``observe`` may be called

    def check(self, job: TrainingJob) -> None:
        """Raise ``SubmissionRefusedError`` for what can be known to be wrong before anything is created."""

    async def submit(self, job: TrainingJob, submission: Submission) -> JobRef:
        """Create the job, or adopt the one that this very submission created before. Exactly one exists afterwards.

        Raises ``SubmissionRefusedError``, ``ForeignJobError``, ``CancelledJobError`` or ``UnreachableError`` (then it
        may or may not exist: call it again, or ``find``).
        """

    async def find(self, name: str, chain_id: str, job: TrainingJob | None = None) -> JobRef | None:
        """Look a job up by its exact name, where ``job`` says (its cluster, its root folder).

        ``None``: it does not exist. Raises ``ForeignJobError``.
        """

    def secrets(self, ref: JobRef) -> Sequence[str]:
        """Return the secret values of a job (``TrainingJob.secrets``) if they can still be had. Kept in memory only."""

    async def observe(self, ref: JobRef) -> Observation:
        """Say what the job is doing. A job whose ``uid`` doesn't fit is ``GONE``."""

    async def read_logs(self, ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
        """Return what was written since ``cursors`` (source to byte offset), at most ``limit`` bytes in all."""

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        """Return the last ``limit`` bytes of every log of the job, afresh, also after it ended."""

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        """Return what the platform knows: exit codes, lost nodes, limits. Trust is the platform's where it is."""

    async def pool(self, ref_or_job: JobRef | TrainingJob) -> PoolView:
        """Return the nodes in service that such a job could use."""

    async def dump_stacks(self, ref: JobRef) -> Sequence[StackGroup]:
        """Dump the stacks of every rank, grouped. Only called for processes that are about to be killed."""

    async def restart_in_place(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Give the order to every node. Returns the nodes that refused (empty: all are, or were, restarted).

        The same order may be given any number of times. Raises ``UnreachableError``.
        """

    async def release(self, ref: JobRef, order: Order) -> Sequence[str]:
        """Tell all nodes that no restart will come. Returns the nodes that refuse, because another decision stands."""

    async def cancel(self, ref: JobRef, grace: float, by: str = "airflow_ft") -> None:
        """Stop the job (TERM, ``grace`` seconds, KILL) and return when nothing of it is left, ever again.

        Raises ``CancelIncompleteError`` or ``UnreachableError`` (then it is owed), or ``ForeignJobError`` for a job
        that is not ours: it is left alone, and nothing is owed. ``attempts.letting_go`` is who calls this.
        """

    async def fence(self, name: str, chain_id: str, job: TrainingJob | None = None) -> None:
        """Make sure that nothing runs under this name *and that nothing can be created under it later*.

        Raises like ``cancel``; a foreign job under the name is left alone.
        """
