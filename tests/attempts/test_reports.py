"""What a watch tells: a line a minute, progress in XCom at most every ten seconds and only on a change."""

from __future__ import annotations

from itertools import pairwise

import pytest

from airflow_ft.attempts.reports import PROGRESS_KEY, STATE_KEY, progress_line
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import LogChunk
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.progress import Progress
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import EPOCH, Task


def watched(*runs: Run, **more: object) -> Task:
    task = Task(list(runs), **more)  # type: ignore[arg-type]
    task.begin_try()
    assert task.execute() == "deferred"
    task.watch()
    return task


def times(task: Task, key: str) -> list[float]:
    return [at for at, published, _ in task.desks[-1].published if published == key]


def test_progress_is_published_every_ten_seconds_at_most() -> None:
    at = times(watched(Run(last=300)), PROGRESS_KEY)
    assert 25 <= len(at) <= 32
    assert min(later - earlier for earlier, later in pairwise(at)) >= 10


def test_what_has_not_changed_is_not_published_again() -> None:
    task = watched(Run(last=20, code=None), policy=FaultTolerancePolicy.advanced(), timeout=900.0)
    assert max(times(task, PROGRESS_KEY)) < 60


def test_a_line_a_minute_and_one_for_each_state() -> None:
    task = watched(Run(last=300))
    lines = [line for line in task.log if "Step " in line]
    assert 4 <= len(lines) <= 5
    assert lines[0].endswith(", loss 2.5, newest checkpoint 50.")
    assert task.told("is running on n1") and task.told("is ended on n1")


def test_the_live_value_says_where_it_runs_and_how_far_it_is() -> None:
    task = watched(Run(last=300, total=300), nodes=2)
    value = [value for _, key, value in task.desks[-1].published if key == PROGRESS_KEY][-2]
    assert (value["attempt"], value["generation"], value["state"], value["nodes"]) == (0, 0, "running", ["n1", "n2"])
    progress = Progress.from_record(value["progress"])
    assert (progress.total, progress.checkpoint_path) == (300, f"/ckpt/{progress.checkpoint}.pt")


def test_when_airflow_is_away_the_watch_goes_on_and_says_so_three_times() -> None:
    task = Task([Run(last=300)])
    task.begin_try()
    task.execute()

    async def story() -> object:
        watch = task.make_watch()
        task.desks[-1].down = True
        return await watch.watch()

    task.run(story())
    assert sum("could not be published" in line for line in task.log) == 3
    assert task.told("is ended on n1")


def test_the_state_is_published_with_the_progress() -> None:
    task = watched(Run(last=300))
    assert times(task, STATE_KEY) == times(task, PROGRESS_KEY)


# --- sight ------------------------------------------------------------------------------------------------------------


def sight(task: Task) -> Sight:
    assert task.order is not None
    return Sight(task.order, task.policy, lambda: EPOCH)


def take(one: Sight, text: bytes, at: int = 0) -> int:
    one.take([LogChunk(source="n1/output", node="n1", data=text)], {"n1/output": at + len(text)})
    return at + len(text)


@pytest.fixture
def task() -> Task:
    made = Task([Run()])
    made.begin_try()
    made.execute()
    return made


TEXT = b"".join(
    [
        b"step 1 loss=3\nstep 2 loss=2.5\nsaved checkpoint step 2 (/c/2.pt)\nstep 3 loss=2\n",
        b'ft-agent a {"event":"start","generation":1}\nresumed from checkpoint step 2\nstep 3 loss=2\n',
        b"step 4 loss=1.5\nstep 5 loss=1\r\nsaved checkpoint step 5 (/c/5.pt)\nstep 6 lo",
    ]
)


@pytest.mark.story("WAT-08")
@pytest.mark.parametrize("cut", range(0, len(TEXT), 7))
def test_a_successor_goes_on_in_the_middle_of_a_line_with_none_lost_or_doubled(cut: int, task: Task) -> None:
    whole, first, second = sight(task), sight(task), sight(task)
    for one in (whole, first, second):
        one.expected = 1
    take(whole, TEXT)
    take(first, TEXT[:cut])
    second.take_up(first.to_state())
    second.expected = 1
    at = second.cursors.get("n1/output", 0)
    assert at <= cut
    take(second, TEXT[at:], at)
    assert second.progress == whole.progress
    assert second.recoveries == whole.recoveries
    assert second.generation == whole.generation == 1
    assert second.run() == whole.run()
    assert second.recovery is not None
    assert (second.recovery.state, second.recovery.expected_checkpoint) == ("recovered", 2)


def test_a_start_that_the_backend_has_not_told_of_is_only_a_line(task: Task) -> None:
    """Everybody can print one."""
    one = sight(task)
    take(one, TEXT)
    assert (one.generation, one.recoveries) == (0, {})
    assert one.progress.step == 5


def test_what_the_old_run_printed_in_its_last_moments_is_not_taken_for_the_new_one(task: Task) -> None:
    one = sight(task)
    at = take(one, b"step 10 loss=1\nsaved checkpoint step 10 (/c/10.pt)\n")
    one.restarted(1)
    at = take(one, b"step 11 loss=1\nstep 12 loss=1\n", at)  # read after the order
    assert one.recovery is not None
    at = take(
        one, b'ft-agent a {"event":"start","generation":1}\nresumed from checkpoint step 10\nstep 11 loss=1\n', at
    )
    assert (one.recovery.state, one.recovery.died_at_step, one.progress.first_step) == ("pending", 12, 11)
    take(one, b"step 12 loss=1\nstep 13 loss=1\n", at)
    assert one.recovery.state == "recovered"
    assert one.highest_step == 13


def test_a_run_that_died_before_a_first_step_passes_its_debt_on(task: Task) -> None:
    one = sight(task)
    take(one, b"step 10 loss=1\nsaved checkpoint step 10 (/c/10.pt)\nstep 11 loss=1\n")
    one.failed()
    one.restarted(1)
    one.failed()
    one.restarted(2)
    assert one.recovery is not None
    assert (one.recovery.died_at_step, one.recovery.expected_checkpoint) == (11, 10)
    assert {at: recovery.state for at, recovery in one.recoveries.items()} == {1: "failed", 2: "pending"}


@pytest.mark.parametrize("state", [{}, {"cursors": []}, {"cursors": {}, "recoveries": {}, "generation": "one"}])
def test_a_state_that_is_not_what_we_write_is_refused(state: dict[str, object], task: Task) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        sight(task).take_up(state)  # type: ignore[arg-type]


def test_a_line_says_where_training_stands(task: Task) -> None:
    one = sight(task)
    assert progress_line(one) == "No step seen yet; phase startup."
    take(one, b"step 1240/5000 loss=2.25\nsaved checkpoint step 1200 (/c)\n")
    assert progress_line(one) == "Step 1,240 of 5,000, loss 2.25, newest checkpoint 1,200."
