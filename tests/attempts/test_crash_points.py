"""A process of ours dies at every point between two steps, and nothing is lost, doubled or charged twice.

The story: a rank is killed (restart in place), then a GPU fails (the next attempt), then training comes to its end; and
one that a person clears in the middle. Whoever died is followed either by another watch of the same try (a triggerer
that was lost) or by the next try (a worker, or a try, that was lost).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import airflow_ft.attempts
from airflow_ft.core.chain import End
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, Killer, Task, at_point

FOLDER = Path(airflow_ft.attempts.__file__).parent
POINTS = sorted(
    {point for file in FOLDER.glob("*.py") for point in re.findall(r'reach\("([\w.]+)"\)', file.read_text())}
)
GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
MOST = 20


def two_faults() -> Task:
    first = [Run(last=30, code=-9), Run(first=31, last=40, code=1, words=GPU)]
    return Task(first, [Run(first=41, last=60)], nodes=2)


def owed_and_cleared() -> Task:
    return Task([Run(code=None)], [Run(last=30)])


def live(task: Task, same_try: bool) -> str:
    """Live on after each death, as long as it takes."""
    state, step = "", task.run_try
    for _ in range(MOST):
        try:
            state = step()
            step = task.run_try
        except Died:
            deferred = same_try and task.order is not None and task.deferrable
            step = (lambda: task.settle(lambda: task.complete(task.watch()))) if deferred else task.run_try
            continue
        task.check()
        if state in ("success", "failed"):
            return state
    raise AssertionError(f"no end: {task.log[-30:]}")


def clear_in_the_middle(task: Task, same_try: bool) -> str:
    """A person clears the task while its job runs; the job can't be stopped at once."""
    task.begin_try()
    for _ in range(2):
        try:
            task.execute()
            break
        except Died:
            task.begin_try()
    task.wait(10)
    task.clear()
    return live(task, same_try)


STORIES: dict[str, tuple[Callable[[], Task], Callable[[Task, bool], str]]] = {
    "two faults": (two_faults, live),
    "cleared": (owed_and_cleared, clear_in_the_middle),
}


def points_of(story: str) -> list[str]:
    """The points that a story comes to, in order, with repetitions."""
    made, run = STORIES[story]
    reached: list[str] = []
    patch = pytest.MonkeyPatch()
    with at_point(patch, reached.append):
        run(made(), True)
    return reached


def cases() -> list[tuple[str, str, int]]:
    found = []
    for story in STORIES:
        reached = [point for point in points_of(story) if point != "watch.looked"]
        looks = [("watch.looked", nth) for nth in (1, 5, 32, 34, 40)]
        numbered = [(point, reached[: n + 1].count(point)) for n, point in enumerate(reached)]
        found += [(story, point, nth) for point, nth in numbered + looks]
    return found


CASES = cases()


@pytest.mark.story("SUB-02")
def test_every_point_is_reached_by_some_story() -> None:
    """Those of an interim report are in ``test_news``, those of a person's answer in ``test_asking``."""
    elsewhere = ("interim.", "answer.")
    assert {point for _, point, _ in CASES} == {point for point in POINTS if not point.startswith(elsewhere)}


@pytest.mark.story("SUB-02")
@pytest.mark.parametrize("same_try", [True, False], ids=["another watch", "next try"])
@pytest.mark.parametrize(("point", "nth"), [(point, nth) for story, point, nth in CASES if story == "two faults"])
def test_two_faults_are_told_and_charged_once_whoever_dies(
    point: str, nth: int, same_try: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, killer = two_faults(), Killer(point, nth)
    with at_point(monkeypatch, killer):
        assert live(task, same_try) == "success"
    assert killer.struck
    task.check()
    first, second = task.attempts
    assert task.cluster.created == [first.name, second.name], "exactly one job per attempt number"
    assert [incident.generation for incident in first.incidents] == [0, 1]
    assert [incident.diagnosis.fault_class.value for incident in first.incidents] == ["UNKNOWN", "HW_NODE"]
    assert second.outcome is not None
    assert (second.outcome.end, second.incidents) == (End.SUCCEEDED, ())
    assert task.chain.ledger.restarts == 1
    assert len(task.chain.faults) == 2
    restarts = [order for order in task.cluster.orders if order[3] == "restart"]
    assert [order[:2] for order in restarts] == [(f"{first.name}/n1", 1), (f"{first.name}/n2", 1)]
    assert len({digest for *_, digest, _ in restarts}) == 1
    assert task.chain.last_checkpoint_path == "/ckpt/60.pt"
    assert second.resume_from == "/ckpt/40.pt"
    assert first.recovery is None
    assert second.recovery is not None
    assert second.recovery.state == "recovered"


@pytest.mark.story("LIF-11")
@pytest.mark.parametrize("same_try", [True, False], ids=["another watch", "next try"])
@pytest.mark.parametrize(("point", "nth"), [(point, nth) for story, point, nth in CASES if story == "cleared"])
def test_a_clear_fences_once_and_runs_anew_whoever_dies(
    point: str, nth: int, same_try: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, killer = owed_and_cleared(), Killer(point, nth)
    with at_point(monkeypatch, killer):
        assert clear_in_the_middle(task, same_try) == "success"
    task.check()
    chain = task.chain
    assert len(task.cluster.created) == chain.attempts == 2
    assert [attempt.segment for attempt in task.attempts] == [0, 1]
    assert task.attempts[0].outcome is not None
    assert task.attempts[0].outcome.end is End.CANCELLED
    assert (chain.segment, chain.ledger.restarts) == (1, 0)
