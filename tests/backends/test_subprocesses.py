"""Children keep nothing of us, and none stays behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends import subprocesses
from airflow_ft.backends.subprocesses import Finished

Run = Callable[..., Finished]
SHOW = "readlink /proc/self/fd/0; ps -o sid= -p $$; echo $$; ls /proc/$$/fd | tr '\\n' ' '; echo oops >&2; exit 3"


def run_async(*args: object, **kwargs: object) -> Finished:
    return asyncio.run(subprocesses.run_async(*args, **kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize("run", [subprocesses.run, run_async])
def test_a_child_has_no_stdin_no_descriptors_and_its_own_session(run: Run) -> None:
    """fd 0 of a worker is the supervisor's socket."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    done = run(["sh", "-c", SHOW], 10)
    stdin, session, pid, fds = done.stdout.decode().splitlines()
    assert (stdin, session.strip(), done.code, done.stderr) == ("/dev/null", pid, 3, b"oops\n")
    assert str(writer) not in fds.split()
    for fd in (reader, writer):
        os.close(fd)


@pytest.mark.parametrize("run", [subprocesses.run, run_async])
def test_input_environment_and_folder_are_given(run: Run, tmp_path: Path) -> None:
    """Exactly what was asked for."""
    done = run(["sh", "-c", "cat; pwd; echo $A"], 10, given=b"in\n", env={"A": "b", "PATH": os.defpath}, cwd=tmp_path)
    assert done.stdout.decode() == f"in\n{tmp_path}\nb\n"


@pytest.mark.parametrize("run", [subprocesses.run, run_async])
def test_a_child_that_takes_too_long_is_killed_with_its_children(run: Run, tmp_path: Path) -> None:
    """Even if a grandchild holds the pipe."""
    marker = tmp_path.name
    started = time.monotonic()
    done = run(["sh", "-c", "sleep 1000 & sleep 1000"], 0.3, env={"MARK": marker, "PATH": os.environ["PATH"]})
    assert (done.timed_out, done.code) == (True, -9)
    assert time.monotonic() - started < 100, "it would sleep for 1000 s"
    end = time.monotonic() + 60
    while processes.with_marker("MARK", marker) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes.with_marker("MARK", marker) == []


@pytest.mark.parametrize("run", [subprocesses.run, run_async])
def test_a_missing_program_is_an_oserror(run: Run) -> None:
    """For the caller to turn into words."""
    with pytest.raises(FileNotFoundError):
        run(["no-such-program-4711"], 1)


def test_a_cancelled_caller_kills_its_child(tmp_path: Path) -> None:
    """Nothing stays behind on the event loop."""
    marker = tmp_path.name

    async def story() -> None:
        env = {"MARK": marker, "PATH": os.environ["PATH"]}
        task = asyncio.create_task(subprocesses.run_async(["sleep", "1000"], 100, env=env))
        while not processes.with_marker("MARK", marker):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while processes.with_marker("MARK", marker):
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_detached_process_writes_to_its_file(tmp_path: Path) -> None:
    """And nobody waits for it."""
    log = tmp_path / "log"
    pid = subprocesses.start_detached(["sh", "-c", "echo out; echo err >&2; readlink /proc/self/fd/0"], log)
    os.waitpid(pid, 0)
    assert log.read_text() == "out\nerr\n/dev/null\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_long_error_text_is_cut() -> None:
    """Its end says what went wrong."""
    assert Finished(1, b"out", b"x" * 100 + b"end").text(5) == "xxend"
    assert Finished(1, b"out", b"").text() == "out"
