"""The collector: stops what nobody answers for, writes down what it can't stop, tells people, and tries again.

Two call it. In the api-server, a listener about a task that a person has ended, ten seconds later: by then the trigger
has seen to the job, where one runs. In the triggerer's supervisor, a thread that goes through all chains every few
minutes for as long as the triggerer lives: whatever died in between, a job without a task ends all the same. The same
thread lets platforms keep out who is in quarantine (``attempts.cordons``), where that is wanted. (Not in
the scheduler or the dag-processor: those fork, and a fork must meet no second thread.)

People are told through ``[fault_tolerance] notifiers``: the task's own ``on_attempt`` lives in the DAG file, and nobody
runs that for a task that is over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import datetime, timezone
from typing import Any

from airflow_ft.attempts.cordons import carry_out
from airflow_ft.attempts.hindsight import progress_of
from airflow_ft.attempts.letting_go import let_go
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import UnknownBackendError, create_backend
from airflow_ft.core.chain import JobRef
from airflow_ft.core.progress import Progress
from airflow_ft.notifications.installation import tell
from airflow_ft.notifications.outbox import message
from airflow_ft.views.debts import Owed, begin_telling, owed, strike_off, told, write_down
from airflow_ft.views.probes import LeftProbe, left_probes, remove_probe
from airflow_ft.views.records import database
from airflow_ft.views.variables import DatabaseStore

EVERY_SECONDS = 300.0  # the default of [fault_tolerance] collect_seconds
THREAD = "airflow-ft-collector"

log = logging.getLogger(__name__)


def start() -> None:
    """Begin to collect in this process, unless it is switched off or has begun."""
    from airflow.configuration import conf

    every = conf.getfloat("fault_tolerance", "collect_seconds", fallback=EVERY_SECONDS)
    if every > 0 and all(thread.name != THREAD for thread in threading.enumerate()):
        threading.Thread(target=_go_on, args=(every,), name=THREAD, daemon=True).start()


def _go_on(every: float) -> None:
    seen: set[str] = set()
    while True:
        time.sleep(every)
        try:
            seen = collect(seen)
        except Exception:
            log.exception("Jobs that nobody answers for could not be looked for; trying again in %.0f s.", every)
        try:
            keep_nodes_out()
        except Exception:
            log.exception("The quarantine could not be carried into the cluster; trying again in %.0f s.", every)


def keep_nodes_out() -> None:
    """Let the platform keep out who is in quarantine, if ``[fault_tolerance] cordon`` says so."""
    from airflow.configuration import conf

    on = conf.getboolean("fault_tolerance", "cordon", fallback=False)
    for text in asyncio.run(carry_out(DatabaseStore(), on, _now())):
        log.warning("%s", text)


def collect(seen_before: set[str]) -> set[str]:
    """See to every job that was owed the last time already. Returns all that are owed now.

    A task that has just ended may have a process that still sees to its job: hence only the second time.
    """
    with database() as session:
        found = [one for one in owed(session) if one.over]
        probes = list(left_probes(session))
    for one in found:
        if one.ref.uid in seen_before or one.written:
            see_to(one)
    for probe in probes:
        if probe.ref.uid in seen_before:
            _see_to_probe(probe)
    return {one.ref.uid for one in found} | {probe.ref.uid for probe in probes}


def _see_to_probe(found: LeftProbe) -> None:
    problem = remove_probe(found)
    done = f"can't be removed: {problem}" if problem else "is removed"
    log.warning("The probe job %s, which no task answered for, %s.", found.ref.name, done)


def see_to(found: Owed) -> bool:
    """Stop one job and strike it off; else write down that it is owed, and tell people once. Returns if it is gone."""
    problem, progress = asyncio.run(_stopped(found.ref, found.chain.grace_seconds, found.attempt is not None))
    with database() as session:
        if not problem:
            strike_off(session, found, progress, _now())
            done = "let go of" if found.ref.not_ours else "stopped"
            log.warning("%s, which no task answered for, is %s.", found.ref.name, done)
            return True
        log.warning("%s of a task that is over can't be stopped: %s", found.ref.name, problem)
        noted = found if found.written else write_down(session, found, problem, _now())
        if noted is not None and noted.untold:
            _tell(session, noted)
    return False


def _tell(session: Any, found: Owed) -> None:
    begun = begin_telling(session, found)
    if begun is None:
        return
    noted, event, again = begun
    tell(message(noted.chain, next(one for one in noted.chain.events if one.id == event), again))
    told(session, noted, event)


async def _stopped(ref: JobRef, grace: float, wanted: bool) -> tuple[str, Progress | None]:
    """Stop a job. Returns what is in the way ("" if it is gone), and how far it had come if that is wanted."""
    try:
        backend = create_backend(ref.backend)
        left = await let_go(backend, ref, grace, f"stopping {ref.name}")
    except (BackendError, UnknownBackendError) as error:
        return str(error) or type(error).__name__, None
    if left:
        log.info("%s is left as it is: %s.", ref.name, left)
    return "", await progress_of(backend, ref) if wanted else None


def _now() -> datetime:
    return datetime.now(timezone.utc)
