"""Runs the real zipapp as a process, on every Python from 3.8 that this machine has, and leaves no process behind."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import processes, state
from airflow_ft.backends.agent_archive import build_agent_archive

DEADLINE = 90.0  # for what takes a second on a quiet machine


@lru_cache(maxsize=1)
def pythons() -> dict[str, str]:
    """One interpreter a minor version >= 3.8, by id such as py3.8."""
    candidates = [sys.executable, *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python")))]
    candidates += [path for n in range(8, 16) if (path := shutil.which(f"python3.{n}"))]
    candidates += sorted(glob.glob("/usr/bin/python3*[0-9]"))
    found: dict[str, str] = {}
    for path in candidates:
        answer = subprocess.run(
            [path, "-ISc", "import sys; print('%d.%d' % sys.version_info[:2])"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        if re.fullmatch(r"3\.\d+", answer) and int(answer[2:]) >= 8:
            found.setdefault(f"py{answer}", path)
    return dict(sorted(found.items(), key=lambda item: int(item[0].split(".")[1])))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `any_python` runs once for each interpreter."""
    if "any_python" in metafunc.fixturenames:
        metafunc.parametrize("any_python", pythons().values(), ids=pythons().keys())


def wait_for(condition: Callable[[], Any], what: str = "", deadline: float = DEADLINE) -> Any:
    """The condition's first true value; fails after the deadline."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline} s: {what or condition}")


class Agent:
    """One agent process and what its folder says."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, output: Path, words: list[str]) -> None:
        self.process, self.directory, self.output, self.words = process, directory, output, words

    @property
    def state(self) -> dict[str, Any]:
        return state.read_state(str(self.directory)) or {}

    @property
    def report(self) -> dict[str, Any] | None:
        return state.read_report(str(self.directory))

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The agent's own lines, found anywhere in a line of the output."""
        return [json.loads(found) for found in re.findall(r"ft-agent \S+ (\{.*\})", self.text)]

    def wait_phase(self, phase: str, generation: int | None = None) -> dict[str, Any]:
        """Wait until the state has this phase (and generation)."""

        def reached() -> dict[str, Any] | None:
            now = self.state
            fits = now.get("phase") == phase and generation in (None, now.get("generation"))
            return now if fits else None

        return wait_for(reached, f"{phase} {generation}, state {self.state}, output {self.text[-2000:]}")

    def wait_text(self, text: str) -> None:
        wait_for(lambda: text in self.text, f"{text!r} in {self.text[-2000:]!r}")

    def order(self, *words: str) -> tuple[int, dict[str, Any]]:
        """`order …` through the command line; exit code and answer."""
        done = subprocess.run(
            [*self.words, "order", *words, "--dir", str(self.directory)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        return done.returncode, json.loads(done.stdout)

    def end(self) -> int:
        """Wait for the agent's end; its exit code."""
        return self.process.wait(DEADLINE)


class AgentStarter:
    """Starts agents of one test."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.marker = uuid.uuid4().hex
        self.processes: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def words(self, python: str | None = None) -> list[str]:
        return [python or sys.executable, "-I", "-S", str(self.archive)]

    def __call__(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        python: str | None = None,
        directory: Path | None = None,
        env: dict[str, str] | None = None,
        words: list[str] | None = None,
        **popen: Any,
    ) -> Agent:
        self._count += 1
        directory = directory or self.folder / f"agent{self._count}"
        output = self.folder / f"output{self._count}"
        words = words or self.words(python)
        options = options if "--hold" in options else ("--hold", "60", *options)
        with open(output, "ab") as file:
            popen = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "start_new_session": True, **popen}
            process = subprocess.Popen(
                [*words, "run", "--dir", str(directory), "--nonce", "n1", *options, "--", *command],
                env={**os.environ, "FT_JOB": self.marker, **(env or {})},
                **popen,
            )
        self.processes.append(process)
        return Agent(process, directory, output, words)

    def left(self) -> list[int]:
        """Living processes that this test has started."""
        return processes.with_marker("FT_JOB", self.marker)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real zipapp."""
    return build_agent_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def start(archive: Path, tmp_path: Path) -> Iterator[AgentStarter]:
    """Starts agents; whatever they leave is killed by pid, so that a failed test doesn't burden the next one."""
    starter = AgentStarter(archive, tmp_path)
    yield starter
    for pid in starter.left():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    for process in starter.processes:
        process.wait(DEADLINE)


def signal_masks(text: str) -> dict[str, int]:
    """The signals 1 to 31 that a process said are blocked and ignored (its /proc/self/status in ``text``).

    32 and 33 are left out: they are glibc's own, no program can change them, and make leaves them ignored.
    """
    found = re.findall(r"(Sig(?:Blk|Ign)):\t([0-9a-f]{16})", text)
    return {name: int(mask, 16) & ((1 << 31) - 1) for name, mask in found}
