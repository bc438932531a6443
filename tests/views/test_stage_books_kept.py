"""A run that timed out as a whole has skipped the task that keeps its chain: the newest book is kept in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.attempts.handing_on import OWN_BOOK
from airflow_ft.attempts.ports import TryInfo
from airflow_ft.core.chain import End
from airflow_ft.plugins import ended_tasks
from airflow_ft.views.books import keep_books, lost_books, run_exists
from airflow_ft.views.debts import owed, strike_off
from airflow_ft.views.records import ChainNotFoundError, read_chain
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_stages import Stages
from tests.views.chains import Tables

pytestmark = [pytest.mark.story("LIF-09"), pytest.mark.row("S1")]
RESULT, WATCH, SUBMIT = "train.result", "train.attempt_0.watch", "train.submit"
NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


class Grouped(Stages):
    """Stages that stand in a group."""

    def info(self) -> TryInfo:
        return super().info().but(task_id=RESULT)


def begun() -> Grouped:
    """A training whose first stage has begun it."""
    task = Grouped([Run(last=2000)], nodes=2)
    task.begin_try()
    task.run(task.starter().start())
    return task


def run_of(task: Grouped, *, state: str, result: str = "skipped", kept: dict[str, str] | None = None) -> Tables:
    """Airflow's tables: the watch has a newer book than the submission; ``kept`` is what the last task has kept."""
    made, newer = Tables(), task.book_record
    older: Any = {**newer, "serial": 0, "values": {**newer["values"]}}
    made.put({OWN_BOOK: json.dumps(older)}, "dag", task_id=SUBMIT)
    made.put({OWN_BOOK: json.dumps(newer)}, "dag", task_id=WATCH, state="skipped")
    if kept is not None:
        made.put(kept, "dag", task_id=RESULT, state=result)
    else:
        made.add_task("dag", RESULT, result)
    made.end_run(state)
    return made


def test_the_job_of_a_run_that_has_timed_out_is_found_and_struck_off() -> None:
    tables = run_of(begun(), state="failed")
    (found,) = owed(tables.session)
    assert found.why == "its task is skipped"
    chain = strike_off(tables.session, found, None, NOW)
    assert chain is not None
    stored = read_chain(tables.session, "dag", "run", RESULT)
    assert (stored.chain.open, stored.chain.concluded) == (None, End.CANCELLED)
    assert list(owed(tables.session)) == [], "and stays so: the books are older"
    assert lost_books(tables.session) == []


def test_while_a_run_goes_on_its_books_are_its_stages_own() -> None:
    tables = run_of(begun(), state="running")
    assert list(owed(tables.session)) == []
    with pytest.raises(ChainNotFoundError):
        read_chain(tables.session, "dag", "run", RESULT)
    (found,) = lost_books(tables.session, ("dag", "run"))
    assert found.stored().chain.open == 0, "but a job whose run is deleted is known by it"
    assert run_exists(tables.session, "dag", "run") and not run_exists(tables.session, "dag", "other")


def test_what_the_last_task_has_kept_stands() -> None:
    """The books of the stages before it still have the attempt open."""
    task = begun()
    kept = {key: json.dumps(value) for key, value in task.book.records().items()}
    tables = run_of(task, state="success", result="success", kept=kept)
    assert lost_books(tables.session) == []
    keep_books(tables.session)
    assert read_chain(tables.session, "dag", "run", RESULT).chain == task.chain


@pytest.mark.parametrize(("state", "found"), [("failed", 1), ("running", 0), ("deleted", 1)])
def test_a_run_that_has_ended_leaves_no_job_and_one_that_a_person_has_cleared_meanwhile_keeps_it(
    monkeypatch: pytest.MonkeyPatch, state: str, found: int
) -> None:
    """Between the end that was heard of and the look, ten seconds later."""
    tables = run_of(begun(), state="running")

    @contextmanager
    def opened() -> Iterator[Any]:
        yield tables.session

    monkeypatch.setattr(ended_tasks, "database", opened)
    ((key, before),) = ended_tasks._in_books(("dag", "run")).items()
    assert key == ("dag", "run", RESULT, -1)
    tables.end_run(state)
    owed_now, _ = ended_tasks._left(key, before, True)
    assert [one.ref.name for one in owed_now] == [before.attempts[0].name] * found
