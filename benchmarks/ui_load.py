"""What the pages cost: the first page of 10,000 chains on SQLite and PostgreSQL, and 20 tabs that poll.

    python -m benchmarks.ui_load                 # both
    python -m benchmarks.ui_load --lists         # only the database
    python -m benchmarks.ui_load --tabs          # only the tabs, against a real Airflow

``--lists`` fills Airflow's tables with 10,000 chains of 128 attempts (1.29 million rows, records of a real size) and
measures the answer of each list as the API makes it, in this process. ``--tabs`` boots an Airflow with trainings that
run, polls 20 chains every 5 s as 20 tabs do, and compares the api-server's processor time and database queries with the
same time before: what a poll costs, Airflow's own work for authorisation included.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import psutil

CHAINS = 10_000
ATTEMPTS = 128
LIMIT_MS = 300.0
TABS = 20
POLL_SECONDS = 5.0
WATCH_SECONDS = 60.0
DAGS = 40
ROUNDS = 7


# --- lists -------------------------------------------------------------------------------------------------------


@contextmanager
def databases() -> Iterator[list[tuple[str, str]]]:
    """SQLite in a file, and PostgreSQL where it is installed."""
    from tests.systems import postgres

    with tempfile.TemporaryDirectory(prefix="ft-ui-load-") as folder:
        found = [("SQLite", f"sqlite:///{folder}/lists.db")]
        if reason := postgres.available():
            print(f"PostgreSQL: {reason}")
            yield found
            return
        with postgres.PostgresServer() as server:
            from sqlalchemy import create_engine, text

            admin = create_engine(server.url("postgres"), isolation_level="AUTOCOMMIT")
            with admin.connect() as connection:
                connection.execute(text("CREATE DATABASE airflow"))
            admin.dispose()
            yield [*found, ("PostgreSQL", server.url())]


COPIES = """
INSERT INTO task_state_store (dag_run_id, task_id, map_index, key, dag_id, run_id, value, updated_at)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :chains)
SELECT n, task_id, map_index, key, 'dag' || (n % :dags), 'run' || n, value, updated_at
FROM numbers CROSS JOIN task_state_store WHERE dag_run_id = 0
"""


def filled(url: str, chains: int, attempts: int) -> Any:
    """Fill Airflow's tables: one chain is written, the database copies it."""
    from airflow.models.dagrun import DagRun
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import delete, insert, text

    from tests.views.chains import Tables
    from tests.views.long_chain import long_chain

    tables = Tables(url)
    session = tables.session
    if not url.startswith("sqlite"):
        session.execute(text("SET session_replication_role = replica"))  # rows without the runs they belong to
    now = datetime.now(timezone.utc)
    who = {"dag_id": "dag0", "run_id": "run0", "task_id": "pretrain", "map_index": -1}
    records = long_chain(attempts, now - timedelta(days=20)).items()
    rows = [{**who, "dag_run_id": 0, "updated_at": now, "key": key, "value": value} for key, value in records]
    session.execute(insert(TaskStateStoreModel), rows)
    session.execute(text(COPIES), {"chains": chains, "dags": DAGS})
    session.execute(delete(TaskStateStoreModel).where(TaskStateStoreModel.dag_run_id == 0))
    instances = [
        tables.task_instance(
            who | {"dag_id": f"dag{n % DAGS}", "run_id": f"run{n}"}, "deferred" if n % 500 == 0 else "success"
        )
        for n in range(1, chains + 1)
    ]
    session.execute(insert(TaskInstance.__table__), instances)
    dag_runs = [tables.dag_run(f"dag{n % DAGS}", f"run{n}", n) for n in range(1, chains + 1)]
    session.execute(insert(DagRun.__table__), dag_runs)
    session.commit()
    session.execute(text("ANALYZE"))
    session.commit()
    return tables


def measure_lists(chains: int, attempts: int) -> None:
    """Print how long each list takes."""
    with databases() as found:
        for name, url in found:
            begun = time.perf_counter()
            tables = filled(url, chains, attempts)
            print(f"{name}: {chains:,} chains of {attempts} attempts written in {time.perf_counter() - begun:.0f} s")
            _measure(name, tables)
            tables.session.close()
            tables.engine.dispose()


def _measure(name: str, tables: Any) -> None:
    from sqlalchemy import event

    from airflow_ft.views.figures import figures
    from airflow_ft.views.listing import Filter
    from airflow_ft.views.lists import chain_page

    session, now = tables.session, datetime.now(timezone.utc)
    everything, one = [f"dag{number}" for number in range(DAGS)], ["dag7"]
    asked: list[str] = []
    event.listen(tables.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))

    def page(dags: list[str], state: str | None = None, **narrowed: Any) -> Callable[[], Any]:
        wanted = Filter(dag_ids=dags, **narrowed)
        return lambda: chain_page(session, wanted, now, state=state, after=None, limit=25)

    for what, call in (
        ("first page, all DAGs", page(everything)),
        ("first page, one DAG of 40", page(one)),
        ("first page, one class", page(everything, fault_class="HW_NODE")),
        ("first page, one node", page(everything, node="gpu-n04")),
        ("first page, a class that nobody has", page(everything, fault_class="OOM_GPU")),
        ("figures of 30 days", lambda: figures(session, everything, now, 30)),
    ):
        times: list[float] = []
        asked.clear()
        processor = time.process_time()
        for _ in range(ROUNDS):
            session.expire_all()
            begun = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - begun))
        middle = statistics.median(times)
        verdict = "" if "figures" in what else "  ok" if middle <= LIMIT_MS else f"  over {LIMIT_MS:g} ms"
        queries, own = len(asked) / ROUNDS, 1000 * (time.process_time() - processor) / ROUNDS
        print(
            f"{name:11} {what:35} median {middle:7.1f} ms, first {times[0]:7.1f} ms, own processor time {own:6.1f} ms, "
            f"{queries:.0f} queries{verdict}"
        )


# --- tabs --------------------------------------------------------------------------------------------------------

# An auth manager is a module of ours in the api-server: it notes each query there with a byte in a file.
COUNTING = """
import os
from per_dag_auth import PerDagAuthManager
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "before_cursor_execute")
def noted(*given):
    with open(os.environ["QUERIES"] + str(os.getpid()), "ab") as file:
        file.write(b".")

class Counting(PerDagAuthManager):
    pass
"""
MOST_QUERIES = 3.0


def measure_tabs(tabs: int, seconds: float) -> None:
    """Print what 20 tabs cost the api-server above idle."""
    from tests.browser.website import Website

    with tempfile.TemporaryDirectory(prefix="ft-ui-load-") as folder:
        counted = Path(folder) / "queries"
        counted.mkdir()
        more = {"QUERIES": f"{counted}/", "AIRFLOW__CORE__AUTH_MANAGER": "counting.Counting"}
        site = Website(Path(folder) / "site", more=more)
        (site.folder / "dags" / "counting.py").write_text(COUNTING)
        try:
            site.boot()
            keys = [site.start("crash", f"run{number}") for number in range(min(tabs, 4))]
            for key in keys:
                site.wait_view(key, "recovered", runs=2)
            server = [psutil.Process(site.stack.pid("api-server"))]
            server += server[0].children(recursive=True)
            idle, idle_queries = _share(server, counted, seconds, lambda: time.sleep(POLL_SECONDS))
            http = httpx.Client(
                base_url=site.stack.url, headers={"Authorization": f"Bearer {site.token('admin')}"}, trust_env=False
            )
            tags: dict[int, str] = {}
            answers: list[int] = []

            def poll() -> None:
                began = time.monotonic()
                for tab in range(tabs):
                    dag_id, run_id, task_id = keys[tab % len(keys)]
                    answer = http.get(
                        f"/fault-tolerance/api/v1/chain/{dag_id}",
                        params={"run_id": run_id, "task_id": task_id},
                        headers={"If-None-Match": tags[tab]} if tab in tags else {},
                    )
                    tags[tab] = answer.headers.get("etag", tags.get(tab, ""))
                    answers.append(answer.status_code)
                    time.sleep(max(0.0, began + (tab + 1) * POLL_SECONDS / tabs - time.monotonic()))

            busy, queries = _share(server, counted, seconds, poll)
            changed = answers.count(200) / len(answers)
            each = (queries - idle_queries) * seconds / len(answers)
            print(
                f"{tabs} tabs, a poll every {POLL_SECONDS:g} s each, {len(answers)} polls, {changed:.0%} with news: "
                f"api-server {busy:.1%} of a core, idle {idle:.1%}: {busy - idle:.1%} above idle (limit 10 %); "
                f"{each:.1f} queries a poll (limit {MOST_QUERIES:g})"
            )
        finally:
            site.shut_down()


def _share(
    processes: list[psutil.Process], counted: Path, seconds: float, work: Callable[[], None]
) -> tuple[float, float]:
    """Return the share of a core that the processes use while the work is done, and their queries a second."""

    def spent() -> float:
        times = [process.cpu_times() for process in processes if process.is_running()]
        return sum(one.user + one.system for one in times)

    def asked() -> int:
        files = (counted / str(process.pid) for process in processes)
        return sum(file.stat().st_size for file in files if file.exists())

    begun, before, asked_before = time.monotonic(), spent(), asked()
    while time.monotonic() - begun < seconds:
        work()
    took = time.monotonic() - begun
    return (spent() - before) / took, (asked() - asked_before) / took


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--tabs", action="store_true")
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    parser.add_argument("--seconds", type=float, default=WATCH_SECONDS)
    args = parser.parse_args()
    if args.lists or not args.tabs:
        measure_lists(args.chains, args.attempts)
    if args.tabs or not args.lists:
        measure_tabs(TABS, args.seconds)


if __name__ == "__main__":
    main()
