"""Restart in place of a job whose nodes notice the fault one after the other: all of them, once, as one generation."""

from __future__ import annotations

import asyncio

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends.base import JobState, Order
from tests.backends.conformance import LocalSystem, eventually

NOTICE_SECONDS = (0.0, 2.0, 4.5, 9.0)  # a tenth of the story's
TRAIN = f"""
import os, signal, sys, time
node, generation = os.environ["FT_NODE_RANK"], os.environ["FT_GENERATION"]
open(f"began.{{node}}.{{generation}}.{{os.environ['PET_RDZV_ID']}}", "w").close()
if generation == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while not os.path.exists("fault"):
        time.sleep(0.05)
    time.sleep({NOTICE_SECONDS}[int(node)])
    sys.exit(1)
time.sleep(600)
"""


@pytest.mark.story("RST-09")
@pytest.mark.row("S4")
def test_nodes_that_notice_a_fault_late_are_restarted_with_the_first(local: LocalSystem) -> None:
    (local.scratch / "train.py").write_text(TRAIN)

    def began(generation: int) -> dict[str, str]:
        """The nodes that began a generation, and the rendezvous that they came to."""
        found = [path.name.split(".", 3) for path in local.scratch.glob(f"began.*.{generation}.*")]
        assert len(found) == len({node for _, node, _, _ in found}), "no node begins a generation twice"
        return {node: rendezvous for _, node, _, rendezvous in found}

    async def story() -> None:
        ref = await local.submit("python", "train.py", nodes=4, hold=120)

        async def all_began(generation: int) -> bool:
            return len(began(generation)) == 4

        await eventually(lambda: all_began(0), "four nodes", 60)
        (local.scratch / "fault").touch()
        await local.until(ref, JobState.HELD, deadline=60)
        assert await local.backend.restart_in_place(ref, Order(generation=1, digest="d")) == []
        await eventually(lambda: all_began(1), "the new generation on four nodes", 60)
        assert len(set(began(1).values())) == 1, "one rendezvous for all"
        assert not set(began(0).values()) & set(began(1).values()), "a straggler of the old generation can't join it"

        async def only_the_new_one() -> bool:
            ages = {processes.variable(pid, "FT_GENERATION") for pid in local.processes(ref)}
            return ages - {None} == {"1"}

        await eventually(only_the_new_one, "nothing is left of the old generation", 30)
        # Who had not noticed yet doesn't, either: its own end would have come by now.
        await asyncio.sleep(NOTICE_SECONDS[-1])
        seen = await local.backend.observe(ref)
        assert (seen.state, [node.generation for node in seen.nodes]) == (JobState.RUNNING, [1] * 4)

    asyncio.run(story())
