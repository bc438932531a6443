"""Probe jobs on real nodes: a preflight of idle nodes, and a bisect that finds the one on which a program fails."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.diagnosis.bisecting import Bisecting
from airflow_ft.diagnosis.preflighting import Preflighting
from tests.kubernetes.lab import Lab

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


@pytest.mark.row("S3")
def test_a_preflight_of_idle_nodes_names_the_bad_one_and_leaves_nothing(lab: Lab) -> None:
    """Each node's answer counts: the one that fails doesn't take the others' along."""

    async def story(lab: Lab) -> None:
        job = lab.job("PyTorchJob", "ok")
        pool = (await lab.backend.pool(job)).nodes
        bad, *good = pool
        check = ("sh", "-c", f"test $FT_NODE != {bad}")
        settings = PreflightSettings(set="quick", commands={"check": check}, skip=("disk-size", "dns", "ulimit"))
        look = Preflighting(lab.backend, job, settings, f"{lab.chain}-p", lab.chain, pool, now, print)
        report = await look.look(pool)
        assert (report.bad_nodes, report.good_nodes, report.untested) == ((bad,), tuple(good), {})
        assert lab.pods() == []

    lab.play(story)


@pytest.mark.row("S4")
def test_a_bisect_finds_the_node_on_which_a_program_fails(lab: Lab) -> None:
    """Groups of nodes, one pod on each, until no other explanation is left."""

    async def story(lab: Lab) -> None:
        job = lab.job("Job", "ok")
        pool = (await lab.backend.pool(job)).nodes
        bad = pool[-1]
        settings = BisectSettings(command=("sh", "-c", f"test $FT_NODE != {bad}"), group_min=1, test_seconds=60.0)
        search = Bisecting(lab.backend, job, settings, f"{lab.chain}-b", lab.chain, pool, now, print)
        result = await search.search(pool)
        assert result.faulty_nodes == (bad,)
        assert lab.pods() == []

    lab.play(story)


def now() -> datetime:
    return datetime.now(timezone.utc)
