"""Pods that somebody else started, found by labels: on an API server in memory."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.attempts.lookout import Lookout, LookoutOrder, LookoutResult
from airflow_ft.attempts.ports import TryInfo
from airflow_ft.backends.abilities import PodSelection, SeesPods
from airflow_ft.backends.base import JobState, Observation, UnreachableError
from airflow_ft.backends.kubernetes import cluster, selected
from airflow_ft.backends.kubernetes.api import ApiError
from airflow_ft.backends.kubernetes.backend import KubernetesBackend
from airflow_ft.backends.kubernetes.pods import Ended, PodFacts
from tests.backends.conformance import eventually
from tests.backends.fake_kubernetes import BEGAN, FakeApi

SELECTION = PodSelection(selector="app=llama", conn_id="fake")
LLAMA = {"app": "llama"}


def connected() -> tuple[FakeApi, KubernetesBackend]:
    api = FakeApi(pods=0)
    cluster.of("fake").api = api  # type: ignore[assignment]
    backend = KubernetesBackend()
    assert isinstance(backend, SeesPods)
    return api, backend


async def state_becomes(backend: KubernetesBackend, state: JobState) -> Observation:
    found: list[Observation] = []

    async def seen() -> bool:
        found.append(await backend.observe_pods(SELECTION))
        return found[-1].state is state

    await eventually(seen, f"they are {state.value}", 10.0)
    return found[-1]


def test_the_logs_of_all_that_match_are_read_and_of_nobody_else() -> None:
    async def story() -> dict[str, bytes]:
        api, backend = connected()
        for name in ("rank-0", "rank-1"):
            api.add_pod(name, {**LLAMA, "index": name[-1]})
            await api.print(name, f"hello from {name}")
        api.add_pod("other", {"app": "gemma"})
        await api.print("other", "step 7")
        assert (await backend.observe_pods(SELECTION)).state is JobState.RUNNING
        chunks, cursors = await backend.read_pod_logs(SELECTION, {}, 100_000)
        read = {chunk.source: chunk.data for chunk in chunks}
        api.add_pod("rank-2", LLAMA, node="n2")
        await api.print("rank-2", "hello from rank-2")
        await api.print("rank-0", "and more")

        async def more() -> bool:
            nonlocal cursors
            new, cursors = await backend.read_pod_logs(SELECTION, cursors, 100_000)
            for chunk in new:
                read[chunk.source] = read.get(chunk.source, b"") + chunk.data
            return len(read) == 3 and b"more" in read["n1/rank-0"]

        await eventually(more, "a pod that came later, and what was added", 10.0)
        await backend.close()
        return read

    assert asyncio.run(story()) == {
        "n1/rank-0": b"hello from rank-0\nand more\n",
        "n1/rank-1": b"hello from rank-1\n",
        "n2/rank-2": b"hello from rank-2\n",
    }


def test_they_wait_run_and_end() -> None:
    async def story() -> None:
        api, backend = connected()
        none = await backend.observe_pods(SELECTION)
        assert (none.state, none.reason) == (JobState.QUEUED, "No pod in ns matches 'app=llama'.")
        api.add_pod("a", LLAMA, node=None)
        assert (await state_becomes(backend, JobState.QUEUED)).code is None
        api.add_pod("b", LLAMA)
        await state_becomes(backend, JobState.RUNNING)
        await api.end_pod("b", 0)
        await state_becomes(backend, JobState.QUEUED)
        await api.end_pod("a", 1)
        ended = await state_becomes(backend, JobState.ENDED)
        assert (ended.code, ended.reason) == (1, "a ended with exit code 1 (Error)")
        await backend.close()

    asyncio.run(story())


def test_pods_that_are_gone_may_come_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that restarts a job deletes its pods first."""

    async def story() -> None:
        api, backend = connected()
        api.add_pod("a", LLAMA)
        await state_becomes(backend, JobState.RUNNING)
        await api.remove(api.pods()[0])
        await state_becomes(backend, JobState.QUEUED)
        api.add_pod("a", LLAMA)
        await state_becomes(backend, JobState.RUNNING)
        await api.remove(api.pods()[0])
        monkeypatch.setattr(selected, "GONE_SECONDS", 0.0)
        assert "gone" in (await state_becomes(backend, JobState.GONE)).reason
        await backend.close()

    asyncio.run(story())


def test_what_is_not_allowed_says_nothing_about_the_pods() -> None:
    async def story() -> None:
        api, backend = connected()

        async def refuses(path: str, **_: Any) -> Any:
            raise ApiError(403, "Forbidden", "pods is forbidden")

        api.get = refuses  # type: ignore[method-assign]
        with pytest.raises(UnreachableError, match="forbidden"):
            await backend.observe_pods(SELECTION)
        await backend.close()

    asyncio.run(story())


def test_of_several_containers_the_one_that_trains_is_read() -> None:
    """The one that was named, the pod's default, the one that asks for GPUs, the first."""

    def container_of(selection: PodSelection, annotations: dict[str, str], gpus: bool = True) -> str:
        limits = {"limits": {"nvidia.com/gpu": 8}} if gpus else {}
        containers = [{"name": "proxy"}, {"name": "train", "resources": limits}]
        pod = {"metadata": {"name": "a", "uid": "u", "annotations": annotations}, "spec": {"containers": containers}}
        return selected.SelectedPods(None, selection)._read(pod).container  # type: ignore[arg-type]

    assert container_of(SELECTION, {}) == "train"
    assert container_of(SELECTION, {}, gpus=False) == "proxy"
    assert container_of(SELECTION, {"kubectl.kubernetes.io/default-container": "train"}, gpus=False) == "train"
    assert container_of(SELECTION.but(container="proxy"), {}) == "proxy"


# --- what pods do together ---------------------------------------------------------------------------------------


def pod(name: str, code: int | None = None, made: int = 0, ended: int = 10, slot: str | None = None) -> PodFacts:
    """A pod that runs, or ended with a code; times are minutes."""
    end = Ended("main", code, "", "", BEGAN + timedelta(minutes=ended)) if code is not None else None
    return PodFacts(
        name=name,
        uid=f"{name}-{made}",
        node="n1",
        created=BEGAN + timedelta(minutes=made),
        running=code is None,
        ended=end,
        slot=slot or name,
    )


@pytest.mark.parametrize(
    ("pods", "state", "code"),
    [
        pytest.param([pod("a", 0), pod("b")], JobState.RUNNING, None, id="one has finished, the other runs"),
        pytest.param([pod("a", 1), pod("b")], JobState.RUNNING, None, id="one failed, the other runs (yet)"),
        pytest.param([pod("a", 1), pod("b", 0)], JobState.ENDED, 1, id="one failed"),
        pytest.param([pod("a", 1), pod("b", 0, made=11)], JobState.ENDED, 0, id="a Job tried again, and it worked"),
        pytest.param([pod("a", 1, ended=5), pod("b", 2, made=6)], JobState.ENDED, 2, id="it did not work"),
        pytest.param(
            [pod("w0", 1, slot="0"), pod("w1", 0, made=11, slot="1")],
            JobState.ENDED,
            1,
            id="another index is another place",
        ),
        pytest.param(
            [pod("w0", 1, slot="0"), pod("w0-x", 0, made=3, slot="0")], JobState.ENDED, 0, id="the same index does"
        ),
    ],
)
def test_what_pods_do_together(pods: list[PodFacts], state: JobState, code: int | None) -> None:
    assert selected.state_of(pods)[:2] == (state, code)


# --- the sensor's lookout on pods --------------------------------------------------------------------------------


class Desk:
    """A desk whose clock runs faster than the cluster's; each sleep is a turn of the story."""

    def __init__(self, turns: Any) -> None:
        self.turns, self.second = turns, 0.0
        self.said: list[str] = []

    def say(self, text: str, *, warning: bool = False) -> None:
        self.said.append(text)

    async def publish(self, key: str, value: Any) -> None:
        pass

    async def recall(self, key: str) -> Any:
        return None

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.second)

    async def sleep(self, seconds: float) -> None:
        self.second += seconds
        await self.turns(round(self.second))
        await asyncio.sleep(0.001)  # the watch's and the logs' tasks


def look(turns: Any, **order: Any) -> tuple[LookoutResult, Desk]:
    """Look once a second; ``turns(api, second)`` says what happens in the cluster meanwhile."""

    async def story() -> tuple[LookoutResult, Desk]:
        api, backend = connected()
        desk = Desk(lambda second: turns(api, second))
        hang = {"quick_seconds": 4.0, "floor_seconds": 30.0, "ceiling_seconds": 300.0, "startup_seconds": 60.0}
        info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
        full = {"info": info, "pods": SELECTION, "hang": hang, "poll_seconds": 1.0, **order}
        result = await asyncio.wait_for(Lookout(LookoutOrder.from_record(full), desk).watch(), 30)
        await backend.close()
        return result, desk

    return asyncio.run(story())


async def two_ranks(api: FakeApi, second: int, last: int) -> None:
    """Pods come after a while; rank 1 alone prints steps, rank 0 talks about other things."""
    if second == 70:
        for rank in (0, 1):
            api.add_pod(f"rank-{rank}", {**LLAMA, "batch.kubernetes.io/job-completion-index": str(rank)})
    if 80 < second <= 80 + last:
        await api.print("rank-1", f"step {second - 80} | loss 2.5")
        await api.print("rank-0", f"GPU memory {second} MB")


@pytest.mark.row("S6")
def test_the_rank_that_prints_is_found_and_training_ends_with_its_pods() -> None:
    async def turns(api: FakeApi, second: int) -> None:
        await two_ranks(api, second, 60)
        if second == 142:
            await api.end_pod("rank-0", 0)
            await api.end_pod("rank-1", 0)

    result, desk = look(turns)
    assert (result.end, result.progress.step, result.progress.loss) == ("ended", 60, 2.5)
    assert any("No pod in ns matches" in text for text in desk.said), "a selector that is wrong shows in the log"


@pytest.mark.row("P8")
def test_pods_that_hang_are_a_verdict_and_pods_that_wait_are_none() -> None:
    """Seventy seconds without a pod are more than the start-up clock allows here, and nobody's hang."""

    async def turns(api: FakeApi, second: int) -> None:
        await two_ranks(api, second, 77)

    result, desk = look(turns)
    assert (result.end, result.verdict.last_step if result.verdict else None) == ("hung", 77)
    assert desk.second <= 80 + 77 + 4 + 10 + 3


def test_a_failed_pod_fails_it_and_pods_that_were_cleaned_up_after_the_end_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selected, "GONE_SECONDS", 0.0)

    async def fails(api: FakeApi, second: int) -> None:
        await two_ranks(api, second, 20)
        if second == 102:
            await api.end_pod("rank-0", 137)
            await api.end_pod("rank-1", 1)

    assert look(fails)[0].text == "The job has ended without success: rank-0 ended with exit code -9 (Error)."

    async def cleans(api: FakeApi, second: int) -> None:
        await two_ranks(api, second, 20)
        if second == 102:
            await api.print("rank-1", "Training completed.")
        if second == 106:
            for one in api.pods():
                await api.remove(one)

    assert look(cleans)[0].end == "ended"


def test_a_pod_that_runs_on_ends_with_the_users_line() -> None:
    async def turns(api: FakeApi, second: int) -> None:
        await two_ranks(api, second, 20)
        if second == 102:
            await api.print("rank-1", "bye")

    assert look(turns, end_pattern="^bye$")[0].end == "ended"
