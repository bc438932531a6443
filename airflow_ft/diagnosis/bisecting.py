"""Runs a bisect: each group of the planner becomes a probe job on just these nodes, through the backend (``probing``).

A probe job's name is deterministic: whoever repeats a search after a crash adopts the tests that have run. The groups
of a round run at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from airflow_ft.backends.base import Backend, BackendError, TrainingJob
from airflow_ft.core.bisect import Bisect, BisectResult, Group
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.diagnosis.probing import Nobody, Outcome, Owner, Probe, Prober, some

STANDARD = PreflightSettings(set="standard")


@dataclass(frozen=True)
class Bisecting:
    """One search. ``name`` is unique to it: probe jobs are named after it.

    ``look`` is the preflight that a test is where the settings have no command.
    """

    backend: Backend
    job: TrainingJob
    settings: BisectSettings
    name: str
    chain_id: str
    pool: tuple[str, ...]
    now: Callable[[], datetime]
    say: Callable[[str], None]
    tags: Mapping[str, str] = field(default_factory=dict)  # for people who list jobs
    look: PreflightSettings = STANDARD
    owner: Owner = field(default_factory=Nobody)

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
        told = "; ".join(f"{some(group.nodes)} {words[answer]}" for group, answer in zip(groups, failed, strict=True))
        left = planner.suspects
        self.say(f"Bisect, round {groups[0].round}: {told}. Suspects left: {some(left) if left else 'none'}.")

    async def _test(self, group: Group) -> Outcome:
        tags = {**self.tags, "bisect": self.name}
        prober = Prober(self.backend, self.job, self.chain_id, self.pool, tags, self.now, self.owner)
        probe = Probe(
            name=f"{self.name}-{group.number}-{_digest(group.nodes)}",
            number=group.number,
            nodes=group.nodes,
            command=self.settings.command or ("true",),
            seconds=self.settings.test_seconds,
            preflight={} if self.settings.command else self.look.for_agent("train"),
        )
        try:
            async with prober.run(probe) as (_, outcome):
                return outcome
        except (BackendError, TimeoutError) as error:
            return Outcome(None, str(error))


def looking(preflight: PreflightSettings) -> PreflightSettings:
    """Return the preflight of a policy as a test of nodes: what it leaves out, and its thresholds, hold there, too."""
    return preflight if preflight.set in ("standard", "deep") else preflight.model_copy(update={"set": "standard"})


def _digest(nodes: Sequence[str]) -> str:
    return hashlib.sha256(",".join(nodes).encode()).hexdigest()[:8]
