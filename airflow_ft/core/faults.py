"""Faults: what was observed, what it is taken for, and who is suspected.

Evidence is one observed fact. A diagnosis is evidence reduced to one fault class with a root line, suspects, a
confidence and advice. It is a help for the decision, not a confirmed root cause.
"""

from __future__ import annotations

from enum import Enum

from pydantic import AwareDatetime, Field

from airflow_ft.core.records import Record


class FaultClass(str, Enum):
    """The eight fault classes (mission S13)."""

    HW_NODE = "HW_NODE"  # GPU, hardware, driver, ECC, Xid, segfault, a lost node
    NET_FABRIC = "NET_FABRIC"  # NCCL, InfiniBand, RDMA, RoCE, network
    OOM_HOST = "OOM_HOST"
    OOM_GPU = "OOM_GPU"  # retrying doesn't cure it
    COMM_HANG = "COMM_HANG"
    APP_ERROR = "APP_ERROR"
    ENV_ERROR = "ENV_ERROR"  # image, dependency, environment, external access, disk
    UNKNOWN = "UNKNOWN"

    @classmethod
    def _missing_(cls, value: object) -> FaultClass:
        return cls.UNKNOWN


class Role(str, Enum):
    """What a piece of evidence says about the cause (mission P2)."""

    ROOT = "root"  # this is where it began
    CASCADE = "cascade"  # what a peer shows when someone else died: look elsewhere
    AMBIGUOUS = "ambiguous"  # a cause only if nothing better is found
    ADVICE = "advice"  # tells a person something, decides nothing

    @classmethod
    def _missing_(cls, value: object) -> Role:
        return cls.AMBIGUOUS


class Retry(str, Enum):
    """Whether running again can help."""

    USEFUL = "useful"
    USELESS = "useless"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Retry:
        return cls.UNKNOWN


class Trust(str, Enum):
    """Who says so. Only the platform's word and a preflight may blame a node beyond its own chain (DESIGN §7)."""

    JOB = "job"  # logs and agent: same-uid code could have written it
    PLATFORM = "platform"  # the cluster, the kernel read outside the job

    @classmethod
    def _missing_(cls, value: object) -> Trust:
        return cls.JOB


# The source of evidence that a node, though it is in service, couldn't start what others could.
CANT_START_HERE = "start"
NO_START = "platform.no_start"
# Signatures of a node that calls itself ready and will not run a pod. One chain's word on that is not enough to keep
# it from others: three are (story EXC-03).
REFUSALS = ("k8s.refused", NO_START)


class Evidence(Record):
    """One observed fact.

    ``source`` names where it was seen (a log's name, ``exit``, ``node``, ``hang``), ``line`` is the 1-based line in it.
    ``at`` is when it happened if that is known. ``code`` is an exit code, negative for a signal.
    """

    source: str
    text: str = ""
    line: int | None = None
    at: AwareDatetime | None = None
    node: str | None = None
    rank: int | None = None
    code: int | None = None
    signature: str | None = None
    role: Role = Role.AMBIGUOUS
    fault_class: FaultClass | None = None
    trust: Trust = Trust.JOB


class Suspect(Record):
    """Someone who may be the culprit. ``kind`` is ``node``, ``rank``, ``gpu`` or ``address``."""

    kind: str
    name: str


class StackPlace(Record):
    """Where some ranks stood when a hang was found. ``frames`` are the main thread's, the innermost first."""

    who: str
    frames: tuple[str, ...] = ()
    odd: bool = False  # suspected, or stopped: not where the others are
    stopped: bool = False  # SIGSTOP, a debugger


class Diagnosis(Record):
    """Evidence reduced to a class. ``disruption`` names a planned end (preemption, TERM): nobody's fault, free."""

    fault_class: FaultClass
    text: str  # one sentence for people: what happened, where
    root: Evidence | None = None
    suspects: tuple[Suspect, ...] = ()
    confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    retry: Retry = Retry.UNKNOWN
    signature: str | None = None
    second_class: FaultClass | None = None
    advice: str = ""
    disruption: str | None = None
    at_start: bool = False  # every rank failed within seconds of the start, before a first step (mission P11)
    evidence: tuple[Evidence, ...] = ()
    stacks: tuple[StackPlace, ...] = ()  # of a hang, the odd ones first; a few

    @property
    def suspect_nodes(self) -> tuple[str, ...]:
        """The nodes among the suspects."""
        return tuple(s.name for s in self.suspects if s.kind == "node")

    @property
    def refused_by(self) -> str | None:
        """The node that calls itself ready and refused to run the job's part; ``None`` if that isn't what happened."""
        told = self.signature in REFUSALS and self.root is not None and self.root.trust is Trust.PLATFORM
        return self.root.node if told and self.root is not None else None

    def cause(self) -> tuple[str, str]:
        """What makes two faults "the same root cause": class and signature, else the root line without numbers."""
        if self.signature:
            return self.fault_class.value, self.signature
        text = self.root.text if self.root else self.text
        return self.fault_class.value, "".join(c for c in text if not c.isdigit())[:200]
