"""What the ranks of a job do, asked of the agents in its pods: on an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.attempts.second_signals import SecondSignals
from airflow_ft.backends.abilities import PeeksStacks, SeesVitals
from airflow_ft.backends.base import JobState, Observation, Submission, UnreachableError
from airflow_ft.backends.kubernetes import cluster, orders
from airflow_ft.backends.kubernetes.backend import KubernetesBackend
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.hang import HangVerdict
from tests.backends.fake_kubernetes import FakeApi
from tests.backends.kubernetes_manifests import manifest

SPIN = 'Current thread 1:\n  File "train.py", line 44 in lock\n  File "train.py", line 9 in train'


def vitals(rank: int, cpu: float = 3.0, state: str = "S") -> dict[str, Any]:
    return {"ranks": [{"rank": rank, "state": state, "cpu": cpu, "io": 7, "faults": 0, "world": 2, "gpu": None}]}


def stacks(rank: int, stack: str = SPIN) -> dict[str, Any]:
    return {"version": 1, "at": 0.0, "groups": [{"ranks": [rank], "pids": [9], "stack": stack}]}


def run(
    story: Callable[[FakeApi, KubernetesBackend, JobRef], Awaitable[Any]], pods: int = 2, agent: bool = True
) -> Any:
    """A job of as many pods, each with one rank, that all run."""

    async def whole() -> Any:
        api = FakeApi(pods)
        cluster.of("fake").api = api  # type: ignore[assignment]
        backend = KubernetesBackend()
        made = manifest("Job")
        made["spec"] |= {"parallelism": pods, "completions": pods}
        job = KubernetesJob(manifest=made, conn_id="fake", namespace="ns", agent=agent)
        ref = await backend.submit(job, Submission(name="c-a0", chain_id="c", attempt=0, hold=60.0, grace=3.0))
        await backend.observe(ref)
        for rank in range(pods):
            api.looks[f"c-a0-{rank}", "vitals"] = vitals(rank)
            api.looks[f"c-a0-{rank}", "stacks"] = stacks(rank)
        try:
            return await story(api, backend, ref)
        finally:
            await backend.close()

    return asyncio.run(whole())


@pytest.mark.row("M14")
def test_every_rank_is_asked_and_told_with_its_node() -> None:
    async def story(api: FakeApi, backend: KubernetesBackend, ref: JobRef) -> Any:
        assert isinstance(backend, SeesVitals)
        assert isinstance(backend, PeeksStacks)
        return await backend.vitals(ref)

    found = run(story)
    assert [(rank.rank, rank.node, rank.cpu_seconds, rank.world_size) for rank in found] == [
        (0, "n0", 3.0, 2),
        (1, "n1", 3.0, 2),
    ]


@pytest.mark.row("P9")
@pytest.mark.parametrize("by_signal", [True, False])
def test_stacks_are_looked_at_and_a_signal_is_used_only_where_it_may_be(by_signal: bool) -> None:
    async def story(api: FakeApi, backend: KubernetesBackend, ref: JobRef) -> Any:
        api.asked.clear()
        groups = await backend.peek_stacks(ref, by_signal)
        return groups, api.asked

    groups, asked = run(story)
    assert [(group.node, group.ranks, group.stack) for group in groups] == [("n0", (0,), SPIN), ("n1", (1,), SPIN)]
    assert all("--peek" in words and ("--no-signal" in words) is not by_signal for words in asked)


def test_who_does_not_answer_leaves_no_opinion() -> None:
    """A rank that was not asked would look like one that has ended, and that confirms a hang."""

    async def story(api: FakeApi, backend: KubernetesBackend, ref: JobRef) -> None:
        del api.looks["c-a0-1", "vitals"], api.looks["c-a0-1", "stacks"]
        with pytest.raises(UnreachableError, match="c-a0-1"):
            await backend.vitals(ref)
        with pytest.raises(UnreachableError, match="c-a0-1"):
            await backend.peek_stacks(ref, by_signal=False)

    run(story)


@pytest.mark.parametrize(("pods", "agent"), [(2, False), (orders.MOST_LOOKED_AT + 1, True)])
def test_without_agents_and_of_very_many_pods_nobody_is_asked(pods: int, agent: bool) -> None:
    async def story(api: FakeApi, backend: KubernetesBackend, ref: JobRef) -> int:
        calls = api.calls
        with pytest.raises(UnreachableError):
            await backend.vitals(ref)
        return api.calls - calls

    assert run(story, pods, agent) == 0


class Silence:
    """A training of steps of 0.5 s that is silent since the clock's beginning; it may be silent for 9 s."""

    is_silent, may_act, samples = True, True, ()

    def __init__(self) -> None:
        self.silence = 4.6

    @property
    def seconds_left(self) -> float:
        return 9.0 - self.silence

    def verdict(self) -> HangVerdict | None:
        return (
            HangVerdict(threshold=9.0, silence=self.silence, incident=1, text="No step.") if self.silence > 9 else None
        )

    def take_afresh(self, tails: Any) -> None:
        return None


def judged(story: Callable[[FakeApi, float], None], until: float = 60.0) -> tuple[float | None, HangVerdict | None]:
    """Ask twice a second; ``story`` says what the agents see at each time. Returns when a verdict was acted upon."""

    async def whole(api: FakeApi, backend: KubernetesBackend, ref: JobRef) -> tuple[float | None, HangVerdict | None]:
        begin, sight = datetime(2026, 1, 1, tzinfo=timezone.utc), Silence()
        desk: Any = SimpleNamespace(
            now=lambda: begin + timedelta(seconds=sight.silence), say=lambda text, warning=False: None
        )
        signals = SecondSignals(backend, ref, desk)
        seen = Observation(state=JobState.RUNNING, at=begin)
        while sight.silence < until:
            story(api, sight.silence)
            verdict = await signals.ask(sight, seen, 120.0)  # type: ignore[arg-type]
            if verdict is not None:
                return sight.silence, verdict
            sight.silence += 0.5
        return None, None

    return run(whole)  # type: ignore[no-any-return]


@pytest.mark.row("M14")
@pytest.mark.story("PRG-10")
def test_idle_ranks_confirm_at_once_and_busy_ones_are_given_time() -> None:
    """Without waiting for the agents' lines, which come each 15 s."""
    at, verdict = judged(lambda api, second: None)
    assert at == 9.1
    assert verdict is not None and "all 2 ranks are idle" in verdict.text

    def saves(api: FakeApi, second: float) -> None:
        api.looks["c-a0-1", "vitals"] = vitals(1, cpu=second)
        api.looks["c-a0-1", "stacks"] = stacks(1, SPIN.replace("lock", f"write{round(second * 2)}"))

    assert judged(saves) == (None, None)


@pytest.mark.row("P9")
def test_a_rank_that_spins_in_a_pod_is_named_with_its_place() -> None:
    def spins(api: FakeApi, second: float) -> None:
        api.looks["c-a0-1", "vitals"] = vitals(1, cpu=second, state="R")

    at, verdict = judged(spins)
    assert at is not None and at <= 9 + 1
    assert verdict is not None and verdict.ranks == (1,)
    assert "spinning in lock (train.py:44)" in verdict.text


@pytest.mark.row("M14")
def test_who_asks_an_unanswering_cluster_falls_back_to_silence() -> None:
    def silent(api: FakeApi, second: float) -> None:
        api.looks.clear()

    at, verdict = judged(silent, until=200.0)
    assert at is not None and 120 < at < 122
    assert verdict is not None and "Second signals" not in verdict.text
