"""What a backend brings to the conformance stories: a real system, and what the stories have to ask it.

To add a backend: derive from ``System``, and add it to ``SYSTEMS``. The stories (``test_conformance``) then run on it
as they are; one that needs a capability which the backend doesn't declare is skipped, with that reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from airflow_ft.agent import processes
from airflow_ft.backends import registry
from airflow_ft.backends.base import Backend, JobState, Observation, Submission, TrainingJob
from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import JobRef

T = TypeVar("T")
DEADLINE = 120.0  # for what takes a second on a quiet machine
CHAIN = "dag.run.task"


class System:
    """A backend on a real system, with a folder that the job's commands can write to."""

    name: str
    pool_nodes = 4

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.backend: Backend = registry.create_backend(self.name)

    def job(self, *command: str, **fields: Any) -> TrainingJob:
        """A job with this command."""
        raise NotImplementedError

    def lose_node(self, node: str) -> None:
        """Make a node fail, as the platform sees it."""
        raise NotImplementedError

    def repair_node(self, node: str) -> None:
        """Put it back."""
        raise NotImplementedError

    def processes(self, ref: JobRef) -> list[int]:
        """What of the job is alive, seen with other eyes than the backend's."""
        raise NotImplementedError

    async def clean_up(self) -> None:
        """Leave nothing behind."""
        raise NotImplementedError

    def submission(self, attempt: int = 0, **fields: Any) -> Submission:
        """An attempt of the test's chain."""
        given = {"name": f"{CHAIN}-a{attempt}", "chain_id": CHAIN, "attempt": attempt, "hold": 30.0, "grace": 5.0}
        return Submission(**{**given, **fields})

    async def submit(self, *command: str, attempt: int = 0, hold: float = 30.0, **fields: Any) -> JobRef:
        """Submit a command."""
        return await self.backend.submit(self.job(*command, **fields), self.submission(attempt, hold=hold))

    async def until(
        self,
        ref: JobRef,
        *states: JobState,
        where: Callable[[Observation], bool] = lambda _: True,
        deadline: float = DEADLINE,
    ) -> Observation:
        """Observe until the job is in one of the states, and `where` holds: its nodes get there one after another."""

        async def look() -> Observation | None:
            seen = await self.backend.observe(ref)
            return seen if seen.state in states and where(seen) else None

        return await eventually(look, f"{ref.name} is {[state.value for state in states]}", deadline)

    async def output(self, ref: JobRef) -> str:
        """Everything the job printed."""
        chunks, _ = await self.backend.read_logs(ref, {}, 10_000_000)
        return b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace")

    def runs(self, name: str = "runs") -> int:
        """How many times a command said so with ``echo >> runs``."""
        path = self.scratch / name
        return len(path.read_text().splitlines()) if path.exists() else 0


class LocalSystem(System):
    """Processes on this machine."""

    name = "local"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.root = str(scratch / "root")

    def job(self, *command: str, **fields: Any) -> TrainingJob:
        given = {"root": self.root, "workdir": str(self.scratch), "pool_nodes": self.pool_nodes}
        return LocalJob(command=command, **{**given, **fields})

    def lose_node(self, node: str) -> None:
        inventory.lose_node(self.root, "default", node, "power supply failed")

    def repair_node(self, node: str) -> None:
        inventory.repair_node(self.root, "default", node)

    def processes(self, ref: JobRef) -> list[int]:
        return processes.with_marker("FT_JOB", f"{ref.name}:{ref.uid}")

    async def clean_up(self) -> None:
        for listed in inventory.list_jobs(self.root):
            found = await self.backend.find(listed.name, listed.chain_id, LocalJob(command="-", root=self.root))  # type: ignore[call-arg]
            if found:
                await self.backend.cancel(found, 0)
                assert self.processes(found) == []


SYSTEMS: dict[str, type[System]] = {"local": LocalSystem}
# Backends whose conformance stories have a folder of their own: here every kind of job is a system.
ELSEWHERE = {"kubernetes": "tests/kubernetes", "foreign": "tests/backends/test_foreign.py"}


async def eventually(
    look: Callable[[], Awaitable[T | None]], what: str, deadline: float = DEADLINE, every: float = 0.05
) -> T:
    """The first true value; fails after the deadline."""
    end = time.monotonic() + deadline
    last: object = None
    while time.monotonic() < end:
        last = found = await look()
        if found:
            return found
        await asyncio.sleep(every)
    raise AssertionError(f"not within {deadline:.0f} s: {what}; last: {last!r}")


def names(nodes: Sequence[Any]) -> list[str]:
    """The names of node reports."""
    return [node.node for node in nodes]
