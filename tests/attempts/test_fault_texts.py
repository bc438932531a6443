"""No closed attempt without a fault text, and no secret in one (UIO-04, SEC)."""

from __future__ import annotations

import json

import pytest

from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.watch import Watch
from airflow_ft.core.chain import Attempt, End
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import RULES, FakeDesk, Task


def deferred(*runs: Run, **more: object) -> Task:
    task = Task(list(runs), [Run()], **more)  # type: ignore[arg-type]
    task.begin_try()
    assert task.execute() == "deferred"
    return task


def closed(task: Task) -> Attempt:
    task.settle(lambda: task.complete(task.watch()))
    return task.attempts[0]


@pytest.mark.story("UIO-04")
def test_a_job_that_left_nothing_says_what_was_looked_at_and_what_was_missing() -> None:
    task = deferred(Run(code=1, last=5))
    job = task.cluster.jobs[task.attempts[0].name]
    job.forgotten, job.nodes = True, []
    text = closed(task).outcome.text  # type: ignore[union-attr]
    assert text.endswith("Looked at logs, exit codes and nodes; missing: logs: there were none.")


@pytest.mark.story("UIO-04")
def test_logs_that_can_not_be_read_are_named() -> None:
    task = deferred(Run(code=9, last=5))
    task.cluster.unreachable.add("log_tails")
    text = closed(task).outcome.text  # type: ignore[union-attr]
    assert "code 9" in text
    assert text.endswith("missing: logs: no answer.")


@pytest.mark.story("UIO-04")
@pytest.mark.parametrize(
    ("run", "end"),
    [
        (Run(code=0), End.SUCCEEDED),
        (Run(code=3, last=0, first=1), End.FAULT),
        (Run(code=0, term=True), End.DISRUPTED),
        (Run(code=None), End.TIMED_OUT),
    ],
)
def test_every_end_has_a_text(run: Run, end: End) -> None:
    attempt = closed(deferred(run, timeout=300.0))
    assert attempt.outcome is not None
    assert attempt.outcome.end is end
    assert attempt.outcome.text.strip()
    assert all(incident.diagnosis.text.strip() and incident.decision.reason.strip() for incident in attempt.incidents)


@pytest.mark.story("SEC-02")
def test_a_secret_of_the_job_that_it_prints_itself_is_stored_nowhere() -> None:
    canary = "hf_canary0123456789"
    task = deferred(Run(code=1, words=f"PermissionError: token {canary} is not allowed"))
    assert task.order is not None

    async def story() -> Conclusion:
        desk = FakeDesk(task, task.xcoms)
        return await Watch(task.order, task.policy, task.backend, desk, RULES, (canary,)).watch()  # type: ignore[arg-type]

    event = task.run(story()).to_record()
    task.settle(lambda: task.complete(event))
    assert canary not in json.dumps(event)
    assert canary not in json.dumps(task.values)
    assert canary not in json.dumps(task.xcoms)
    assert not task.told(canary)


@pytest.mark.story("SEC-01")
def test_a_deferral_holds_nothing_of_the_job_but_its_reference() -> None:
    task = deferred(Run(code=0))
    assert task.order is not None
    kept = json.dumps(task.order.to_record())
    assert '"command"' not in kept
    assert '"env"' not in kept


def test_the_next_attempts_know_the_last_one_that_made_steps() -> None:
    """Against what it printed, the news in the log of an attempt that never came to a step can be seen."""
    lost = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    task = Task([Run(code=1, last=5, words=lost)], *([Run(code=1, last=0, words=lost)] for _ in range(4)))
    task.run_to_the_end()
    assert len(task.attempts) > 1
    assert task.attempts[0].ref is not None
    assert task.chain.good == task.attempts[0].ref


@pytest.mark.story("CLS-12")
def test_a_run_that_dies_twice_with_nothing_left_to_train_is_stopped_and_told_so() -> None:
    trains, saves = Run(last=20, total=20, code=-9), Run(first=21, last=20, total=20, code=-9)
    task = Task([trains, saves, saves, saves, saves])
    task.run_to_the_end()
    assert task.chain.decision is not None
    assert task.chain.decision.reason.startswith("Nothing left to train; fails while saving")
    assert [past.finished for past in task.chain.faults] == [False, True, True]
