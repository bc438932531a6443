"""A cluster in memory: nodes, and jobs that follow a script in simulated time.

A script is a list of ``Run``: what generation 0, 1, 2… of a job does. The cluster remembers everything that was done to
it (``created``, ``cancels``, ``orders``), counts what must never happen (``violations``), and can be told to lag behind
creation, to be unreachable, to refuse, never to answer, to lose nodes, and to fail half-way through an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from airflow_ft.backends.base import PERSON, JobState, Order, Submission
from airflow_ft.core.chain import JobRef


@dataclass(frozen=True)
class Run:
    """What one generation does: steps ``first`` to ``last``, then an end.

    ``code``: how it ends; 0 is success, ``None`` a hang. ``words``: what it prints before. ``saves``: every so many
    steps a checkpoint. ``term``: it says that it was told to end.
    """

    first: int = 1
    last: int = 20
    code: int | None = 0
    words: str = ""
    every: float = 1.0
    startup: float = 2.0
    saves: int = 10
    total: int | None = None
    term: bool = False

    @property
    def seconds(self) -> float:
        """How long it takes to its end (or to the silence)."""
        return self.startup + self.every * (self.last - self.first + 1)

    def text(self, generation: int, age: float) -> str:
        """What it has printed after ``age`` seconds."""
        lines = [f'ft-agent abc {{"event":"start","generation":{generation}}}']
        if self.first > 1 and age >= self.startup:
            lines.append(f"resumed from checkpoint step {self.first - 1}")
        count = max(0, int((age - self.startup) / self.every)) if age >= self.startup else 0
        of = f"/{self.total}" if self.total else ""
        for step in range(self.first, min(self.first + count, self.last + 1)):
            lines.append(f"step {step}{of} loss=2.5")
            if self.saves and step % self.saves == 0:
                lines.append(f"saved checkpoint step {step} (/ckpt/{step}.pt)")
        if age >= self.seconds and self.code is not None and self.words:
            lines.append(self.words)
        return "".join(f"{line}\n" for line in lines)


@dataclass
class Node:
    name: str
    generation: int = 0
    digest: str = ""
    note: dict[str, object] | None = None
    notes: list[dict[str, object]] = field(default_factory=list)
    released: bool = False
    joined: float = 0.0  # when its newest generation began
    early: bool = False  # it failed at once, before the others had joined


@dataclass
class Job:
    """One job on the cluster."""

    ref: JobRef
    submission: Submission
    needs: int
    script: list[Run]
    nodes: list[Node] = field(default_factory=list)
    started: float | None = None  # of the newest generation
    said: str = ""  # what earlier generations have printed
    held_until: float = 0.0  # for nodes that have not joined the newest generation
    closed_by: str = ""
    closed_at: float = 0.0
    forgotten: bool = False  # the platform doesn't know it any more

    @property
    def generation(self) -> int:
        return max((node.generation for node in self.nodes), default=0)

    @property
    def run(self) -> Run:
        return self.script[min(self.generation, len(self.script) - 1)]


class Cluster:
    """Everything that outlives a process of ours."""

    def __init__(self, now: Callable[[], datetime], nodes: int = 4, scripts: Sequence[list[Run]] = ()) -> None:
        self._now = now
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.lost: dict[str, float] = {}  # since when
        self.jobs: dict[str, Job] = {}
        self.foreign: set[str] = set()
        self.closed: set[str] = set()  # names that nothing can be created under
        self.scripts = list(scripts) or [[Run()]]  # of the first, second… job that is created; the last one repeats
        self.created: list[str] = []
        self.cancels: list[str] = []
        self.orders: list[tuple[str, int, str, str]] = []  # node, generation, digest, action: as accepted
        self.violations: list[str] = []
        self.epoch = now()
        # How it behaves just now.
        self.unreachable: set[str] = set()  # names of methods, or "*"
        self.answers_lost: set[str] = set()  # it does what is asked, and then seems unreachable
        self.silent: set[str] = set()  # never answers
        self.lag_seconds = 0.0
        self.refusal = ""
        self.cancel_fails = False
        self.agents = True
        self.stubborn: set[str] = set()  # nodes that refuse orders
        self.orders_reach = 1_000  # nodes that an order comes to before the network breaks
        self.early_failures = 0  # so often a node fails that has joined a generation before the others
        self.calls: list[str] = []

    def seconds(self) -> float:
        return (self._now() - self.epoch).total_seconds()

    def now(self) -> datetime:
        return self._now()

    def live(self, chain: str | None = None) -> list[Job]:
        """Jobs of which something runs, is held, or waits."""
        jobs = [job for job in self.jobs.values() if chain in (None, job.ref.chain_id)]
        return [job for job in jobs if self.state(job) not in (JobState.ENDED, JobState.GONE)]

    @contextmanager
    def outage(self, *methods: str) -> Iterator[None]:
        self.unreachable |= set(methods or ("*",))
        try:
            yield
        finally:
            self.unreachable -= set(methods or ("*",))

    def lose(self, node: str) -> None:
        """Take a node away, with all that runs on it."""
        self.lost.setdefault(node, self.seconds())

    def person_cancels(self, name: str) -> None:
        job = self.jobs[name]
        job.closed_by, job.closed_at = PERSON, self.seconds()

    # --- what jobs do --------------------------------------------------------------------------------------------

    def create(self, submission: Submission, needs: int) -> Job:
        others = [job.ref.name for job in self.live(submission.chain_id)]
        if others:
            self.violations.append(f"{submission.name} was created while {others} lived")
        if submission.name in self.created:
            self.violations.append(f"{submission.name} was created twice")
        script = self.scripts[min(len(self.created), len(self.scripts) - 1)]
        self.created.append(submission.name)
        ref = JobRef(
            backend="fake",
            name=submission.name,
            uid=f"uid-{len(self.created)}",
            chain_id=submission.chain_id,
            attempt=submission.attempt,
            submitted_at=self.now(),
        )
        job = self.jobs[submission.name] = Job(ref, submission, needs, list(script))
        self.place(job)
        return job

    def place(self, job: Job) -> None:
        taken = {node.name for other in self.live() for node in other.nodes if other is not job}
        excluded = job.submission.excluded_nodes
        free = [n for n in self.nodes if n not in self.lost and n not in excluded and n not in taken]
        if not job.nodes and not job.closed_by and len(free) >= job.needs:
            job.nodes = [Node(name) for name in free[: job.needs]]
            job.started = self.seconds()

    def age(self, job: Job) -> float:
        """Seconds that the newest generation has run; it begins when the last node has joined it."""
        if job.started is None or any(node.generation != job.generation for node in job.nodes):
            return -1.0
        stops = [self.lost[node.name] for node in job.nodes if node.name in self.lost]  # its peers wait for it
        return min([self.seconds(), *stops, *([job.closed_at] if job.closed_by else [])]) - job.started

    def state(self, job: Job) -> JobState:
        if job.forgotten:
            return JobState.GONE
        if not job.nodes:
            return JobState.GONE if job.closed_by else JobState.QUEUED
        run, age = job.run, self.age(job)
        if any(node.early for node in job.nodes) and not job.closed_by:
            return JobState.ENDED if all(node.released for node in job.nodes) else JobState.HELD
        if job.closed_by and (run.code is None or age < run.seconds):
            return JobState.ENDED
        if run.code is None or age < run.seconds:
            released = all(node.released for node in job.nodes)
            waits = age < 0 and any(self.behind(job, node) is JobState.HELD for node in job.nodes)
            joining = JobState.HELD if waits else JobState.STARTING
            return JobState.ENDED if released else joining if age < 0 else JobState.RUNNING
        held = age < run.seconds + job.submission.hold and not all(node.released for node in job.nodes)
        return JobState.HELD if run.code and self.agents and held and not job.closed_by else JobState.ENDED

    def behind(self, job: Job, node: Node) -> JobState | None:
        """What a node does that has not joined the newest generation: it is held, until its hold is over."""
        if node.generation == job.generation:
            return None
        return JobState.HELD if self.seconds() < job.held_until else JobState.ENDED

    def code(self, job: Job) -> int | None:
        ran_out = job.run.code is not None and self.age(job) >= job.run.seconds
        return job.run.code if ran_out else -15

    def text(self, job: Job) -> str:
        return job.said + job.run.text(job.generation, self.age(job)) if job.started is not None else job.said

    def give(self, job: Job, node: Node, order: Order, action: str) -> bool:
        """One agent's answer to an order (DESIGN §7): by generation and digest, as often as it is asked."""
        if node.name in self.lost or node.name in self.stubborn or not self.agents:
            return False
        same = any(o[:3] == (f"{job.ref.name}/{node.name}", order.generation, order.digest) for o in self.orders)
        if same and action == ("release" if node.released else "restart"):
            return True
        if order.generation <= node.generation or node.released:
            return False
        if self.state(job) not in (JobState.RUNNING, JobState.HELD, JobState.STARTING):
            return False
        if action == "restart":
            if job.generation < order.generation:  # the first one: the others are killed by it
                job.held_until = (job.started or 0.0) + job.run.seconds + job.submission.hold
                job.said, job.started = self.text(job), self.seconds()
            node.generation, node.note, node.digest = order.generation, order.note, order.digest
            node.notes.append(order.note)
            node.joined, node.early = self.seconds(), False
            if self.early_failures and any(other.generation < node.generation for other in job.nodes):
                node.early, self.early_failures = True, self.early_failures - 1
            job.started = self.seconds()
        node.released = action == "release"
        self.orders.append((f"{job.ref.name}/{node.name}", order.generation, order.digest, action))
        return True
