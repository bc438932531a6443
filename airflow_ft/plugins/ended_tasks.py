"""Stop the job of a task that was ended while nobody watched it. Runs in the api-server (or scheduler) that ended it.

The trigger, where it runs, is quicker and does the same; this looks a little later, and only stops a job whose task is
still ended by then. It waits in a daemon thread: if the process ends meanwhile, ``airflow ft reap`` remains.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.records import ChainNotFoundError, database, read_chain

LATER_SECONDS = 10.0  # a trigger has seen to it by then
GRACE_SECONDS = 30.0

log = logging.getLogger(__name__)


def stop_later(task_instance: Any) -> None:
    """Look at the task after a while, off the request's thread."""
    ti = task_instance
    key = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index if ti.map_index is not None else -1)
    threading.Thread(target=_stop_if_ended, args=key, name="airflow-ft-ended-task", daemon=True).start()


def _stop_if_ended(dag_id: str, run_id: str, task_id: str, map_index: int) -> None:
    time.sleep(LATER_SECONDS)
    try:
        with database() as session:
            ref = read_chain(session, dag_id, run_id, task_id, map_index).abandoned_job
        if ref is not None:
            log.warning("%s.%s was ended while its training ran; stopping %s.", dag_id, task_id, ref.name)
            asyncio.run(create_backend(ref.backend).cancel(ref, GRACE_SECONDS))
    except ChainNotFoundError:
        return  # a task of another kind
    except (BackendError, UnreadableRecordError) as error:
        log.warning("The job of %s.%s could not be stopped: %s `airflow ft reap` does it.", dag_id, task_id, error)
