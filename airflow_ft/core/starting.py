"""Did all ranks fail alike before a first step? Then it is code or environment, never one node. Feeds ``classify``."""

from __future__ import annotations

import re

from airflow_ft.core import naming_suspects as suspects
from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import Diagnosis, FaultClass, Trust
from airflow_ft.core.findings import Reading
from airflow_ft.core.prefixes import Who

_DIGITS = re.compile(r"[\d.]+")
SOON_SECONDS = 120.0  # "within seconds of the start": imports and rendezvous of real jobs take up to two minutes


def alike_at_start(facts: Facts, reading: Reading, diagnosis: Diagnosis) -> Diagnosis:
    """Say whether all ranks failed alike before a first step: then it is code or environment, never one node."""
    early = facts.seconds_since_start is None or facts.seconds_since_start <= SOON_SECONDS
    if _everywhere(reading, diagnosis):
        return diagnosis.but(text=_of_all(diagnosis, reading), suspects=())
    if facts.first_step_seen is not False or not early or facts.hang or diagnosis.root is None:
        return diagnosis
    if diagnosis.disruption or diagnosis.root.trust is Trust.PLATFORM or not _all_alike(reading, diagnosis):
        return diagnosis
    suspected = diagnosis.fault_class in (FaultClass.HW_NODE, FaultClass.UNKNOWN)
    if suspected and len(reading.ranks) < 2 and len(facts.nodes) < 2:
        return diagnosis  # one process that crashed or was killed is alike to nobody
    return diagnosis.but(
        at_start=True,
        text=_of_all(diagnosis, reading),
        suspects=(),
        fault_class=FaultClass.APP_ERROR if suspected else diagnosis.fault_class,
        second_class=diagnosis.fault_class if suspected else diagnosis.second_class,
        confidence=min(diagnosis.confidence, 0.4) if suspected else diagnosis.confidence,
    )


def _everywhere(reading: Reading, diagnosis: Diagnosis) -> bool:
    """Whether each rank that spoke failed with the same words: then nobody in particular is to blame."""
    root, classes = diagnosis.root, (FaultClass.APP_ERROR, FaultClass.ENV_ERROR, FaultClass.OOM_GPU)
    if root is None or root.signature is None or root.line is None or diagnosis.fault_class not in classes:
        return False
    words = _DIGITS.sub("", root.text)
    same = [f.who for f in reading.findings if f.signature.id == root.signature and _DIGITS.sub("", f.text) == words]
    ranks = [who for who in reading.ranks if who.rank is not None]
    return len(ranks) >= 2 and all(any(who.is_same(other) for other in same) for who in ranks)


def _all_alike(reading: Reading, diagnosis: Diagnosis) -> bool:
    root = diagnosis.root
    assert root is not None
    if root.signature is not None:
        same = [finding.text for finding in reading.findings if finding.signature.id == root.signature]
        others = {death.who for death in reading.deaths if not death.victim}
        return len(same) >= 2 or (len(others) <= 1 and len(reading.deaths) <= 1)
    codes = {death.code for death in reading.deaths if not death.victim}
    return len(reading.deaths) >= 2 and len(codes) == 1 and not any(death.victim for death in reading.deaths)


def _of_all(diagnosis: Diagnosis, reading: Reading) -> str:
    """Say "every rank" where the sentence names the one whose line came first."""
    root = diagnosis.root
    named = [who for who in (*reading.ranks, Who(root.node if root else None)) if root and who.node == root.node]
    for subject in (suspects.name(who) for who in named):
        if len(reading.ranks) > 1 and diagnosis.text.startswith(f"{subject} "):
            return f"Every rank {diagnosis.text.removeprefix(subject).strip()}"
    return diagnosis.text
