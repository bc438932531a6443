"""The three faults of the demo, each done to the training from outside: it does not know that it is a demo."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_ft.backends.local import inventory
from demo.training_log import TrainingLog

POOL = "default"


@dataclass
class Injected:
    """One fault that was injected, and what came after it, in seconds of the wall clock."""

    what: str
    detail: str
    at: float
    step: int
    starts: int  # how often training had started by then


def ranks(root: Path) -> list[tuple[int, psutil.Process]]:
    """Return the processes that are ranks of an open job, with their rank, the highest last."""
    open_jobs = {job.name for job in inventory.list_jobs(str(root)) if not job.closed}
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            if env.get("FT_JOB", "").partition(":")[0] in open_jobs and "LOCAL_RANK" in env:
                found.append((int(env["RANK"]), process))
        except (psutil.Error, ValueError):
            continue
    return sorted(found, key=lambda pair: pair[0])


def kill_rank(root: Path) -> str:
    """SIGKILL the last rank, as the kernel's memory killer or a person would."""
    rank, process = ranks(root)[-1]
    os.kill(process.pid, signal.SIGKILL)
    return f"rank {rank} (pid {process.pid}) got SIGKILL"


def lose_node(root: Path) -> str:
    """Pull the plug of the node that has the last rank."""
    _, process = ranks(root)[-1]
    node = process.environ()["FT_NODE"]
    inventory.lose_node(str(root), POOL, node, "lost power")
    return f"node {node} lost power"


def hang_rank(root: Path) -> str:
    """SIGSTOP the last rank: its peers wait for it in a collective for ever, and nobody prints a word."""
    rank, process = ranks(root)[-1]
    os.kill(process.pid, signal.SIGSTOP)
    return f"rank {rank} (pid {process.pid}) got SIGSTOP"


FAULTS = (("killed rank", kill_rank), ("lost node", lose_node), ("hang", hang_rank))


def inject(number: int, root: Path, log: TrainingLog) -> Injected:
    """Inject fault ``number``."""
    what, do = FAULTS[number]
    at = time.time()
    return Injected(what, do(root), at, log.step, len(log.starts))


def recovered(fault: Injected, log: TrainingLog) -> bool:
    """Return whether training has passed the step where it was when the fault came."""
    return len(log.starts) > fault.starts and log.starts[-1].last_step > fault.step
