"""A process of this machine that somebody else has started: what ``/proc`` and its log say of it.

Its exit code belongs to its parent. We see it only in the moments between its end and its parent's ``wait``; else the
process is simply gone, and the log has the last word. A process is named by pid *and* start time, boot and pid
namespace: the same number elsewhere, or later, is another process, and where it can't be seen from here nothing is
concluded.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone

from pydantic import JsonValue

from airflow_ft.agent import processes, vitals
from airflow_ft.backends import log_files, node_evidence
from airflow_ft.backends.base import (
    CancelIncompleteError,
    Cursors,
    JobState,
    LogChunk,
    LogTail,
    NodeReport,
    Observation,
    Submission,
    UnreachableError,
)
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.faults import Evidence
from airflow_ft.core.vitals import RankVitals, read_ranks

KILL_SECONDS = 12.0
LOOK_SECONDS = 0.2
_EXIT_CODE = 49  # its place in /proc/PID/stat behind the name; the state is 0
UNKNOWN = "its exit code is known to its parent alone: the log decides what can be said"


def found(job: ForeignJob, submission: Submission) -> JobRef | None:
    """Return the process, if it is there, or if its log is there to be judged. Raises ``OSError``."""
    pid, wanted = int(str(job.pid)), job.start_ticks
    stat = processes.stat(pid)
    fits = stat is not None and (wanted is None or stat.start_ticks == int(str(wanted)))
    ticks = stat.start_ticks if stat is not None and fits else None
    if ticks is None and not (job.log and log_files.named(job.log)):
        return None
    return JobRef(
        backend=ForeignJob.backend,
        name=submission.name or f"process-{pid}",
        uid=f"{processes.boot_id()}:{pid}:{ticks}",
        chain_id=submission.chain_id,
        attempt=submission.attempt,
        submitted_at=_began(ticks) or datetime.now(timezone.utc),
        where={"platform": job.platform, "pid": pid, "start_ticks": ticks, "log": job.log or "", **_here()},
        foreign=job.words,
        own=job.own,
    )


def problems(job: ForeignJob) -> list[str]:
    """Return why this process can't be taken over."""
    above = _above_us()
    if not job.own or int(str(job.pid)) not in above:
        return []
    return [f"pid: {job.pid} is not allowed with own=True: this task runs below it, and would be stopped with it."]


def is_alive(ref: JobRef) -> bool:
    """Whether the process is there and runs."""
    return processes.is_alive(_pid(ref), _ticks(ref))


async def observe(ref: JobRef) -> Observation:
    """See what the process is doing. Raises ``UnreachableError`` where it can't be seen from here."""
    return await asyncio.to_thread(_observe, ref)


async def read_logs(ref: JobRef, cursors: Cursors, limit: int) -> tuple[Sequence[LogChunk], Cursors]:
    """Return what its log gained since ``cursors``."""
    return await asyncio.to_thread(log_files.read_files, _log(ref), cursors, limit, _host(ref))


async def log_tails(ref: JobRef, limit: int) -> Sequence[LogTail]:
    """Return the end of its log."""
    return await asyncio.to_thread(log_files.tails_of, _log(ref), limit, _host(ref))


async def evidence(ref: JobRef) -> Sequence[Evidence]:
    """Return how it ended, where that could be seen."""
    seen = await observe(ref)
    return [node_evidence.ended(node, "signal {}".format) for node in seen.nodes if node.code]


async def read_vitals(ref: JobRef) -> Sequence[RankVitals]:
    """Return what its processes do right now."""
    return await asyncio.to_thread(_vitals, ref)


async def cancel(ref: JobRef, grace: float) -> None:
    """Stop a process and everything below it: TERM, ``grace`` seconds, KILL. Raises ``CancelIncompleteError``."""
    if why := _elsewhere(ref):
        raise UnreachableError(why)
    known = await asyncio.to_thread(_tree, ref)
    processes.send(_pid(ref), _ticks(ref), 15)
    end = time.monotonic() + grace
    while time.monotonic() < end and any(processes.is_alive(pid, ticks) for pid, ticks in known.items()):
        await asyncio.sleep(LOOK_SECONDS)
        known |= await asyncio.to_thread(_tree, ref)
    alive = [pid for pid, ticks in known.items() if processes.is_alive(pid, ticks)]
    left = await asyncio.to_thread(processes.kill_tree, alive, KILL_SECONDS)
    if left:
        raise CancelIncompleteError(f"{ref.foreign}: the processes {left} are still there after SIGKILL")


# --- looking -----------------------------------------------------------------------------------------------------


def _observe(ref: JobRef) -> Observation:
    if why := _elsewhere(ref):
        raise UnreachableError(why)
    now, ticks = datetime.now(timezone.utc), _ticks(ref)
    if ref.where.get("boot_id") != processes.boot_id():
        return _over(ref, JobState.GONE, now, f"{ref.foreign} ended with this machine, which was started again since")
    if is_alive(ref):
        return Observation(state=JobState.RUNNING, at=now, nodes=(_report(ref, JobState.RUNNING),))
    code = exit_code(_pid(ref), ticks)
    if code is not None:
        return _over(ref, JobState.ENDED, now, f"{ref.foreign} has ended", code)
    return _over(ref, JobState.GONE, now, f"{ref.foreign} has ended; {UNKNOWN}")


def exit_code(pid: int, ticks: int | None) -> int | None:
    """Return the code of a process that has ended, while its parent hasn't asked for it; ``None``: it can't be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
            owner = os.fstat(file.fileno()).st_uid
        if fields[0] != b"Z" or int(fields[19]) != ticks:
            return None
        code = os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
    except (OSError, IndexError, ValueError):
        return None
    # The kernel shows 0 to those who may not look: only of our own processes a 0 is one.
    return code if code != 0 or owner == os.geteuid() else None


def _over(ref: JobRef, state: JobState, at: datetime, reason: str, code: int | None = None) -> Observation:
    report = _report(ref, state).but(code=code, exited_at=at)
    return Observation(state=state, at=at, nodes=(report,), code=code, reason=reason)


def _report(ref: JobRef, state: JobState) -> NodeReport:
    return NodeReport(node=_host(ref), state=state, agent=False, spawned_at=ref.submitted_at)


def _vitals(ref: JobRef) -> list[RankVitals]:
    return list(read_ranks(_host(ref), vitals.ranks_of(list(_tree(ref)))))


def _tree(ref: JobRef) -> dict[int, int]:
    """Return the process and its living descendants, with their start times; nothing once it has ended."""
    if not is_alive(ref):
        return {}
    stats = {pid: processes.stat(pid) for pid in (_pid(ref), *processes.descendants(_pid(ref)))}
    return {pid: stat.start_ticks for pid, stat in stats.items() if stat is not None and not stat.dead}


def _above_us() -> set[int]:
    found, pid = {0}, os.getpid()
    while pid not in found:
        found.add(pid)
        stat = processes.stat(pid)
        pid = stat.parent if stat is not None else 0
    return found


# --- where it is -------------------------------------------------------------------------------------------------


def _here() -> dict[str, JsonValue]:
    return {"host": socket.gethostname(), "boot_id": processes.boot_id(), "pid_space": _pid_space()}


def _pid_space() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _elsewhere(ref: JobRef) -> str:
    """Say why a process can't be seen from here; empty if it can."""
    here, where = _here(), ref.where
    if where.get("boot_id") == here["boot_id"] and where.get("pid_space") != here["pid_space"]:
        return f"{ref.foreign} was found in another container of this machine, and can't be seen from here"
    if where.get("boot_id") != here["boot_id"] and where.get("host") != here["host"]:
        return (
            f"{ref.foreign} was found on {where.get('host')}, and this is {here['host']}: a process can only be "
            "watched where it runs. Give the task a queue of that machine and deferrable=False"
        )
    return ""


def _began(ticks: int | None) -> datetime | None:
    if ticks is None:
        return None
    with suppress(OSError, ValueError, StopIteration), open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        return datetime.fromtimestamp(boot + ticks / os.sysconf("SC_CLK_TCK"), timezone.utc)
    return None


def _pid(ref: JobRef) -> int:
    return int(str(ref.where["pid"]))


def _ticks(ref: JobRef) -> int | None:
    ticks = ref.where.get("start_ticks")
    return int(str(ticks)) if ticks is not None else None


def _log(ref: JobRef) -> str:
    return str(ref.where.get("log") or "")


def _host(ref: JobRef) -> str:
    return str(ref.where.get("host") or "this machine")
