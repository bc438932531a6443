"""How fast this node computes: rounds a second of a fixed piece of work. Only worth something beside other nodes'.

On a node of its own every second counts, and the kernel tells what a CPU limit took from what other processes did.
Nodes that share a machine have the same CPU, and how busy it is just now is no node's fault (beside a busy sibling
thread a core has half its speed): there a node's speed is the share of the CPU that it is allowed, and gets when it
doesn't wait for others.
"""

from __future__ import annotations

import os
import re
import time
from typing import Iterator, NamedTuple

# Two whole periods (0.1 s each) of a CPU limit: a part of one would hold more or less than the limit's share by chance.
# The best of a few passes over a moment's disturbance.
WINDOWS, WINDOW_SECONDS = 3, 0.2
_MOUNTS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup")


class Speed(NamedTuple):
    """Rounds a second (or a share of the CPU); the shares of the time that a limit took, and that others did."""

    rounds: float
    limited: float
    others: float


def measured(shared: bool) -> Speed:
    """Measure; ``shared`` says that several nodes are on this machine."""
    if not shared:
        return max(_alone() for _ in range(WINDOWS))
    allowed = min([1.0, *_quotas()])
    return Speed(allowed * max(_share() for _ in range(WINDOWS)), 1.0 - allowed, 0.0)


def _alone() -> Speed:
    began, waited, limited = time.perf_counter(), _waited(), _limited()
    rounds = _rounds()
    seconds, waiting = time.perf_counter() - began, _waited() - waited
    by_limit = min(_limited() - limited, waiting)  # a group's time is that of all its processes
    return Speed(rounds / seconds, by_limit / seconds, (waiting - by_limit) / seconds)


def _share() -> float:
    """Which share of the time that it didn't wait this thread was on a CPU: less than all of it if it was stopped."""
    began, own, waited = time.perf_counter(), time.thread_time(), _waited()
    _rounds()
    own, waiting = time.thread_time() - own, _waited() - waited
    return min(1.0, own / max(time.perf_counter() - began - waiting, own, 1e-6))


def _rounds() -> int:
    rounds, end = 0, time.perf_counter() + WINDOW_SECONDS
    while time.perf_counter() < end:
        sum(range(500))
        rounds += 1
    return rounds


def _waited() -> float:
    """Seconds that this thread was ready to run and did not."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _limited() -> float:
    """Seconds that the limit of our cgroup has kept us from running."""
    for folder in _cgroups():
        found = dict(re.findall(r"(throttled_\w+) (\d+)", _read(folder, "cpu.stat")))
        if found:
            return int(found.get("throttled_time", 0)) / 1e9 + int(found.get("throttled_usec", 0)) / 1e6
    return 0.0


def _quotas() -> Iterator[float]:
    """How many CPUs each of our cgroups may use, where it is limited."""
    for folder in _cgroups():
        words = (_read(folder, "cpu.max") or _read(folder, "cpu.cfs_quota_us")).split()
        words += _read(folder, "cpu.cfs_period_us").split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])


def _cgroups() -> Iterator[str]:
    """The folders of our cgroup and of those above it, the own one first; in a container its path may be the host's."""
    for line in _read("/proc/self", "cgroup").splitlines():
        _, controllers, path = (line + "::").split(":")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        while True:
            for mount in _MOUNTS:
                yield mount + path.rstrip("/")
            if path in ("", "/"):
                break
            path = os.path.dirname(path)


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read(65536)
    except OSError:
        return ""
