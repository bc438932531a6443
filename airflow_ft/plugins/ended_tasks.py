"""Stop the job of a task that was ended while nobody watched it. Runs in the api-server (or scheduler) that ended it.

The trigger, where it runs, is quicker and does the same; this looks a little later, and only stops a job whose task is
still ended by then, or whose run was deleted. It waits in a daemon thread: if the process ends meanwhile, the
``collector`` remains, and ``airflow ft reap``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.plugins.collector import see_to
from airflow_ft.views.books import keep_books, lost_books, run_exists
from airflow_ft.views.debts import Owed, chains_of_run, owed_by
from airflow_ft.views.records import ChainNotFoundError, StoredChain, database, read_chain

LATER_SECONDS = 10.0  # a trigger has seen to it by then
AGAIN_SECONDS = 20.0  # between two tries for a run that was deleted: no record of it is left for anybody else
DELETED_TRIES = 180  # an hour

Key = tuple[str, str, str, int]
log = logging.getLogger(__name__)


def stop_later(task_instance: Any) -> None:
    """Look at the task after a while, off the request's thread."""
    ti = task_instance
    key = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)
    _begin(lambda: [key])


def stop_all_later(dag_run: Any) -> None:
    """Look at all tasks of a run that has ended."""
    dag_id, run_id = dag_run.dag_id, dag_run.run_id
    _begin(lambda: _chains(dag_id, run_id), (dag_id, run_id))


def _begin(keys: Callable[[], Sequence[Key]], run: tuple[str, str] | None = None) -> None:
    threading.Thread(target=_stop_if_ended, args=(keys, run), name="airflow-ft-ended-task", daemon=True).start()


def _chains(dag_id: str, run_id: str) -> list[Key]:
    with database() as session:
        return [(dag_id, run_id, task_id, index) for task_id, index in chains_of_run(session, dag_id, run_id)]


def _stop_if_ended(keys: Callable[[], Sequence[Key]], run: tuple[str, str] | None) -> None:
    before = {key: chain for key in keys() if (chain := _read(key)) is not None and chain.chain.open is not None}
    staged = _in_books(run)
    time.sleep(LATER_SECONDS if before or staged else 0.0)
    for key, chain in {**before, **staged}.items():
        try:
            owed, tries = _left(key, chain, key in staged)
            for found in owed:
                log.warning("%s.%s was ended while its training ran; stopping %s.", key[0], key[2], found.ref.name)
                _see_to(found, tries)
        except Exception:
            log.exception("The job of %s.%s could not be seen to; the collector tries again.", key[0], key[2])


def _see_to(found: Owed, tries: int) -> None:
    while not see_to(found) and (tries := tries - 1) > 0:
        time.sleep(AGAIN_SECONDS)


def _owed(stored: StoredChain) -> list[Owed]:
    with database() as session:
        return [found for found in owed_by(session, stored.chain) if found.attempt is not None]


def _deleted(before: StoredChain) -> list[Owed]:
    """The job of a run that doesn't exist any more, as it was known before."""
    attempt = next((one for one in before.attempts if one.number == before.chain.open), None)
    if attempt is None or attempt.ref is None or attempt.fenced:
        return []
    return [Owed(before.chain, attempt.ref, "its run was deleted", attempt)]


def _in_books(run: tuple[str, str] | None) -> dict[Key, StoredChain]:
    """The chains of the explicit form that no task of the run has kept."""
    if run is None:
        return {}
    with database() as session:
        found = [one for one in lost_books(session, run) if one.chain.open is not None]
    return {(*run, one.chain.task_id, one.chain.map_index): one.stored() for one in found}


def _left(key: Key, before: StoredChain, staged: bool) -> tuple[list[Owed], int]:
    """What nobody sees to, and how often to try. The stages of a run that was cleared meanwhile go on with theirs."""
    if staged:
        with database() as session:
            keep_books(session, key[:2])
            goes_on = run_exists(session, *key[:2])
    now = _read(key)
    if now is None:
        return ([], 0) if staged and goes_on else (_deleted(before), DELETED_TRIES)
    return _owed(now), 1


def _read(key: Key) -> StoredChain | None:
    """The chain of a task; ``None`` if it has none, or has none any more."""
    try:
        with database() as session:
            return read_chain(session, *key)
    except (ChainNotFoundError, UnreadableRecordError):
        return None
