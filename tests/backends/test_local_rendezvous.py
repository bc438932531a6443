"""A user's own rendezvous: nothing of the new generation starts while something of the old one is there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from airflow_ft.agent import state as agent_state
from airflow_ft.backends.base import JobState, Order
from airflow_ft.backends.local import rendezvous
from airflow_ft.backends.local.folder import JobFolder
from tests.backends.conformance import LocalSystem, eventually

# Each generation looks for processes of the one before, and writes down how many it has seen.
COMMAND = """
import os, time
def alive(generation):
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file: env = file.read().split(b"\\0")
            with open(f"/proc/{pid}/stat") as file: dead = file.read().rpartition(")")[2].split()[0] in "ZX"
        except OSError: continue
        mine = b"FT_JOB=" + os.environ["FT_JOB"].encode() in env
        found += mine and not dead and f"FT_GENERATION={generation}".encode() in env
    return found
generation = int(os.environ["FT_GENERATION"])
with open(f"seen-{generation}-{os.environ['FT_NODE']}", "w") as file:
    file.write(str(alive(generation - 1)))
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("argv", "env", "fixed"),
    [
        (["torchrun", "train.py"], {}, False),
        (["torchrun", "--nproc-per-node=2", "train.py", "--steps", "3"], {}, False),
        (["torchrun", "--rdzv-id=1", "train.py"], {}, True),
        (["torchrun", "--rdzv_id", "1", "train.py"], {}, True),
        (["torchrun", "--master_addr", "127.0.0.1", "train.py"], {}, True),
        (["torchrun", "--rdzv-backend=static", "train.py"], {}, True),
        (["torchrun", "--rdzv_backend", "static", "train.py"], {}, True),
        (["torchrun", "--rdzv-backend", "c10d", "train.py"], {}, False),
        (["torchrun", "train.py"], {"PET_RDZV_ID": "1"}, True),
        (["torchrun", "train.py"], {"PET_RDZV_BACKEND": "static"}, True),
    ],
)
def test_a_rendezvous_that_the_user_fixes_is_known(argv: list[str], env: dict[str, str], fixed: bool) -> None:
    assert rendezvous.is_fixed(argv, env) == fixed


@pytest.mark.parametrize(("option", "overlaps"), [("--rdzv-id=mine", False), ("--steps=3", True)])
def test_everything_is_down_before_the_first_node_starts_again(local: LocalSystem, option: str, overlaps: bool) -> None:
    """The second node's agent stands still for a moment. With an id for each generation nobody needs to wait for it."""
    (local.scratch / "train.py").write_text(COMMAND)

    async def story() -> None:
        ref = await local.submit("python", "train.py", option, nodes=2)
        await local.until(ref, JobState.RUNNING)
        await eventually(lambda: seen(local, 0), "both nodes to run")
        folder = JobFolder(local.root, ref.name)
        agent = (agent_state.read_state(folder.node("n2")) or {})["agent"]
        os.kill(agent, signal.SIGSTOP)
        waking = threading.Timer(2.0, os.kill, (agent, signal.SIGCONT))
        waking.start()
        assert await local.backend.restart_in_place(ref, Order(generation=1, digest="d")) == []
        await eventually(lambda: seen(local, 1), "both nodes to run again")
        waking.join()
        assert (int((local.scratch / "seen-1-n1").read_text()) > 0) == overlaps
        again = await local.backend.restart_in_place(ref, Order(generation=1, digest="d"))
        assert again == [], "the same order again ends nothing"
        assert (await local.backend.observe(ref)).generation == 1
        await local.backend.cancel(ref, 0)

    asyncio.run(story())


async def seen(local: LocalSystem, generation: int) -> bool:
    """Whether both nodes have looked."""
    files = [local.scratch / f"seen-{generation}-n{node}" for node in (1, 2)]
    return all(file.exists() and file.read_text() for file in files)
