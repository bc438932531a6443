"""A diagnosis as the answer of ``airflow-ft classify``: plain values with fixed keys, for scripts."""

from __future__ import annotations

import re
from typing import Any

from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Role
from airflow_ft.diagnosis.redaction import redact

NOT_CONFIRMED = "A class is a help for the decision, not a confirmed root cause."
EXCLUDE_FROM = 0.5  # below this confidence no node is left out
_CLOCK = re.compile(
    r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|"
    r"\b[IWEF](?:\d{3,4}) \d\d:\d\d:\d\d(?:\.\d+)?|\[ *\d+\.\d{6}\]|\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}"
)


def as_answer(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the answer. Text of the log is without secrets."""
    unknown = diagnosis.fault_class is FaultClass.UNKNOWN
    candidates = [_line(e) for e in diagnosis.evidence if e.text and e.role is not Role.CASCADE][:8]
    return {
        "fault_class": diagnosis.fault_class.value,
        "second_class": diagnosis.second_class.value if diagnosis.second_class else None,
        "retry": diagnosis.retry.value,
        "suspects": [{"kind": suspect.kind, "name": suspect.name} for suspect in diagnosis.suspects],
        "exclude": excludable(diagnosis),
        "disruption": diagnosis.disruption is not None,
        "root": _root(diagnosis.root),
        "signature": diagnosis.signature,
        "confidence": round(diagnosis.confidence, 2),
        "candidates": candidates if unknown or diagnosis.confidence < EXCLUDE_FROM else candidates[1:],
        "advice": diagnosis.advice,
        "text": redact(diagnosis.text),
    }


def excludable(diagnosis: Diagnosis) -> list[str]:
    """Return the nodes that a policy may leave out: suspects of a hardware fault that is more than a guess.

    A crash (a signal alone) is one, and so is a line that is a cause only where nothing better is found.
    """
    if diagnosis.fault_class is not FaultClass.HW_NODE or diagnosis.disruption or diagnosis.confidence < EXCLUDE_FROM:
        return []
    root = diagnosis.root
    is_guess = root is None or root.role is not Role.ROOT or str(diagnosis.signature).startswith("process.")
    return [] if is_guess else list(diagnosis.suspect_nodes)


def _root(root: Evidence | None) -> dict[str, Any] | None:
    if root is None or not root.text:
        return None
    clock = _CLOCK.search(root.text)
    time = root.at.isoformat() if root.at else (clock[0] if clock else None)
    return {
        "text": redact(root.text),
        "line": root.line,
        "source": root.source,
        "rank": root.rank,
        "node": root.node,
        "time": time,
    }


def _line(evidence: Evidence) -> dict[str, Any]:
    return {
        "text": redact(evidence.text),
        "line": evidence.line,
        "source": evidence.source,
        "rank": evidence.rank,
        "node": evidence.node,
        "signature": evidence.signature,
        "fault_class": evidence.fault_class.value if evidence.fault_class else None,
    }
