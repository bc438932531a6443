"""The cluster's processes on this machine: started in a group of their own, killed when this process ends, however.

Also the few commands that make networks. Everything here is for root on Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The kernel sends the parent-death signal when the *thread* that started a child ends. This one never does.
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="daemons")
WAIT_SECONDS = 60.0
STOP_SECONDS = 10.0


class Daemons:
    """Named processes, each with a log file."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        """Start one, unless it runs."""
        if self.is_running(name):
            return
        guarded = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        environment = {**os.environ, **(env or {})}

        def spawn() -> subprocess.Popen[bytes]:
            with self.log(name).open("ab") as output:
                return subprocess.Popen(
                    guarded,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

        self._running[name] = _STARTER.submit(spawn).result()

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one, by force after ten seconds; it may be gone."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def is_running(self, name: str) -> bool:
        """Whether it was started and has not ended."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def names(self) -> list[str]:
        """What was started, in that order."""
        return list(self._running)

    def log(self, name: str) -> Path:
        """Where it writes."""
        return self.logs / f"{name}.log"

    def wait(self, name: str, ready: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a daemon is ready. Raises ``RuntimeError`` with the end of its log if that takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.is_running(name) or time.monotonic() > deadline:
                state = "did not become ready" if self.is_running(name) else "ended"
                end = self.log(name).read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{name} {state}: waited for {what}. Its log ends:\n{end}")
            time.sleep(0.1)


def command(*words: str, check: bool = True) -> str:
    """Run a short command; its output. Raises ``RuntimeError`` with what it said."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
