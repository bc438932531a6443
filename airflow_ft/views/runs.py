"""The runs of a chain: each generation of each attempt, with its fault, and whether training recovered from it.

The order of facts that the table, the lanes and the answers share; pure. A restart in place is a run of its own,
because people ask what happened at each fault, not which of Airflow's tries it fell into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_ft.core.chain import Attempt, Incident
from airflow_ft.core.decisions import Decision
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery, begin, follow
from airflow_ft.views.records import StoredChain

DISRUPTION = "DISRUPTION"  # shown where a class would be: an end that was nobody's fault


@dataclass(frozen=True)
class Run:
    """One run of the training.

    ``recovery`` is what became of *its* fault, seen in the run after it; ``after`` is the decision that led to it.
    """

    attempt: Attempt
    generation: int
    started: datetime
    ended: datetime | None  # None: it runs, or nobody saw its end
    progress: Progress | None
    nodes: tuple[str, ...]
    live: bool
    incident: Incident | None = None
    recovery: Recovery | None = None
    after: Decision | None = None

    @property
    def label(self) -> str:
        """Its number: "0", or "0 / 1" for generation 1 of attempt 0."""
        return f"{self.attempt.number}" if self.generation == 0 else f"{self.attempt.number} / {self.generation}"

    @property
    def fault_class(self) -> str | None:
        """The class of its fault, or ``DISRUPTION``."""
        if self.incident is None:
            return None
        return DISRUPTION if self.incident.diagnosis.disruption else self.incident.diagnosis.fault_class.value

    @property
    def died_at(self) -> datetime | None:
        """When it last made a step, or when its fault was first seen."""
        if self.incident is None:
            return self.ended
        seen = self.progress.at if self.progress is not None and self.progress.step is not None else None
        return seen or self.incident.began_at or self.incident.detected_at

    @property
    def fault_node(self) -> str | None:
        """The node of its fault: a suspect, else where the root line was."""
        if self.incident is None:
            return None
        root = self.incident.diagnosis.root
        return next(iter(self.incident.diagnosis.suspect_nodes), root.node if root else None)


def runs(stored: StoredChain) -> list[Run]:
    """Return the chain's runs, the oldest first."""
    made: list[Run] = []
    for position, attempt in enumerate(stored.attempts):
        following = stored.attempts[position + 1] if position + 1 < len(stored.attempts) else None
        previous = stored.attempts[position - 1] if position else None
        came = previous.decision if previous is not None and previous.segment == attempt.segment else None
        made += _of_attempt(attempt, _incidents(attempt, stored), following, came, stored)
    return made


def _incidents(attempt: Attempt, stored: StoredChain) -> list[Incident]:
    incidents = list(attempt.incidents)
    if attempt.number == stored.chain.open:
        known = {incident.generation for incident in incidents}
        incidents += [incident for incident in stored.live_incidents if incident.generation not in known]
    return incidents


def _of_attempt(
    attempt: Attempt, incidents: list[Incident], following: Attempt | None, came: Decision | None, stored: StoredChain
) -> Iterator[Run]:
    running = attempt.number == stored.chain.open
    nodes = stored.live_nodes if running and stored.live_nodes else attempt.nodes
    started = attempt.created_at
    for incident in incidents:
        last = incident is incidents[-1]
        if last and incident.decision.ends_attempt:
            recovery = _carried_on(following, incident, stored) if following else None
        else:
            recovery = _followed(incident.recovery, incident, stored) if last and running else incident.recovery
        yield Run(
            attempt=attempt,
            generation=incident.generation,
            started=started,
            ended=incident.detected_at,
            progress=incident.progress,
            nodes=nodes,
            live=False,
            incident=incident,
            recovery=_with_loss(recovery, incident),
            after=came,
        )
        started, came = incident.ordered_at or incident.detected_at, incident.decision
    if not incidents or not incidents[-1].decision.ends_attempt:
        yield Run(
            attempt=attempt,
            generation=incidents[-1].decision.generation if incidents else 0,
            started=started,
            ended=attempt.ended_at,
            progress=stored.live if running else attempt.progress,
            nodes=nodes,
            live=running and not stored.task_ended,
            after=came,
        )


def _carried_on(following: Attempt, incident: Incident, stored: StoredChain) -> Recovery | None:
    mine = next((one.segment for one in stored.attempts if one.number == incident.attempt), None)
    if following.segment != mine and following.recovery is None:
        return None  # a person began anew: it has to show no recovery
    if following.number != stored.chain.open or _incidents(following, stored):
        return following.recovery
    return _followed(following.recovery, incident, stored)


def _followed(recovery: Recovery | None, incident: Incident, stored: StoredChain) -> Recovery | None:
    """Return what the live progress makes of a recovery: its record is written only when the run is over."""
    died = incident.progress or Progress()
    recovery = recovery or begin(died.step, died.checkpoint, died.loss)
    if stored.live is None:
        return recovery
    seen = follow(recovery, stored.live)
    said = stored.live_recovery  # by the watch, which sees every line: its word counts
    if said is not None and seen.state != said:
        passed = stored.live.step if said == "recovered" else None
        seen = seen.but(state=said, passed_step=passed, loss_after=stored.live.loss, text="")
    if seen is recovery or seen.state != "recovered":
        return seen
    return seen.but(passed_at=_passed_at(seen, stored.live))


def _with_loss(recovery: Recovery | None, incident: Incident) -> Recovery | None:
    """A resubmission's record doesn't know the loss before it; the incident does."""
    loss = incident.progress.loss if incident.progress else None
    if recovery is None or recovery.loss_before is not None or loss is None:
        return recovery
    return recovery.but(loss_before=loss)


def _passed_at(recovery: Recovery, live: Progress) -> datetime | None:
    """Return when the old step was passed: on the line from the first step to the newest, as steps are not kept."""
    first, begun, now, step = live.first_step, live.first_step_at, live.at, live.step
    if first is None or begun is None or now is None or step is None or recovery.died_at_step is None:
        return live.at
    share = (recovery.died_at_step + 1 - first) / max(1, step - first)
    return begun + (now - begun) * min(1.0, max(0.0, share))
