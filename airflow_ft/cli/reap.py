"""``airflow ft reap``: stop what no task answers for any more, now. (The collector does it every few minutes.)

A job of a task that may still go on is never touched.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from datetime import datetime, timezone

from airflow_ft.attempts.letting_go import let_go
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.views.debts import Owed, owed, strike_off
from airflow_ft.views.probes import left_probes, remove_probe
from airflow_ft.views.records import database


def reap(args: Namespace) -> None:
    """Stop the jobs, or show them. Exit status 1 when one could not be stopped."""
    with database() as session:
        found = list(owed(session))
        probes = list(left_probes(session))
    if not found and not probes:
        print("Nothing is owed.")
    failed = 0
    for one in found:
        print(f"{one.ref.backend} job {one.ref.name}: {one.why}")
        if args.yes:
            failed += not _stopped(one)
    for probe in probes:
        print(f"{probe.ref.backend} probe job {probe.ref.name}: {probe.why}")
        if args.yes:
            problem = remove_probe(probe)
            print(f"  could not be stopped: {problem}" if problem else "  stopped")
            failed += bool(problem)
    if (found or probes) and not args.yes:
        print("Run it again with --yes to stop them.")
    if failed:
        raise SystemExit(1)


def _stopped(found: Owed) -> bool:
    try:
        backend = create_backend(found.ref.backend)
        left = asyncio.run(let_go(backend, found.ref, found.chain.grace_seconds, f"stopping {found.ref.name}"))
    except BackendError as error:
        print(f"  could not be stopped: {error}")
        return False
    print(f"  left as it is: {left}" if left else "  stopped")
    if found.over:  # else the task's next try strikes it off
        with database() as session:
            strike_off(session, found, None, datetime.now(timezone.utc))
    return True
