"""Runs the preflight of nodes as one probe job: the agent looks at each node, and then the job is over.

For where training itself can't be wrapped, and for nodes that nobody trains on just now. All nodes are in one job, so
that what they do together is looked at, too. What an item came to is read from the lines that the agent prints on every
backend; whom it blames follows the same rules as before training (``core.preflight``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_ft.agent.preflight_result import FAILED, WHOLE, Result, parse
from airflow_ft.backends.base import Backend, BackendError, TrainingJob
from airflow_ft.backends.preflight_reports import evidence
from airflow_ft.backends.time_limits import within
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Diagnosis, Evidence
from airflow_ft.core.preflight import PreflightSettings, diagnosis_of
from airflow_ft.diagnosis.probing import CALL_SECONDS, Nobody, Owner, Probe, Prober, some

MARGIN_SECONDS = 60.0  # beyond the preflight's own limit: the nodes' agents start, and end
LOG_BYTES = 256 * 1024  # some forty lines a node


@dataclass(frozen=True)
class PreflightReport:
    """What a preflight of nodes came to.

    :param nodes: the items of every node that was looked at to the end.
    :param untested: the nodes that have not, and why.
    :param diagnosis: what the failed items mean together; ``None`` if none failed.
    """

    nodes: Mapping[str, tuple[Result, ...]] = field(default_factory=dict)
    untested: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """The nodes that are to blame. What fails on every node is no node's fault."""
        return self.diagnosis.suspect_nodes if self.diagnosis else ()

    @property
    def good_nodes(self) -> tuple[str, ...]:
        """The nodes on which no item failed, and that nobody blames."""
        failed = {node for node, items in self.nodes.items() if any(one.status == FAILED for one in items)}
        return tuple(node for node in self.nodes if node not in failed and node not in self.bad_nodes)

    def but_untested(self, nodes: Sequence[str], why: str) -> PreflightReport:
        """Return the same with more nodes that were not tested."""
        return replace(self, untested={**self.untested, **dict.fromkeys(nodes, why)})

    def __str__(self) -> str:
        told = [self.diagnosis.text] if self.diagnosis else []
        if self.nodes and not told:
            told.append(f"The preflight found nothing wrong on {some(tuple(self.nodes))}.")
        for why in dict.fromkeys(self.untested.values()):
            told.append(f"Not tested: {some([node for node in self.untested if self.untested[node] == why])} ({why}).")
        return " ".join(told) or "There was no node to look at."


@dataclass(frozen=True)
class Preflighting:
    """One preflight. ``name`` is unique to it: its job is called so."""

    backend: Backend
    job: TrainingJob
    settings: PreflightSettings
    name: str
    chain_id: str
    pool: Sequence[str]
    now: Callable[[], datetime]
    say: Callable[[str], None]
    tags: Mapping[str, str] = field(default_factory=dict)  # for people who list jobs
    owner: Owner = field(default_factory=Nobody)

    async def look(self, nodes: Sequence[str]) -> PreflightReport:
        """Look at these nodes. Where that isn't possible the report says so: nothing is raised."""
        if not nodes:
            return PreflightReport()
        self.say(f"Preflight ({self.settings.set}) of {some(nodes)} begins; {self.settings.limit:.0f} s at most.")
        tags = {**self.tags, "preflight": self.name}
        prober = Prober(self.backend, self.job, self.chain_id, self.pool, tags, self.now, self.owner)
        probe = Probe(
            name=self.name,
            number=0,
            nodes=tuple(nodes),
            command=("true",),
            seconds=self.settings.limit + MARGIN_SECONDS,
            preflight=self.settings.for_agent("train"),
            whole=True,
        )
        try:
            async with prober.run(probe) as (ref, outcome):
                report = await self._report(ref, nodes, outcome.detail or "its preflight has not come to its end")
        except (BackendError, TimeoutError) as error:
            report = PreflightReport(untested=dict.fromkeys(nodes, str(error)))
        self.say(str(report))
        return report

    async def _report(self, ref: JobRef, nodes: Sequence[str], silent: str) -> PreflightReport:
        tails = await within(CALL_SECONDS, self.backend.log_tails(ref, LOG_BYTES))
        told: dict[str, dict[str, Result]] = {}
        for tail in tails:
            for result in parse(tail.data.decode("utf-8", "replace")) if tail.node in nodes else ():
                told.setdefault(str(tail.node), {})[result.item] = result
        whole = [node for node in nodes if WHOLE in told.get(node, {})]
        items = {node: tuple(one for one in told[node].values() if one.item != WHOLE) for node in whole}
        failed = await within(CALL_SECONDS, self.backend.evidence(ref))
        return PreflightReport(
            nodes=items,
            untested={node: silent for node in nodes if node not in items},
            diagnosis=diagnosis_of([*failed, *_by_lines(items, failed)], tuple(items)),
        )


def _by_lines(items: Mapping[str, Sequence[Result]], known: Sequence[Evidence]) -> list[Evidence]:
    """What the lines of nodes say whose report the backend can't read, or that never came to writing one."""
    reported = {one.node for one in known if (one.signature or "").startswith("preflight")}
    silent = {node: results for node, results in items.items() if node not in reported}
    return [one for node, results in silent.items() for one in evidence(node, {"items": [list(r) for r in results]})]
