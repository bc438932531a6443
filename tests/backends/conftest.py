"""Real systems for the tests of the backends. Each leaves no process behind, or the test fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends import registry
from tests.backends.conformance import ELSEWHERE, SYSTEMS, LocalSystem, System


@pytest.fixture(params=sorted(registry.BUILT_IN.keys() - ELSEWHERE.keys()))
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    """Each registered backend on its real system; one that has none fails here, unless it is tested elsewhere."""
    yield from _living(SYSTEMS[request.param](tmp_path))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalSystem]:
    """The local backend, for what is true of it alone."""
    yield from _living(LocalSystem(tmp_path))


def _living(made: Any) -> Iterator[Any]:
    yield made
    asyncio.run(made.clean_up())


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Run a function in a process of its own, as a worker would: with a session of its own. Killed at the end."""
    started: list[int] = []

    def start(function: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            started.append(pid)
            return pid
        code = 1
        # The border between two processes: nothing may come back into pytest from here.
        try:
            os.setsid()
            function()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)

    yield start
    for pid in started:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            os.waitpid(pid, 0)


@pytest.fixture
def bystander() -> Iterator[int]:
    """A living process that is none of the job's."""
    pid = os.fork()
    if pid == 0:
        os.execvp("sleep", ["sleep", "1000"])
    yield pid
    assert processes.stat(pid) is not None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
