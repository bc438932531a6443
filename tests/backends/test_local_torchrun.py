"""Real torchrun training over two virtual nodes: a rank dies, the job is restarted in place, and trains on."""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends.base import JobState, Order
from tests.backends.conformance import LocalSystem, eventually

pytest.importorskip("torch")

TRAIN = """
import os, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, generation = dist.get_rank(), os.environ["FT_GENERATION"]
for step in range(100000):
    total = torch.ones(8)
    dist.all_reduce(total)
    stop = torch.tensor([float(os.path.exists("done"))])
    dist.all_reduce(stop)
    if step % 10 == 0:
        print(f"gen={generation} rank={rank} step={step} sum={total[0]:.0f}", flush=True)
    if stop[0] == 4:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("options", [[], ["--rdzv-id=mine"]], ids=["our-rendezvous", "the-users-rendezvous"])
def test_a_killed_rank_is_held_and_trains_on_after_a_restart_in_place(local: LocalSystem, options: list[str]) -> None:
    """Two nodes with two ranks each: all four reduce again in the new generation; every rank has its own log."""
    (local.scratch / "train.py").write_text(TRAIN)

    async def story() -> None:
        ref = await local.submit("torchrun", *options, "--nproc-per-node=2", "train.py", nodes=2, hold=120)
        await all_step(local, ref, generation=0)
        os.kill(rank(local, ref, "3"), signal.SIGKILL)
        seen = await local.until(ref, JobState.HELD)
        assert any(node.state is JobState.HELD and node.code == 1 for node in seen.nodes)
        assert await local.backend.restart_in_place(ref, Order(generation=1, digest="d")) == []
        await all_step(local, ref, generation=1)
        (local.scratch / "done").touch()
        seen = await local.until(ref, JobState.ENDED, JobState.GONE, JobState.HELD)
        assert (seen.state, seen.code, seen.generation) == (JobState.ENDED, 0, 1)
        tails = {tail.source: tail.data for tail in await local.backend.log_tails(ref, 10_000)}
        ranks = [f"n{node}/rank{local_rank}.stdout" for node in (1, 2) for local_rank in (0, 1)]
        assert all(b"gen=1" in tails[source] for source in ranks)

        async def nothing_is_left() -> bool:
            return local.processes(ref) == []

        await eventually(nothing_is_left, "nothing is left")

    asyncio.run(story())


async def all_step(local: LocalSystem, ref, generation: int) -> None:  # type: ignore[no-untyped-def]
    """Wait until all four ranks have summed over all four."""

    async def look() -> bool:
        output = await local.output(ref)
        return set(re.findall(rf"gen={generation} rank=(\d) step=\d+ sum=4", output)) == set("0123")

    await eventually(look, f"all step in generation {generation}", deadline=120, every=0.3)


def rank(local: LocalSystem, ref, number: str) -> int:  # type: ignore[no-untyped-def]
    """The process of a rank."""
    (found,) = [pid for pid in local.processes(ref) if processes.variable(pid, "RANK") == number]
    return found
