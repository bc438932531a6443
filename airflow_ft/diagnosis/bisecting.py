"""Runs a bisect: each group of the planner becomes a probe job on just these nodes, through the backend.

A probe job is a job like any other: its name is deterministic, so whoever repeats a search after a crash adopts the
tests that have run. The groups of a round run at the same time. What one test came to:

=====================================  ==========
the job ended with 0                   passed
it ended with another code             failed
it still runs after ``test_seconds``   failed: it hangs
it never started, can't be seen, gone  lost: says nothing
it was stopped, and no code is known   lost: says nothing
=====================================  ==========
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.backends.base import Backend, BackendError, CancelledJobError, JobState, Submission, TrainingJob
from airflow_ft.backends.time_limits import within
from airflow_ft.core.bisect import Bisect, BisectResult, Group
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.chain import JobRef

CALL_SECONDS = 60.0
START_SECONDS = 120.0  # a node that is free starts in seconds; one that isn't is somebody else's
GRACE_SECONDS = 5.0
SHOWN = 8


@dataclass(frozen=True)
class Bisecting:
    """One search. ``name`` is unique to it: probe jobs are named after it."""

    backend: Backend
    job: TrainingJob
    settings: BisectSettings
    name: str
    chain_id: str
    pool: tuple[str, ...]
    now: Callable[[], datetime]
    say: Callable[[str], None]

    async def search(self, nodes: Sequence[str]) -> BisectResult:
        """Search the culprits among these nodes. Raises ``BisectError`` if they are too few."""
        planner = Bisect(
            nodes,
            group_min=self.settings.group_min,
            detection_probability=self.settings.detection_probability,
            max_tests=self.settings.max_tests,
        )
        began = self.now()
        self.say(f"Bisect of {len(planner.nodes)} nodes begins; {self.settings.seconds:.0f} s at most.")
        while groups := planner.next_round():
            answers = await asyncio.gather(*(self._test(group) for group in groups))
            for group, (failed, detail) in zip(groups, answers, strict=True):
                planner.report(group, failed, detail)
            self._tell(planner, groups, [failed for failed, _ in answers])
            if (self.now() - began).total_seconds() > self.settings.seconds:
                self.say(f"Bisect: the time budget of {self.settings.seconds:.0f} s is used up.")
                break
        result = planner.result
        self.say(f"Bisect: {result}.")
        return result

    def _tell(self, planner: Bisect, groups: Sequence[Group], failed: Sequence[bool | None]) -> None:
        words = {True: "failed", False: "passed", None: "lost"}
        told = "; ".join(f"{_some(group.nodes)} {words[answer]}" for group, answer in zip(groups, failed, strict=True))
        left = planner.suspects
        self.say(f"Bisect, round {groups[0].round}: {told}. Suspects left: {_some(left) if left else 'none'}.")

    async def _test(self, group: Group) -> tuple[bool | None, str]:
        others = tuple(node for node in self.pool if node not in group.nodes)
        submission = Submission(
            name=f"{self.name}-{group.number}-{_digest(group.nodes)}",
            chain_id=self.chain_id,
            attempt=group.number,
            tags={"bisect": self.name},
            excluded_nodes=others,
            preflight={} if self.settings.command else {"set": "standard", "on_error": "train"},
            hold=0.0,
            grace=GRACE_SECONDS,
        )
        try:
            return await self._outcome(await self._begun(self._probe(len(group.nodes)), submission))
        except (BackendError, TimeoutError) as error:
            return None, str(error)

    async def _begun(self, probe: TrainingJob, submission: Submission) -> JobRef:
        """Start a test, or find it: one that failed was stopped afterwards, and no name is used twice."""
        try:
            return await within(CALL_SECONDS, self.backend.submit(probe, submission))
        except CancelledJobError:
            ref = await within(CALL_SECONDS, self.backend.find(submission.name, self.chain_id, probe))
            if ref is None:
                raise
            return ref

    def _probe(self, nodes: int) -> TrainingJob:
        command = self.settings.command or ("true",)
        return self.job.model_copy(update={"command": command, "nodes": nodes})

    async def _outcome(self, ref: JobRef) -> tuple[bool | None, str]:
        backend, began, started = self.backend, self.now(), None
        try:
            while True:
                seen = await within(CALL_SECONDS, backend.observe(ref))
                if seen.state is JobState.ENDED or any(node.code for node in seen.nodes):
                    code = seen.code or next((node.code for node in seen.nodes if node.code), 0)
                    if seen.cancelled and not code:
                        return None, "it was stopped before it had an answer"
                    return bool(code), "" if not code else f"code {code}"
                if seen.state is JobState.GONE:
                    return None, seen.reason
                if seen.state is not JobState.QUEUED:
                    started = started or self.now()
                if started is None and (self.now() - began).total_seconds() > START_SECONDS:
                    return None, f"never started: {seen.reason}"
                if started is not None and (self.now() - started).total_seconds() > self.settings.test_seconds:
                    return True, f"still running after {self.settings.test_seconds:.0f} s"
                await asyncio.sleep(backend.poll_seconds)
        finally:
            await within(CALL_SECONDS, backend.cancel(ref, 0.0))


def _digest(nodes: Sequence[str]) -> str:
    return hashlib.sha256(",".join(nodes).encode()).hexdigest()[:8]


def _some(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return ", ".join(nodes[:SHOWN]) + more
