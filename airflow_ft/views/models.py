"""The shapes of the plugin's API, version 1. What they say is made in ``answers``, ``chain_view`` and their neighbours.

Times are UTC seconds; numbers are raw; sentences are finished (the browser only places them, as text). Every list is
bounded, so that no log and no long chain makes a page heavy.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

API_VERSION = 1
Tone = Literal["calm", "ok", "warn", "bad"]
State = Literal[
    "starting",
    "running",
    "recovering",
    "recovered",
    "waits for a person",
    "stopped by fault tolerance",
    "failed",
    "succeeded",
    "unreadable",
]


class View(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class Check(View):
    """One of the four signs of a recovery; ``ok`` is null while it isn't known."""

    name: str
    ok: bool | None = None


class Answer(View):
    """One of the six answers that are always in the same place (mission S12)."""

    key: Literal["began", "gather", "restarts", "retry", "recovered", "cost"]
    label: str
    value: str
    detail: str = ""
    tone: Tone | None = None
    fault_class: str | None = None
    used: tuple[int, int] | None = None
    checks: tuple[Check, ...] = ()


class Todo(View):
    """What to do, in one line; there is always one."""

    tone: Tone
    text: str


class Phase(View):
    """A stretch of a lane."""

    kind: Literal["wait", "startup", "again", "train", "silence", "end"]
    start: float
    end: float


class Mark(View):
    """A point in a lane that is no fault of the run: a lost try, a notice, a clear."""

    at: float
    text: str


class FaultView(View):
    """A fault in few words. The whole of it is in ``RunDetail``."""

    fault_class: str
    confidence: float
    at: float
    node: str | None = None
    rank: int | None = None
    short: str
    text: str


class Passed(View):
    """Where the run's fault was overcome: which run passed the old step, when, and from which checkpoint."""

    by: str
    at: float
    step: int | None = None
    checkpoint: int | None = None
    seconds: float
    twice: int | None = None


class RunView(View):
    """One run of the training: a lane, and a row of the table."""

    id: str
    label: str
    attempt: int
    generation: int
    segment: int
    try_number: int
    job: str
    how: str = ""
    started: float
    ended: float | None = None
    live: bool = False
    phases: tuple[Phase, ...] = ()
    points: tuple[tuple[float, int], ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    checkpoint: int | None = None
    node_count: int = 0
    nodes_in: tuple[str, ...] = ()
    nodes_out: tuple[str, ...] = ()
    fault: FaultView | None = None
    done: str = ""
    passed: Passed | None = None
    outcome: str = ""
    ok: bool | None = None


class Segment(View):
    """The part of a chain between two decisions of a person."""

    number: int
    first_attempt: int
    at: float


class Gather(View):
    """How often a class or a node was met."""

    name: str
    faults: int
    charged: int = 0


class Burst(View):
    """A stretch with many more faults than the chain's own rate."""

    start: float
    end: float
    text: str


class Texts(View):
    """The sentences at the top."""

    headline: str
    sub: str
    todo: Todo
    answers: tuple[Answer, ...]


class May(View):
    """What this user may do here."""

    feedback: bool = False


class TaskKey(View):
    """Which task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


class ChainView(View):
    """A retry chain. ``runs`` are the newest; ``total_runs`` says how many there are."""

    version: int = API_VERSION
    task: TaskKey
    now: float
    state: State
    live: bool
    segment: int
    segments: tuple[Segment, ...]
    text: Texts
    runs: tuple[RunView, ...]
    total_runs: int
    classes: tuple[Gather, ...]
    nodes: tuple[Gather, ...]
    bursts: tuple[Burst, ...] = ()
    marks: tuple[Mark, ...] = ()
    unreadable: tuple[str, ...] = ()
    may: May = May()


class RunPage(View):
    """A page of the table, the newest run first. ``next`` is what ``before`` has to be for the following page."""

    version: int = API_VERSION
    total: int
    items: tuple[RunView, ...]
    next: int | None = None


class ChainRow(View):
    """A chain in a list: from its head alone."""

    task: TaskKey
    state: State
    headline: str
    started: float
    updated: float
    attempts: int
    used: tuple[int, int]
    marks: tuple[tuple[float, str], ...] = ()  # time and class of its faults, at most 40
    last_class: str | None = None
    last_node: str | None = None


class ChainPage(View):
    """A page of chains: those that run first, then the newest. ``next`` continues it as ``after``."""

    version: int = API_VERSION
    now: float
    items: tuple[ChainRow, ...]
    next: str | None = None
    looked_at: int


class RunChains(View):
    """All chains of one DAG run, with what they come to together."""

    version: int = API_VERSION
    now: float
    live: bool
    headline: str
    sub: str
    todo: Todo
    items: tuple[ChainRow, ...]
    more: bool = False


class NodeFault(View):
    """One fault on a node."""

    at: float
    fault_class: str
    task: TaskKey


class Quarantined(View):
    """That a node is kept out of the submissions to one cluster: until when, why, and by whose newest word.

    ``words`` is how many say so. Words of DAGs that the reader may not read are not among them.
    """

    cluster: str
    since: float
    until: float
    why: str
    by: str
    by_person: bool
    words: int


class NodeRow(View):
    """A node and its faults: a suspect, not a verdict."""

    name: str
    faults: int = 0
    classes: tuple[str, ...] = ()
    marks: tuple[NodeFault, ...] = ()
    excluded_by: int = 0
    quarantine: tuple[Quarantined, ...] = ()


class MayNodes(View):
    """What this user may do with nodes, and the clusters that are known."""

    edit: bool = False
    clusters: tuple[str, ...] = ()


class NodePage(View):
    """A page of nodes: those in quarantine first, then those with most faults.

    ``next`` is the ``offset`` of the following page.
    """

    version: int = API_VERSION
    days: int
    total: int
    items: tuple[NodeRow, ...]
    next: int | None = None
    may: MayNodes = MayNodes()


class NodeState(View):
    """What a node's quarantine is after somebody has changed it."""

    version: int = API_VERSION
    name: str
    quarantine: tuple[Quarantined, ...]


class Figures(View):
    """What fault tolerance came to over some days, in the DAGs that the user may read."""

    version: int = API_VERSION
    now: float
    days: int
    dags: int
    chains: int
    attempts: int
    complete: bool
    restarts: int
    free_restarts: int
    recovered: int
    judged: int
    lost_seconds: float
    training_seconds: float
    ettr: float | None
    median_seconds: float | None
    slow_seconds: float | None
    marked: int
    marked_wrong: int
    nodes: tuple[NodeRow, ...]
    may: MayNodes = MayNodes()
