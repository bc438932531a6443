"""``airflow ft reap``: stop what no task answers for any more.

Two kinds are found: debts in a chain (a cancel that could not be carried out), and open attempts of a task that has
ended (a person marked it failed while no triggerer ran). A job of a task that may still go on is never touched.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator

from airflow_ft.attempts.ports import TASK_ENDED
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Chain, JobRef
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.records import ChainNotFoundError, all_chains, database, read_chain

GRACE_SECONDS = 30.0


def reap(args: Namespace) -> None:
    """Stop the jobs, or show them. Exit status 1 when one could not be stopped."""
    with database() as session:
        found = list(owed(session))
    if not found:
        print("Nothing is owed.")
    failed = 0
    for ref, why in found:
        print(f"{ref.backend} job {ref.name}: {why}")
        if args.yes:
            failed += not _stopped(ref)
    if found and not args.yes:
        print("Run it again with --yes to stop them.")
    if failed:
        raise SystemExit(1)


def owed(session: object) -> Iterator[tuple[JobRef, str]]:
    """Yield every job that nobody answers for, and why."""
    for chain, task_state in all_chains(session):
        for debt in chain.debts:
            yield debt.ref, f"cancel owed since {debt.since:%Y-%m-%d %H:%M:%S}: {debt.why}"
        if task_state in TASK_ENDED and chain.open is not None:
            ref = _abandoned_job(session, chain)
            if ref is not None:
                yield ref, f"its task is {task_state}"


def _abandoned_job(session: object, chain: Chain) -> JobRef | None:
    try:
        return read_chain(session, chain.dag_id, chain.run_id, chain.task_id, chain.map_index).abandoned_job
    except (ChainNotFoundError, UnreadableRecordError):
        return None


def _stopped(ref: JobRef) -> bool:
    try:
        asyncio.run(create_backend(ref.backend).cancel(ref, GRACE_SECONDS))
    except BackendError as error:
        print(f"  could not be stopped: {error}")
        return False
    print("  stopped")
    return True
