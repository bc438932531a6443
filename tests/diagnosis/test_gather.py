from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.backends.base import LogTail, UnreachableError
from airflow_ft.core.chain import JobRef
from airflow_ft.core.classify import classify
from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import Evidence
from airflow_ft.diagnosis.gather import Gathered, Limits, gather
from airflow_ft.diagnosis.signature_files import load_rules

REF = JobRef(
    backend="x", name="j", uid="u", chain_id="c", attempt=0, submitted_at=datetime(2026, 1, 1, tzinfo=timezone.utc)
)


GOOD = REF.but(name="i", uid="w")


class TwoQuestions:
    """The part of a backend that is asked here; an answer may be an exception, or ``None`` for silence."""

    def __init__(self, tails: Any = (), evidence: Any = (), good: Any = ()) -> None:
        self._tails, self._evidence, self._good = tails, evidence, good

    async def log_tails(self, ref: JobRef, limit: int) -> Sequence[LogTail]:
        if ref == GOOD:
            return await self._answer(self._good)
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
    return asyncio.run(gather(backend, REF, limits, good=GOOD))  # type: ignore[arg-type]


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


def test_of_the_last_good_attempt_only_what_it_printed_while_all_was_well() -> None:
    printed = b"loading\nstep 1 loss 2.0\nstep 2 loss 1.9\nvendorlib: stage 3 collapsed\n"
    good = [
        LogTail(source="n1/output", node="n1", data=printed),
        LogTail(source="n1/rank0.stderr", data=b"a warning\n"),
    ]
    found = ask(TwoQuestions([], [], good))
    assert [(log.source, log.data) for log in found.good_logs] == [
        ("n1/output", b"loading\nstep 1 loss 2.0\nstep 2 loss 1.9")
    ]


@pytest.mark.parametrize("answer", [None, UnreachableError("gone with its node")])
def test_a_good_attempt_that_can_not_be_seen_any_more_is_no_problem(answer: object) -> None:
    found = ask(TwoQuestions(tails(1, 10), [], answer), Limits(seconds=0.05))
    assert (found.good_logs, found.problems, len(found.logs)) == ((), (), 1)


def test_what_the_last_good_attempt_said_is_no_news() -> None:
    """A run that never came to a step has no healthy part of its own: the last good attempt's stands in."""
    well = [f"loader: opened shard {n}" for n in range(30)] + ["step 1 loss 2.0", "step 2 loss 1.9"]
    bad = ["loader: opened shard 7", "loader: lost shard 8", "loader: opened shard 9"]
    gathered = ask(
        TwoQuestions(
            [LogTail(source="n1/output", data="\n".join(bad).encode())],
            [Evidence(source="exit", code=3)],
            [LogTail(source="n1/output", data="\n".join(well).encode())],
        )
    )
    found = classify(Facts(logs=gathered.logs, good_logs=gathered.good_logs, evidence=gathered.evidence), load_rules())
    assert found.root is not None
    assert found.root.text == "loader: lost shard 8"
