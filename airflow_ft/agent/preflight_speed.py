"""How fast this node computes: rounds a second of a fixed piece of work. Only worth something beside other nodes'.

Nodes that share a machine take turns under a lock, and what they wait for the CPU because of *others* is not counted:
there a busy machine is no slow node. What a CPU limit takes away is counted everywhere: the kernel tells the two apart.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from typing import Any

# Longer than the 0.1 s period of a CPU limit; the best of a few passes over a moment's disturbance.
WINDOWS, WINDOW_SECONDS = 4, 0.12


def measured(turns: Any) -> float:
    """Rounds a second; ``turns`` is the lock file of a machine that several nodes share."""
    if not turns:
        return max(_window(False) for _ in range(WINDOWS))
    lock = os.open(str(turns), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return max(_window(True) for _ in range(WINDOWS))
    finally:
        os.close(lock)


def _window(shared: bool) -> float:
    began, waited, limited = time.perf_counter(), _waited(), _limited()
    rounds = 0
    while time.perf_counter() - began < WINDOW_SECONDS:
        sum(range(500))
        rounds += 1
    seconds = time.perf_counter() - began
    others = max(0.0, (_waited() - waited) - (_limited() - limited)) if shared else 0.0
    return rounds / max(seconds - others, seconds / 20)


def _waited() -> float:
    """Seconds that this thread was ready to run and did not."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _limited() -> float:
    """Seconds that the limit of our cgroup has kept us from running."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return 0.0
    for _, controllers, path in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in ("/sys/fs/cgroup/cpu" + path, "/sys/fs/cgroup/cpu,cpuacct" + path, "/sys/fs/cgroup" + path):
            try:
                with open(os.path.join(folder, "cpu.stat")) as file:
                    found = dict(re.findall(r"(throttled_\w+) (\d+)", file.read()))
            except OSError:
                continue
            if found:
                return int(found.get("throttled_time", 0)) / 1e9 + int(found.get("throttled_usec", 0)) / 1e6
    return 0.0
