"""Preflight inside the allocation, on real processes of the local backend: it keeps training out, or lets it in."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.backends.base import JobState, Observation
from airflow_ft.backends.local.folder import JobFolder
from airflow_ft.core.chain import JobRef
from airflow_ft.core.classify import classify
from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.diagnosis.signature_files import load_rules
from tests.backends.conformance import LocalSystem

pytestmark = [pytest.mark.row("S3"), pytest.mark.row("M8")]

TRAIN = (sys.executable, "-c", "open('runs', 'a').write('ran\\n')")


@pytest.fixture
def system(local: LocalSystem) -> LocalSystem:
    return local


def told(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async story as a test."""

    @wraps(story)
    def test(**given: Any) -> None:
        asyncio.run(story(**given))

    return test


def settings(**given: object) -> dict[str, object]:
    # What this machine happens to be is no matter of these tests.
    skip = ("disk-size root", "disk-size shm", "disk-free root", "memory-free", "xid", "gpu-check", "gpu-health")
    policy = FaultTolerancePolicy.full(preflight={"set": "quick", "skip": skip, **given})
    return policy.preflight_for_agent()


async def submitted(system: LocalSystem, nodes: int, preflight: dict[str, object]) -> JobRef:
    job = system.job(*TRAIN, nodes=nodes)
    return await system.backend.submit(job, system.submission(preflight=preflight))


async def diagnosed(system: LocalSystem, ref: JobRef, seen: Observation) -> Diagnosis:
    evidence = tuple(await system.backend.evidence(ref))
    return classify(Facts(evidence=evidence, nodes=tuple(node.node for node in seen.nodes)), load_rules())


@told
async def test_training_begins_when_every_item_holds(system: LocalSystem) -> None:
    ref = await submitted(system, 2, settings())
    seen = await system.until(ref, JobState.ENDED)
    assert seen.code == 0
    assert system.runs() == 2
    assert "item=memory-free" not in await system.output(ref)
    assert "item=checkpoint status=skipped" in await system.output(ref)


@pytest.mark.row("M9")
@told
async def test_a_node_with_a_full_disk_is_kept_out_and_named(system: LocalSystem) -> None:
    small = system.scratch / "n2"
    small.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small]).returncode:
        pytest.skip("a disk of one's own takes root and the right to mount")
    try:
        ref = await submitted(system, 2, settings(checkpoints=str(system.scratch / "{node}")))
        seen = await system.until(ref, JobState.ENDED)
    finally:
        subprocess.run(["umount", small], check=True)
    assert [node.code for node in seen.nodes if node.node == "n2"] == [78]
    output = await system.output(ref)
    assert "item=checkpoint status=failed" in output
    assert "item=checkpoint status=ok" in output
    diagnosis = await diagnosed(system, ref, seen)
    assert diagnosis.fault_class is FaultClass.HW_NODE
    assert diagnosis.suspect_nodes == ("n2",)
    assert diagnosis.retry is Retry.USEFUL
    assert "No space left" in diagnosis.text
    assert "writable" in diagnosis.advice


@told
async def test_an_item_that_fails_everywhere_blames_no_node(system: LocalSystem) -> None:
    ref = await submitted(system, 2, settings(hosts=["storage.does-not-exist.invalid"]))
    seen = await system.until(ref, JobState.ENDED)
    assert seen.code == 78
    assert system.runs() == 0
    diagnosis = await diagnosed(system, ref, seen)
    assert diagnosis.fault_class is FaultClass.ENV_ERROR
    assert diagnosis.suspect_nodes == ()
    assert "item=dns status=failed value=storage.does-not-exist.invalid" in diagnosis.text


@told
async def test_an_own_item_by_command(system: LocalSystem) -> None:
    check = ["sh", "-c", "test $FT_NODE != n1 || { echo the fan is loud; exit 3; }"]
    ref = await submitted(system, 2, settings(commands={"fan": check}))
    seen = await system.until(ref, JobState.ENDED)
    diagnosis = await diagnosed(system, ref, seen)
    assert diagnosis.suspect_nodes == ("n1",)
    assert "item=fan status=failed value=the fan is loud" in diagnosis.text


@pytest.mark.parametrize(("on_error", "runs"), [("train", 1), ("fail", 0)])
@told
async def test_a_preflight_that_hangs_is_cut_and_the_policy_says_what_follows(
    system: LocalSystem, on_error: str, runs: int
) -> None:
    # The agent's helper process is stopped by its own first command: nothing answers any more.
    policy = FaultTolerancePolicy.full(
        preflight={"set": "quick", "seconds": 0.5, "commands": {"stuck": ["sh", "-c", "kill -STOP $PPID; sleep 1"]}},
        on_preflight_error=on_error,
    )
    ref = await submitted(system, 1, policy.preflight_for_agent())
    seen = await system.until(ref, JobState.ENDED)
    assert system.runs() == runs
    assert seen.code == (0 if on_error == "train" else 78)


@told
async def test_a_cancel_during_the_preflight_starts_nothing(system: LocalSystem) -> None:
    ref = await submitted(system, 1, settings(commands={"slow": ["sleep", "7"]}))
    await system.until(ref, JobState.STARTING, JobState.RUNNING)
    await system.backend.cancel(ref, 1.0)
    assert system.runs() == 0
    assert system.processes(ref) == []


@told
async def test_all_nodes_are_compared_within_ten_seconds(system: LocalSystem) -> None:
    ref = await submitted(system, 4, settings(set="standard"))
    seen = await system.until(ref, JobState.ENDED, deadline=60)
    assert seen.code == 0, await system.output(ref)
    folder = JobFolder(system.root, ref.name)
    for node in ("n1", "n2", "n3", "n4"):
        record = json.loads(Path(folder.node(node), "preflight.json").read_text())
        items = {item[0]: item[1] for item in record["items"]}
        assert items["comm"] == items["comm together"] == items["cpu-speed"] == items["clock"] == "ok"


@pytest.mark.row("M2")
def test_with_no_restarts_there_is_no_preflight() -> None:
    wanted = PreflightSettings(set="standard")
    assert FaultTolerancePolicy.full(max_restarts=0, preflight=wanted).preflight_for_agent() == {}
    assert FaultTolerancePolicy.off(preflight=wanted).preflight_for_agent() == {}
    assert FaultTolerancePolicy.full(preflight=wanted).preflight_for_agent()["set"] == "standard"
