"""Make incidents smaller so that they fit into a record or an event, by what can be missed, never by cutting JSON.

A list whose middle was cut out is no list of incidents any more. So what goes first is what a person needs least: the
evidence beyond the best, then the rules that were considered, then long texts; each from the oldest incident on. Who,
when, which class and what was decided always stay.
"""

from __future__ import annotations

from airflow_ft.core.chain import Incident
from airflow_ft.core.faults import Evidence
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.sanitise import size_of

EVIDENCE_KEPT = 2
TEXT_KEPT = 160


def slimmed(incidents: tuple[Incident, ...], limit_bytes: int) -> tuple[Incident, ...]:
    """Return the incidents, made smaller step by step until they fit, or until each is at its smallest."""
    kept = list(incidents)
    for make_smaller in (_fewer_evidence, _without_rules, _shorter_texts, _bare):
        for index, incident in enumerate(kept):
            if sum(size_of(one.to_record()) for one in kept) <= limit_bytes:
                return tuple(kept)
            kept[index] = make_smaller(incident)
    return tuple(kept)


def _fewer_evidence(incident: Incident) -> Incident:
    return incident.but(diagnosis=incident.diagnosis.but(evidence=incident.diagnosis.evidence[:EVIDENCE_KEPT]))


def _without_rules(incident: Incident) -> Incident:
    return incident.but(decision=incident.decision.but(considered=()), diagnosis=incident.diagnosis.but(evidence=()))


def _shorter_texts(incident: Incident) -> Incident:
    diagnosis, decision = incident.diagnosis, incident.decision
    root: Evidence | None = diagnosis.root.but(text=_cut(diagnosis.root.text)) if diagnosis.root else None
    return incident.but(
        diagnosis=diagnosis.but(text=_cut(diagnosis.text), advice=_cut(diagnosis.advice), root=root),
        decision=decision.but(reason=_cut(decision.reason)),
    )


def _bare(incident: Incident) -> Incident:
    diagnosis = incident.diagnosis.but(root=None, advice="", suspects=incident.diagnosis.suspects[:4])
    return incident.but(diagnosis=diagnosis, progress=_numbers(incident.progress), recovery=_result(incident.recovery))


def _numbers(progress: Progress | None) -> Progress | None:
    """What the chain needs: how far it came, and where its last checkpoint is."""
    if progress is None:
        return None
    path = progress.checkpoint_path
    return Progress(
        step=progress.step,
        checkpoint=progress.checkpoint,
        checkpoint_path=path if len(path or "") <= TEXT_KEPT else None,
    )


def _result(recovery: Recovery | None) -> Recovery | None:
    return None if recovery is None else Recovery(state=recovery.state, text=_cut(recovery.text))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_KEPT else f"{text[: TEXT_KEPT - 1]}…"
