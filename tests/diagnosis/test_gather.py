from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.backends.base import LogTail, UnreachableError
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence
from airflow_ft.diagnosis.gather import Gathered, Limits, gather

REF = JobRef(
    backend="x", name="j", uid="u", chain_id="c", attempt=0, submitted_at=datetime(2026, 1, 1, tzinfo=timezone.utc)
)


class TwoQuestions:
    """The part of a backend that is asked here; an answer may be an exception, or ``None`` for silence."""

    def __init__(self, tails: Any = (), evidence: Any = ()) -> None:
        self._tails, self._evidence = tails, evidence

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        return await self._answer(
            [tail.but(data=tail.data[-limit:]) for tail in self._tails]
            if isinstance(self._tails, list)
            else self._tails
        )

    async def evidence(self, ref: JobRef) -> Sequence[Evidence]:
        return await self._answer(self._evidence)

    async def _answer(self, answer: Any) -> Any:
        if answer is None:
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(backend: TwoQuestions, limits: Limits | None = None) -> Gathered:
    return asyncio.run(gather(backend, REF, limits))  # type: ignore[arg-type]


def tails(count: int, size: int) -> list[LogTail]:
    return [LogTail(source=f"n{n}/output", node=f"n{n}", data=b"x" * size) for n in range(count)]


def test_logs_and_evidence_come_together() -> None:
    found = ask(TwoQuestions(tails(2, 10), [Evidence(source="exit", code=1)]))
    assert [(log.source, log.node, len(log.data)) for log in found.logs] == [
        ("n0/output", "n0", 10),
        ("n1/output", "n1", 10),
    ]
    assert found.evidence[0].code == 1
    assert found.problems == ()


def test_one_question_without_an_answer_does_not_stop_the_other() -> None:
    found = ask(TwoQuestions(None, [Evidence(source="exit", code=1)]), Limits(seconds=0.05))
    assert (found.logs, len(found.evidence)) == ((), 1)
    assert "no answer" in found.problems[0]


@pytest.mark.story("WAT-02")
def test_nothing_seen_is_unreachable_not_a_diagnosis() -> None:
    with pytest.raises(UnreachableError, match="logs: gone away"):
        ask(TwoQuestions(UnreachableError("gone away"), UnreachableError("too")))


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ask(TwoQuestions(ZeroDivisionError(), []))


@pytest.mark.story("WAT-12")
def test_bytes_are_capped_each_and_in_all() -> None:
    found = ask(TwoQuestions(tails(100, 9_000)), Limits(log_bytes=8_000, all_bytes=100_000))
    assert sum(len(log.data) for log in found.logs) <= 100_000
    assert len(found.logs) == 24
    assert len(found.dropped) == 76
