"""The preflight of nodes as a probe job, on real processes, where it can't be had of every node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.diagnosis.preflighting import Preflighting, PreflightReport
from tests.backends.conformance import LocalSystem

pytestmark = [pytest.mark.row("S3"), pytest.mark.timeout(200)]
NODES = ("n1", "n2", "n3")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "root")
    assert [job.name for job in inventory.list_jobs(str(tmp_path / "root")) if not job.closed] == []


def preflight(root: str, scratch: Path, **settings: object) -> Preflighting:
    return Preflighting(
        backend=create_backend(),
        job=LocalJob(command="false", root=root, workdir=str(scratch)),
        settings=PreflightSettings(**{"set": "quick", **settings}),
        name="look-1-p",
        chain_id="look-1",
        pool=(*NODES, "n4"),
        now=lambda: datetime.now(timezone.utc),
        say=lambda text: None,
    )


def test_a_node_that_is_lost_half_way_is_not_tested_and_the_others_are(root: str, tmp_path: Path) -> None:
    waits = ["sh", "-c", "test $FT_NODE != n3 || sleep 60"]

    async def looked() -> PreflightReport:
        looking = asyncio.ensure_future(preflight(root, tmp_path, commands={"waits": waits}).look(NODES))
        job = Path(root, "jobs", "look-1-p")
        while not (job / "nodes" / "n3" / "state.json").exists():
            assert not looking.done()
            await asyncio.sleep(0.05)
        inventory.lose_node(root, "default", "n3")
        return await looking

    report = asyncio.run(looked())
    assert report.good_nodes == ("n1", "n2")
    assert set(report.untested) == {"n3"}, "what it has said before its end is no pass"
    assert "Not tested: n3" in str(report)


def test_nodes_that_somebody_else_has_are_not_tested(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.diagnosis.probing.START_SECONDS", 1.0)
    holder = LocalSystem(tmp_path)
    holder.root = root
    ref = asyncio.run(holder.submit("sleep", "600", nodes=1))
    report = asyncio.run(preflight(root, tmp_path).look(NODES))
    asyncio.run(holder.backend.cancel(ref, 0.0))
    assert report.nodes == {}
    assert set(report.untested) == set(NODES)
    assert "never started" in str(report)


def test_a_name_that_was_cancelled_is_no_pass(root: str, tmp_path: Path) -> None:
    one = preflight(root, tmp_path)
    asyncio.run(one.backend.fence(one.name, one.chain_id, one.job))
    report = asyncio.run(one.look(NODES))
    assert report.good_nodes == ()
    assert set(report.untested) == set(NODES)
