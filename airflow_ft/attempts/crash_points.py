"""Named points between two steps where a test can kill, stop or break this very process. Off in production.

A point does nothing unless ``AIRFLOW_FT_CRASH_POINTS`` names a folder and the folder holds a file that arms it, called
``<point>@<run_id>`` (``@any`` for every run). The file's first word says what happens:

    kill   SIGKILL to this process             stop    SIGSTOP to this process
    raise  an exception                        wait    until the file ``<name>.go`` appears (60 s at most)

Arming is consumed by a rename, so that a point fires once; the renamed file (``….reached`` with pid and time) tells the
test that it was reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from contextvars import ContextVar
from pathlib import Path

FOLDER_VARIABLE = "AIRFLOW_FT_CRASH_POINTS"
WAIT_SECONDS = 60.0

current_run: ContextVar[str] = ContextVar("current_run", default="any")


class ArmedPointError(RuntimeError):
    """What an armed ``raise`` point raises."""


def reach(point: str) -> None:
    """Mark that the calling code has come to ``point``."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        for run in (current_run.get(), "any"):
            _fire(Path(folder) / f"{point}@{run.replace('/', '_')}")


def _fire(armed: Path) -> None:
    reached = armed.with_name(f"{armed.name}.reached")
    try:
        what = armed.read_text().split()[0]
        os.rename(armed, reached)
    except (OSError, IndexError):
        return
    with contextlib.suppress(OSError):
        reached.write_text(f"{what} {os.getpid()} {time.time():.3f}")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise ArmedPointError(f"armed at {armed.name}")
    elif what == "wait":
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not armed.with_name(f"{armed.name}.go").exists():
            time.sleep(0.05)
