"""A probe job whose worker was lost is removed when its task is over: by the collector, or by ``airflow ft reap``."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.attempts.probe_work import PROBE_KEY, Work
from airflow_ft.backends.base import JobState, Submission
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import JobRef
from airflow_ft.views import probes
from tests.attempts.dict_store import DictStore
from tests.views.chains import Tables

pytestmark = [pytest.mark.row("S4"), pytest.mark.timeout(300)]
OVER = (JobState.ENDED, JobState.GONE)


@pytest.fixture
def ref(tmp_path: Path) -> JobRef:
    """A probe job that would run for an hour."""
    job = LocalJob(command="sleep 3600", root=str(tmp_path), pool_nodes=1)
    made = asyncio.run(create_backend().submit(job, Submission(name="look-p", chain_id="look", attempt=0, hold=0.0)))
    asyncio.run(create_backend().observe(made))
    return made


@pytest.fixture
def tables(ref: JobRef, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    """A task that began the job, and whose worker was lost."""
    store, tables = DictStore(), Tables()
    Work(store, "look").began(ref)
    tables.put({PROBE_KEY: json.dumps(store.get(PROBE_KEY))}, "a", task_id="look", state="running")

    @contextmanager
    def database() -> Iterator[Any]:
        yield tables.session

    from airflow_ft.cli import reap
    from airflow_ft.plugins import collector

    for module in (probes, reap, collector):
        monkeypatch.setattr(module, "database", database)
    yield tables
    tables.session.close()


def end_task(tables: Tables) -> None:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import update

    tables.session.execute(update(TaskInstance).values(state="failed"))
    tables.session.commit()


def state(ref: JobRef) -> JobState:
    return asyncio.run(create_backend().observe(ref)).state


def test_nobody_touches_it_while_its_task_may_go_on_and_the_second_look_after_that_removes_it(
    tables: Tables, ref: JobRef
) -> None:
    from airflow_ft.plugins.collector import collect

    assert collect({ref.uid}) == set()
    end_task(tables)
    assert collect(set()) == {ref.uid}, "its process may still be at it"
    assert state(ref) not in OVER
    collect({ref.uid})
    assert state(ref) in OVER
    assert collect({ref.uid}) == set()


def test_reap_removes_it_when_a_person_says_so(tables: Tables, ref: JobRef, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_ft.cli.reap import reap

    end_task(tables)
    reap(Namespace(yes=False))
    assert capsys.readouterr().out.splitlines() == [
        "local probe job look-p: its task is failed",
        "Run it again with --yes to stop them.",
    ]
    reap(Namespace(yes=True))
    assert "  stopped" in capsys.readouterr().out
    assert state(ref) in OVER
    reap(Namespace(yes=False))
    assert capsys.readouterr().out == "Nothing is owed.\n"
