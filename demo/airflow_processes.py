"""Finding and ending the processes of an Airflow stack, by the marks that they carry in their environment.

Airflow's components start workers, supervisors and parsers, some in sessions of their own, so neither a process group
nor a tree names them all once a parent was killed. The environment does: it is inherited, and it stays readable.
(SPT_NOENV keeps setproctitle, which Airflow uses, from writing over it.)

Training that airflow_ft started carries the same marks, but is meant to outlive Airflow: it is left out everywhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]

STACK_VARIABLE = "AIRFLOW_STACK"
COMPONENT_VARIABLE = "AIRFLOW_STACK_COMPONENT"


def marks(home: Path, component: str) -> dict[str, str]:
    """The environment variables by which the processes of a component are found again."""
    return {STACK_VARIABLE: str(home), COMPONENT_VARIABLE: component, "SPT_NOENV": "1"}


def find(home: Path, component: str | None = None) -> list[psutil.Process]:
    """All living processes of this stack, or of one component of it; without training and without the caller."""
    return [process for process, environment in _marked(home, component) if not is_training(process, environment)]


def is_training(process: psutil.Process, environment: dict[str, str]) -> bool:
    """Tell whether this is airflow_ft's agent, or something that the agent started."""
    if "FT_AGENT_DIR" in environment:
        return True
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return "agent.pyz" in command or "airflow_ft.agent" in command or "airflow_ft/agent" in command
    return False


def send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each of them that is still there (psutil compares start times: never to a stranger)."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def wait_until_gone(search: Callable[[], list[psutil.Process]], timeout_seconds: float) -> list[psutil.Process]:
    """Wait until the search finds nothing; what is left after the time."""
    deadline = time.monotonic() + timeout_seconds
    while (left := search()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _marked(home: Path, component: str | None) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            if environment.get(STACK_VARIABLE) != str(home):
                continue
            if component is None or environment.get(COMPONENT_VARIABLE) == component:
                yield process, environment
