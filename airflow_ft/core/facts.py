"""What a diagnosis is made of: the facts that were gathered about one failed run.

Fed by ``diagnosis.gather`` and the watch of the attempt, feeds ``classify``. Plain values; they are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_ft.core.faults import Evidence, Trust
from airflow_ft.core.hang import HangVerdict


@dataclass(frozen=True)
class LogText:
    """The tail of one log. ``source`` is its name ("n1/output"), ``node`` the node that it was written on.

    ``lines`` are numbered lines of a log that was too large to be kept: then ``data`` is empty. ``trust`` is
    ``PLATFORM`` for what the kernel or the cluster wrote itself.
    """

    source: str
    data: bytes = b""
    node: str | None = None
    trust: Trust = Trust.JOB
    lines: tuple[tuple[int, str], ...] | None = None


class Stack(Protocol):
    """Processes with an identical stack (``backends.base.StackGroup``)."""

    @property
    def node(self) -> str:
        """The node that they run on."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their global ranks, as far as they are known."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Their process ids."""

    @property
    def stack(self) -> str:
        """The stack as text."""

    @property
    def stopped(self) -> bool:
        """Whether they are stopped (SIGSTOP, a debugger)."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that is known about one failed run.

    :param logs: tails of all logs, as bytes.
    :param evidence: what the backend knows: exit codes, lost nodes, limits.
    :param hang: the verdict of the hang detector, if that is why the run was ended.
    :param stacks: grouped stacks, taken before anything was killed.
    :param planned_stop: why the end was planned (TERM, preemption, drain); ``None`` if it wasn't.
    :param first_step_seen: whether training made a step; ``None``: not known.
    :param seconds_since_start: of this run, until it failed.
    :param nodes: the nodes of this attempt.
    :param gone: the platform says that the job does not exist any more.
    :param good_logs: logs of the last attempt that went well, if they are there: what it said, too, is no news.
    :param scheduler_in_log: the scheduler writes into the job's log, so that a line there may excuse an end as planned.
    """

    logs: tuple[LogText, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    hang: HangVerdict | None = None
    stacks: Sequence[Stack] = ()
    planned_stop: str | None = None
    first_step_seen: bool | None = None
    seconds_since_start: float | None = None
    nodes: tuple[str, ...] = ()
    gone: bool = False
    good_logs: tuple[LogText, ...] = ()
    scheduler_in_log: bool = False
