"""What is left of a job is found and ended, whoever died before; what isn't the job's is never touched."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends.base import CancelIncompleteError, CancelledJobError, JobState, Order, UnreachableError
from airflow_ft.backends.local import cancel, inventory, survey
from airflow_ft.backends.local.folder import JobFolder
from tests.backends.conformance import LocalSystem, eventually

TREE = "setsid sh -c 'echo up >> up; sleep 1000' & echo up >> up; sleep 1000"


def state_path(local: LocalSystem, ref: Any, node: str = "n1") -> Path:
    return Path(local.root, "jobs", ref.name, "nodes", node, "state.json")


def state(local: LocalSystem, ref: Any, node: str = "n1") -> dict[str, Any]:
    found = json.loads(state_path(local, ref, node).read_text())
    assert isinstance(found, dict)
    return found


async def up(local: LocalSystem, count: int) -> None:
    async def look() -> bool:
        return local.runs("up") == count

    await eventually(look, f"{count} are up")


async def quiet(local: LocalSystem, ref: Any) -> None:
    """Wait until the agent has drawn its last breath."""

    async def look() -> bool:
        return local.processes(ref) == []

    await eventually(look, "nothing is left")


async def agent_dies(local: LocalSystem, ref: Any) -> None:
    """Kill the agent; training goes on."""
    pid = state(local, ref)["agent"]
    os.kill(pid, signal.SIGKILL)

    async def dead() -> bool:
        return processes.start_ticks(pid) is None

    await eventually(dead, "the agent is dead")


def test_a_command_without_its_agent_runs_on_and_is_ended_by_a_cancel(local: LocalSystem) -> None:
    """It is seen as running, takes no orders, and nothing of it survives."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        await agent_dies(local, ref)
        seen = await local.backend.observe(ref)
        assert (seen.state, seen.nodes[0].agent) == (JobState.RUNNING, False)
        assert "agent on n1 is dead" in seen.reason
        assert await local.backend.restart_in_place(ref, Order(generation=1, digest="d")) == ["n1"]
        assert await local.backend.release(ref, Order(generation=1, digest="d")) == []
        await local.backend.cancel(ref, 0.5)
        assert local.processes(ref) == []
        assert (await local.backend.observe(ref)).state is JobState.GONE

    asyncio.run(story())


@pytest.mark.story("WAT-03")
def test_an_end_that_nobody_saw_is_gone_and_not_a_failure(local: LocalSystem) -> None:
    """Agent and command are dead, there is no end marker: the result is not known."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        processes.kill_tree(local.processes(ref))
        seen = await local.backend.observe(ref)
        assert (seen.state, seen.code, seen.cancelled) == (JobState.GONE, None, False)
        assert "result is not known" in seen.reason
        with_same_name = await local.submit("sh", "-c", TREE)
        assert with_same_name == ref
        assert local.runs("up") == 2

    asyncio.run(story())


@pytest.mark.story("WAT-03")
def test_a_report_speaks_for_an_agent_that_could_not_write_its_state(local: LocalSystem) -> None:
    """The end marker outlives everything else."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", "true")
        await local.until(ref, JobState.ENDED)
        await quiet(local, ref)
        path = state_path(local, ref)
        path.write_text(json.dumps({**state(local, ref), "phase": "running", "code": None}))
        seen = await local.backend.observe(ref)
        assert (seen.state, seen.code) == (JobState.ENDED, 0)

    asyncio.run(story())


@pytest.mark.parametrize("key", ["agent", "child"])
def test_a_process_that_has_a_recorded_pid_by_chance_is_never_touched(
    local: LocalSystem, bystander: int, key: str
) -> None:
    """Pids are used again: the start time has to fit."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        processes.kill_tree(local.processes(ref))
        path = state_path(local, ref)
        path.write_text(json.dumps({**state(local, ref), key: bystander}))
        assert (await local.backend.observe(ref)).state is JobState.GONE
        await local.backend.cancel(ref, 0.2)
        inventory.lose_node(local.root, "default", "n1")

    asyncio.run(story())
    assert processes.is_alive(bystander, processes.start_ticks(bystander))


def test_after_a_reboot_everything_is_gone(local: LocalSystem, bystander: int) -> None:
    """Pids and start times of another boot say nothing."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        processes.kill_tree(local.processes(ref))
        started = processes.start_ticks(bystander)
        before = {"agent": bystander, "agent_start": started, "child": bystander, "child_start": started}
        state_path(local, ref).write_text(json.dumps({**state(local, ref), **before, "boot_id": "another"}))
        assert (await local.backend.observe(ref)).state is JobState.GONE
        await local.backend.cancel(ref, 0.2)

    asyncio.run(story())


def test_a_frozen_agent_does_not_stop_a_cancel(local: LocalSystem) -> None:
    """It can't pass TERM on, and is killed."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        os.kill(state(local, ref)["agent"], signal.SIGSTOP)
        await local.backend.cancel(ref, 0.3)
        assert local.processes(ref) == []

    asyncio.run(story())


def test_a_cancel_that_can_not_finish_says_so(local: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A debt, with the pids; the name is closed all the same, and the next cancel pays."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        with monkeypatch.context() as patch:
            patch.setattr(cancel, "KILL_SECONDS", 0.3)
            patch.setattr(processes, "kill_tree", lambda *_: [])
            with pytest.raises(CancelIncompleteError, match="still there"):
                await local.backend.cancel(ref, 0)
        with pytest.raises(CancelledJobError):
            await local.submit("sh", "-c", TREE)
        await local.backend.cancel(ref, 0)
        assert local.processes(ref) == []

    asyncio.run(story())


def test_an_agent_in_another_container_is_unreachable_and_not_gone(local: LocalSystem) -> None:
    """Its lock says that it lives, though no process of it can be seen; a cancel is owed."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", TREE)
        await up(local, 2)
        processes.kill_tree(local.processes(ref))
        with open(state_path(local, ref).with_name("agent.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(UnreachableError, match="another container"):
                await local.backend.observe(ref)
            with pytest.raises(CancelIncompleteError, match="can't reach"):
                await local.backend.cancel(ref, 0)
        await local.backend.cancel(ref, 0)

    asyncio.run(story())


def test_a_stopped_rank_is_named_as_stopped(local: LocalSystem) -> None:
    """It can't dump its stack, and that says enough."""

    async def story() -> None:
        code = "import os, time; os.system('echo up >> up'); time.sleep(1000)"
        ref = await local.submit(sys.executable, "-c", code, env={"RANK": "5"})
        await up(local, 1)
        child = state(local, ref)["child"]
        os.kill(child, signal.SIGSTOP)
        groups = await local.backend.dump_stacks(ref)
        assert [(group.pids, group.ranks, group.stopped) for group in groups] == [((child,), (5,), True)]

    asyncio.run(story())


def test_a_dead_agent_does_not_hide_the_stacks(local: LocalSystem) -> None:
    """The archive finds the orphans itself."""

    async def story() -> None:
        code = "import os, time\ndef lonely():\n    os.system('echo up >> up')\n    time.sleep(1000)\nlonely()"
        ref = await local.submit(sys.executable, "-c", code)
        await up(local, 1)
        await agent_dies(local, ref)
        assert any("lonely" in group.stack for group in await local.backend.dump_stacks(ref))

    asyncio.run(story())


def test_processes_without_the_marker_are_found_by_their_parents(local: LocalSystem) -> None:
    """A child with an empty environment still descends from one that has the marker."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", f"env -i setsid sleep 12345 & {TREE}")
        await up(local, 2)
        folder = JobFolder(local.root, ref.name)
        identity = folder.identity()
        assert identity is not None
        found = survey.everything(folder, identity)
        bare = set(found) - set(local.processes(ref))
        assert len(bare) == 1
        await local.backend.cancel(ref, 0)
        assert [pid for pid, started in found.items() if processes.is_alive(pid, started)] == []

    asyncio.run(story())


def test_the_first_sign_comes_before_the_end(local: LocalSystem) -> None:
    """A child that vanishes while the command still runs is when it began."""

    async def story() -> None:
        ref = await local.submit("sh", "-c", "sleep 1.4 & wait $!; sleep 0.6; exit 4")
        seen = await local.until(ref, JobState.HELD)
        node = seen.nodes[0]
        assert node.spawned_at is not None
        assert node.first_sign_at is not None
        assert node.exited_at is not None
        assert node.spawned_at < node.first_sign_at < node.exited_at

    asyncio.run(story())


def test_jobs_and_nodes_are_listed_for_people(local: LocalSystem) -> None:
    """With who holds a node and why one is down."""

    async def story() -> None:
        assert inventory.list_jobs(local.root) == []
        ref = await local.submit("sleep", "100", nodes=2)
        await local.until(ref, JobState.RUNNING)
        listed = inventory.list_jobs(local.root)
        assert [(job.name, job.nodes, job.closed) for job in listed] == [(ref.name, ("n1", "n2"), "")]
        inventory.lose_node(local.root, "default", "n2", "no fan")
        nodes = {node.node: node for node in inventory.list_nodes(local.root)}
        assert (nodes["n1"].job, nodes["n2"].down, nodes["n2"].why) == (ref.name, True, "no fan")
        assert nodes["n3"].address == "127.0.1.103"
        started = time.monotonic()
        await local.backend.cancel(ref, 600)
        assert time.monotonic() - started < 200, "it waits no longer than there is something to wait for"
        assert {node.job for node in inventory.list_nodes(local.root)} == {""}
        assert inventory.list_jobs(local.root)[0].closed == "cancelled"

    asyncio.run(story())
