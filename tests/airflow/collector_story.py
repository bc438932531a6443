"""A process with a database of its own: a task is over, its training goes on, and only the collector is there.

Run by ``test_airflow_collector``. Prints what the chain says after each step, as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_ft.attempts.record import with_event
from airflow_ft.attempts.store import CHAIN_KEY, attempt_key, attempt_record, chain_record
from airflow_ft.backends.base import JobState, Submission, UnreachableError
from airflow_ft.backends.local.backend import LocalBackend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import Attempt, AttemptState, Chain, JobRef
from airflow_ft.plugins import collector
from airflow_ft.views import debts
from airflow_ft.views.records import database, read_chain

TASK = ("d", "r", "t")
TRAINING = 'import time\nfor step in range(1, 9999): print(f"step {step}/9999 loss 1.0"); time.sleep(0.05)'
NOW = datetime.now(timezone.utc)


def main(home: Path, older_news: bool) -> None:
    """Live the story."""
    ref = asyncio.run(submitted())
    write_rows(home / "airflow.db", ref, older_news)
    cancel = LocalBackend.cancel
    LocalBackend.cancel = unable  # type: ignore[method-assign]
    seen = step("a task that has just ended is left to its own", set())
    seen = step("it can't be stopped", seen)
    seen = step("told already", seen)
    LocalBackend.cancel = cancel  # type: ignore[method-assign]
    with database() as session:
        (stale,) = debts.owed(session)
    seen = step("it can be stopped", seen)
    step("nothing is owed", seen)
    with database() as session:
        written = debts.write_down(session, stale, "somebody was faster", NOW)
    print(json.dumps({"step": "what was read before", "written": written is not None}))


async def unable(self: LocalBackend, *_: Any, **__: Any) -> None:
    """What a process says that has no access."""
    raise UnreachableError("no access from here.")


async def submitted() -> JobRef:
    """Start a training, and wait until it makes steps."""
    backend = LocalBackend()
    job = LocalJob(command=["python", "-u", "-c", TRAINING])
    ref = await backend.submit(job, Submission(name="train-x-a0", chain_id="train-x", attempt=0))
    while not any(b"step 9/" in tail.data for tail in await backend.log_tails(ref, 10_000)):
        await asyncio.sleep(0.1)
    return ref


def write_rows(path: Path, ref: JobRef, older_news: bool) -> None:
    """What a try has left: a chain with an open attempt. And what a person has done: the task is marked failed."""
    chain = Chain(
        chain_id="train-x", dag_id="d", run_id="r", task_id="t", created_at=NOW, attempts=1, open=0, grace_seconds=1
    )
    if older_news:  # as of a task that tells nobody
        chain = with_event(chain, NOW, "fault", "A fault.", 0)
    attempt = Attempt(number=0, name=ref.name, state=AttemptState.SUBMITTED, ref=ref, created_at=NOW)
    rows = {CHAIN_KEY: chain_record(chain), attempt_key(0): attempt_record(attempt)}
    with sqlite3.connect(path) as connection:  # without foreign keys: there is no run
        for key, value in rows.items():
            connection.execute(
                "INSERT INTO task_state_store (dag_run_id, dag_id, run_id, task_id, map_index, key, value, updated_at)"
                " VALUES (1, 'd', 'r', 't', -1, ?, ?, '2026-01-01 00:00:00')",
                (key, json.dumps(value)),
            )
        connection.execute(
            "INSERT INTO task_instance (id, dag_id, run_id, task_id, map_index, state, try_number, max_tries, pool,"
            " pool_slots, span_status) VALUES ('0', 'd', 'r', 't', -1, 'failed', 1, 1, 'p', 1, 'ended')"
        )


def step(what: str, seen: set[str]) -> set[str]:
    """Collect once, and print how things stand."""
    seen = collector.collect(seen)
    with database() as session:
        stored = read_chain(session, *TASK)
        owed = [found.why for found in debts.owed(session)]
    chain = stored.chain
    (attempt,) = stored.attempts
    alive = asyncio.run(LocalBackend().observe(attempt.ref)).state is JobState.RUNNING if attempt.ref else False
    shown = {
        "step": what,
        "alive": alive,
        "open": chain.open,
        "concluded": chain.concluded.value if chain.concluded else None,
        "debts": len(chain.debts),
        "events": [event.kind for event in chain.events if event.kind != "fault"],
        "notified": chain.notified,
        "highest_step": chain.highest_step,
        "fenced": attempt.fenced,
        "owed": owed,
    }
    print(json.dumps(shown), flush=True)
    return seen


if __name__ == "__main__":
    if "only-begin" in sys.argv:
        write_rows(Path(sys.argv[1]) / "airflow.db", asyncio.run(submitted()), older_news=False)
    else:
        main(Path(sys.argv[1]), older_news="older-news" in sys.argv)
