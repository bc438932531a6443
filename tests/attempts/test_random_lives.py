"""Random lives of a chain against what must always hold (hypothesis).

A life is a list of attempts' scripts and a list of strokes of fate, each at some moment of a try: a process of ours
dies at the n-th point it comes to, the cluster can't be reached for a while, a person clears the task, a node is lost,
Airflow itself is away. After each step ``Task.check`` looks at the invariants, and each life has to come to its end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from airflow_ft.attempts.faults import TrainingFault, TryAgainLaterError
from airflow_ft.core.chain import AttemptState, End
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, Task, at_point

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
MOST_STEPS = 60

runs = st.builds(
    lambda first, length, end, nodes: Run(first=first, last=first + length, **end),
    first=st.sampled_from([1, 11, 21, 31]),
    length=st.integers(0, 40),
    end=st.sampled_from(
        [
            {"code": 0},
            {"code": -9},
            {"code": 1, "words": GPU},
            {"code": 1, "words": "KeyError: 'x'"},
            {"code": 0, "term": True},
            {"code": None},
            {"code": 3},
        ]
    ),
    nodes=st.just(1),
)
scripts = st.lists(st.lists(runs, min_size=1, max_size=4), min_size=1, max_size=5)
strokes = st.lists(
    st.tuples(
        st.sampled_from(["die", "die", "die", "unreachable", "deaf", "clear", "lose", "lost answers", "half an order"]),
        st.integers(1, 40),
        st.booleans(),
    ),
    max_size=6,
)


class Fate:
    """Does one stroke at the n-th point that our processes come to."""

    def __init__(self, task: Task, stroke: tuple[str, int, bool] | None) -> None:
        self.task, (self.what, self.left, self.same_try) = task, stroke or ("", 0, True)

    def __call__(self, point: str) -> None:
        self.left -= 1
        if self.left != 0:
            return
        cluster = self.task.cluster
        event(f"{self.what} at {point}")
        if self.what == "die":
            raise Died(point)
        if self.what == "unreachable":
            cluster.unreachable.add("*")
        elif self.what == "deaf":
            self.task.desks[-1:] and setattr(self.task.desks[-1], "down", True)
        elif self.what == "lose" and len(cluster.lost) < 2:
            cluster.lose(["n1", "n2"][len(cluster.lost)])
        elif self.what == "lost answers":
            cluster.answers_lost |= {"submit", "cancel", "restart", "release"}
        elif self.what == "half an order":
            cluster.orders_reach = 1

    def over(self) -> None:
        """Outages end."""
        self.task.cluster.unreachable.clear()
        self.task.cluster.answers_lost.clear()
        self.task.cluster.orders_reach = 1_000


def live(task: Task, fates: list[tuple[str, int, bool]], patch: pytest.MonkeyPatch) -> str:
    """Step after step until the end; each stroke has one step."""
    pending = list(fates)
    deferred, state = False, ""
    for _ in range(MOST_STEPS):
        fate = Fate(task, pending.pop(0) if pending else None)
        if fate.what == "clear" and task.try_number:
            task.clear()
            deferred, state = False, ""
        if state in ("success", "failed") and not pending:
            return state
        if not deferred:
            task.begin_try()
        with at_point(patch, fate):
            state, deferred = _step(task, fate, deferred)
        fate.over()
        if task.store().load() is not None:
            task.check()
            _check_ends(task)
    raise AssertionError(f"no end after {MOST_STEPS} steps: {task.log[-30:]}")


def _watch(task: Task, fate: Fate) -> Any:
    """Watch; what was out of order is mended after a while."""

    async def story() -> Any:
        asyncio.get_running_loop().call_later(700.0, fate.over)
        return (await task.make_watch().watch()).to_record()

    return task.run(story())


def _step(task: Task, fate: Fate, deferred: bool) -> tuple[str, bool]:
    """One process of ours. Returns how the try ended ("" if it didn't), and whether a watch is due."""
    try:
        state = task.complete(_watch(task, fate)) if deferred else task.execute()
    except Died:
        return "", fate.same_try and task.order is not None
    except TrainingFault as fault:
        task.wait(fault.decision.delay)
        return "failed" if fault.stops else "retry", False
    except TryAgainLaterError as later:
        task.wait(later.delay)
        return "later", False
    return state, state == "deferred"


def _check_ends(task: Task) -> None:
    """What is concluded has a text, is charged as it is told, and a success is not run again unless it is cleared."""
    chain = task.chain
    for attempt, following in zip(task.attempts, [*task.attempts[1:], None], strict=False):
        if attempt.state is AttemptState.CONCLUDED:
            assert attempt.outcome is not None
            assert attempt.outcome.text
            if attempt.outcome.end is End.SUCCEEDED and following is not None:
                assert following.segment > attempt.segment, "a success was run again"
        else:
            assert attempt.number == chain.open
    charged = [
        incident
        for attempt in task.attempts
        if attempt.segment == chain.segment and attempt.number != chain.open  # whose end the head has not taken yet
        for incident in attempt.incidents
        if incident.decision.charged in ("restart", "unconditional")
    ]
    assert chain.ledger.restarts == len(charged), "each charge is told, and once"
    generations = [[incident.generation for incident in attempt.incidents] for attempt in task.attempts]
    assert all(one == sorted(set(one)) for one in generations), "one incident a generation"
    ends = [attempt.incidents[-1].decision.action for attempt in task.attempts if attempt.incidents]
    assert sum(action is Action.FAIL for action in ends) <= chain.segment + 1


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
)
@given(
    scripts=scripts, fates=strokes, mode=st.sampled_from(["full", "advanced", "basic"]), nodes=st.sampled_from([1, 2])
)
@example(  # dies between the two writes of an end
    scripts=[[Run(first=31, last=58, code=1, words=GPU)], [Run(last=17)]],
    fates=[("clear", 24, False), ("die", 24, True), ("die", 16, False)],
    mode="advanced",
    nodes=2,
)
@example(
    scripts=[[Run(last=20, code=-9), Run(last=20, code=-9)], [Run(last=30)]],
    fates=[("half an order", 3, True), ("die", 9, False), ("clear", 1, True)],
    mode="full",
    nodes=2,
)
def test_whatever_happens_a_chain_is_consistent_and_comes_to_its_end(
    scripts: list[list[Run]], fates: list[tuple[str, int, bool]], mode: str, nodes: int
) -> None:
    hang = {"hang": HangSettings(floor_seconds=60.0, ceiling_seconds=120.0)} if mode == "full" else {}
    policy = FaultTolerancePolicy(mode=mode, max_restarts=2, **hang)  # type: ignore[arg-type]
    task = Task(*scripts, [Run(last=20)], policy=policy, nodes=nodes, timeout=None if mode == "full" else 600.0)
    patch = pytest.MonkeyPatch()
    assert live(task, fates, patch) in ("success", "failed")
    assert task.cluster.live() == [] or task.chain.debts
