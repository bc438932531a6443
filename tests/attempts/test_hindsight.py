"""How far a run has come is known even if its watch left nothing behind: from the ends of its own logs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import pytest

from airflow_ft.attempts.hindsight import progress_of
from airflow_ft.backends.base import LogTail
from airflow_ft.core.chain import JobRef
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

REF = JobRef(
    backend="fake", name="train-a0", uid="1", chain_id="train", attempt=0, submitted_at=datetime.now(timezone.utc)
)


class OnlyLogs:
    """A backend whose logs are these."""

    def __init__(self, *logs: bytes, offset: int = 0) -> None:
        self.logs = [LogTail(source=f"n{n}/output", data=data, offset=offset) for n, data in enumerate(logs, 1)]

    async def log_tails(self, ref: object, limit: int) -> list[LogTail]:
        return self.logs


def progress(*logs: bytes, offset: int = 0) -> tuple[int | None, int | None]:
    found = asyncio.run(progress_of(OnlyLogs(*logs, offset=offset), REF))  # type: ignore[arg-type]
    assert found is not None
    return found.step, found.checkpoint


@pytest.mark.story("LIF-11")
def test_a_clear_while_deferred_keeps_how_far_training_had_come() -> None:
    """The XComs of the old try are gone by then."""
    task = Task([Run(last=500, code=None)], [Run(first=41, last=60)])
    task.begin_try()
    task.execute()
    task.wait(45.0)  # nobody has looked
    task.clear()
    assert task.run_to_the_end() == "success"
    first, second = task.attempts
    assert first.progress is not None
    assert (first.progress.step, first.progress.checkpoint) == (43, 40)
    assert second.resume_from == "/ckpt/40.pt"
    assert task.chain.highest_step == 60


def test_the_highest_step_of_all_generations_counts() -> None:
    old = b'ft-agent x {"event":"start","generation":0}\nstep 90/100 loss 1\n'
    old += b"saved checkpoint step 80 (/c/80)\nstep 99/100 loss 1\n"
    new = b'ft-agent x {"event":"start","generation":1}\nresumed from checkpoint step 80\nstep 81/100 loss 1\n'
    assert progress(old + new) == (99, 80)


def test_the_cut_first_line_of_a_tail_tells_nothing() -> None:
    assert progress(b"99999/100 loss 1\nstep 12/100 loss 1\nstep 13/100 loss 1\n", offset=7) == (13, None)


def test_a_log_without_a_step_tells_nothing() -> None:
    assert asyncio.run(progress_of(OnlyLogs(b"hello\n"), REF)) is None  # type: ignore[arg-type]


def test_a_backend_that_does_not_answer_keeps_nobody() -> None:
    task = Task([Run(last=500, code=None)], [Run()])
    task.begin_try()
    task.execute()
    task.wait(20.0)
    task.clear()
    with task.cluster.outage("log_tails"):
        assert task.run_to_the_end() == "success"
    assert task.told("can't be seen")
