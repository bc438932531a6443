"""A bisect on real probe jobs of the local backend: a fault that shows only when two certain nodes work together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.bisect import BisectResult
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.chain import JobRef
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.diagnosis.bisecting import Bisecting

pytestmark = [pytest.mark.row("S4"), pytest.mark.row("P6"), pytest.mark.timeout(280)]

# Each node leaves its name in the job's folder, waits for the others, and fails if the culprits are all there.
REPRODUCER = """
import os, sys, time
bad = set(sys.argv[1].split(","))
place = os.path.join(sys.argv[2], os.environ["FT_CHAIN_ID"], os.environ["FT_JOB"].split(":")[0])
os.makedirs(place, exist_ok=True)
open(os.path.join(place, os.environ["FT_NODE"]), "w").close()
end = time.monotonic() + 30
while len(os.listdir(place)) < int(os.environ["FT_NNODES"]):
    if time.monotonic() > end: sys.exit(9)
    time.sleep(0.05)
sys.exit(17 if bad <= set(os.listdir(place)) else 0)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "root")
    assert [job.name for job in inventory.list_jobs(str(tmp_path / "root")) if not job.closed] == []


def search(
    root: str, scratch: Path, bad: str, nodes: int = 8, look: PreflightSettings | None = None, **settings: object
) -> tuple[BisectResult, list[str]]:
    said: list[str] = []
    command = (sys.executable, "-I", "-S", "-c", REPRODUCER, bad, str(scratch / "meet"))
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    one = Bisecting(
        backend=create_backend(),
        job=LocalJob(command="true", root=root, pool_nodes=nodes, workdir=str(scratch)),
        settings=BisectSettings(**{"command": command, "test_seconds": 60.0, **settings}),
        name="dag.run.task-b0",
        chain_id="dag.run.task",
        pool=names,
        now=lambda: datetime.now(timezone.utc),
        say=said.append,
        look=look or PreflightSettings(set="standard"),
    )
    return asyncio.run(one.search(names)), said


def test_a_fault_that_appears_only_when_n3_and_n7_work_together_is_named_as_a_pair(root: str, tmp_path: Path) -> None:
    result, said = search(root, tmp_path, "n3,n7")
    assert result.faulty_links == (("n3", "n7"),)
    assert result.faulty_nodes == ()
    assert any("Suspects left:" in line for line in said)
    assert said[-1].startswith("Bisect: found the link n3 – n7")


def test_a_bad_node_is_named_and_the_others_are_cleared(root: str, tmp_path: Path) -> None:
    result, _ = search(root, tmp_path, "n2", nodes=4)
    assert result.faulty_nodes == ("n2",)
    assert set(result.cleared_nodes) == {"n1", "n3", "n4"}


def test_without_a_reproducer_the_preflight_is_the_test_with_what_it_leaves_out(root: str, tmp_path: Path) -> None:
    fan = ("sh", "-c", "test $FT_NODE != n3")
    everywhere = ("dns", "disk-size root", "disk-size shm", "disk-free root", "memory-free")
    look = PreflightSettings(set="quick", commands={"fan": fan}, hosts=("no.such.invalid",), skip=everywhere)
    result, _ = search(root, tmp_path, "", nodes=4, look=look, command=())
    assert result.faulty_nodes == ("n3",)


def test_a_search_that_is_repeated_adopts_the_tests_that_have_run(root: str, tmp_path: Path) -> None:
    first, _ = search(root, tmp_path, "n2", nodes=4)
    jobs = {job.name for job in inventory.list_jobs(root)}
    second, _ = search(root, tmp_path, "n2", nodes=4)
    assert second == first
    assert {job.name for job in inventory.list_jobs(root)} == jobs, "nothing ran again"


def test_a_test_that_finds_no_node_is_lost_and_blames_nobody(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.diagnosis.probing.START_SECONDS", 1.0)
    # n1 is held by another job for all the time.
    from tests.backends.conformance import LocalSystem

    holder = LocalSystem(tmp_path)
    holder.root = root
    ref: JobRef = asyncio.run(holder.submit("sleep", "600", nodes=1))
    result, _ = search(root, tmp_path, "n9", nodes=4, max_tests=2)
    asyncio.run(holder.backend.cancel(ref, 0.0))
    assert result.lost == 2
    assert result.faulty_nodes == ()
    assert "n1" in result.inconclusive
