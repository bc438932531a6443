"""The one way to start a process from a worker or a triggerer.

fd 0 of an Airflow worker or triggerer is the supervisor's socket, and a child that read it froze the whole triggerer.
So every child of ours has ``stdin`` from /dev/null (or the given bytes), a session of its own, no inherited
descriptor, and its output in a pipe or a file. ``subprocess`` is banned everywhere else (ruff TID251).

Kinds: ``run`` (wait for it, in a thread), ``run_async`` (wait for it on the event loop), ``start_detached`` (don't
wait: it belongs to nobody). A child that outlives its time limit is killed with its whole process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from airflow_ft.backends.time_limits import within

# After a kill the pipes close at once, unless a grandchild with a session of its own holds them: then we go without.
DRAIN_SECONDS = 2.0


class Finished(NamedTuple):
    """How a process ended. ``code`` is negative for a signal; a timed-out one was killed by us."""

    code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False

    def text(self, limit: int = 2000) -> str:
        """The end of what it said, stderr first, for an error message."""
        return (self.stderr or self.stdout).decode("utf-8", "replace").strip()[-limit:]


def run(
    argv: Sequence[str],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    given: bytes | None = None,
    output: str | Path | None = None,
) -> Finished:
    """Run a program to its end; blocks, so never on an event loop. ``given`` becomes its stdin, ``output`` is a file
    for both streams (instead of pipes: a daemon that keeps a pipe open would keep us waiting). Raises ``OSError``."""
    with _Output(output) as target:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=target or subprocess.PIPE,
            stderr=target or subprocess.PIPE,
            env=None if env is None else dict(env),
            cwd=cwd,
            close_fds=True,
            start_new_session=True,
        )
    try:
        stdout, stderr = process.communicate(given, timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process.pid)
        return _drained(process)
    except BaseException:  # the caller was interrupted: the child must not stay behind
        kill_group(process.pid)
        process.wait()
        raise
    return Finished(process.returncode, stdout or b"", stderr or b"")


async def run_async(
    argv: Sequence[str],
    timeout: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    given: bytes | None = None,
) -> Finished:
    """Like ``run``, on the event loop. A cancelled caller kills the child."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL if given is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if env is None else dict(env),
        cwd=cwd,
        close_fds=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = await within(timeout, process.communicate(given))
    except TimeoutError:
        kill_group(process.pid)
        with suppress(TimeoutError):
            await within(DRAIN_SECONDS, process.wait())
        return Finished(-signal.SIGKILL, b"", b"", timed_out=True)
    except BaseException:  # cancelled: the child must not stay behind
        kill_group(process.pid)
        raise
    return Finished(process.returncode or 0, stdout, stderr)


def start_detached(
    argv: Sequence[str],
    output: str | Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> int:
    """Start a program that outlives us, output appended to a file; returns its pid. Raises ``OSError``."""
    with _Output(output) as target:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            env=None if env is None else dict(env),
            cwd=cwd,
            close_fds=True,
            start_new_session=True,
        )
    process.returncode = 0  # nobody waits for it here; without this the destructor would warn
    return process.pid


def kill_group(pid: int) -> None:
    """Kill a child with its process group (it leads one: each has a session of its own)."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


class _Output:
    """An output file, opened for the moment of the start."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes] | None:
        if self._path is not None:
            self._file = open(self._path, "ab", opener=_private)
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _drained(process: subprocess.Popen[bytes]) -> Finished:
    try:
        stdout, stderr = process.communicate(timeout=DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        stdout = stderr = b""
    return Finished(-signal.SIGKILL, stdout or b"", stderr or b"", timed_out=True)
