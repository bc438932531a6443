"""The end of a log as text that may be shown: whole lines, without our own, without secrets."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_ft.core.loglines import lines_of
from airflow_ft.diagnosis.redaction import redact

LINE_LENGTH = 2_000
OURS = "ft-agent "


def tail_lines(data: bytes, lines: int, known: Iterable[str] = ()) -> list[str]:
    """Return the last ``lines`` lines of a log. ``known`` are secret values."""
    known = tuple(known)
    read = [line for line in lines_of(data) if line.strip() and OURS not in line]
    return [redact(line[:LINE_LENGTH], known) for line in read[-lines:]]
