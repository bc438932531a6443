"""What launchers and schedulers say of one process that ended, whatever their words: a subject and an end. Feeds
``launchers``.

There are dozens of launchers, and each has its own sentence; what all have in common is a *subject* (a rank, a task, a
process's name) and an *end* (a signal, a code, or only that it is over). Both are tables here, so that a new launcher
needs no new code:

- in one line: ``nid1: rank 22 died from signal 11`` (PALS), ``PE RANK 17 exit signal Killed`` (ALPS), ``task 9 (host
  n1): Segmentation fault`` (Flux), ``One or more process (first noticed rank 12) terminated with signal 9`` (jsrun),
  ``Container rank 6 status failed … code 1`` (Paddle), ``Child process with PID 8 terminated with code 1`` behind
  ``[rank: 3]`` (Lightning);
- of a host: ``pdsh@head: worker2: ssh exited with exit code 255``;
- in two: ``Process name: [[4211,1],7]`` or ``host[3]``, then ``Exit code: 44`` (Open MPI, Horovod); ``RANK 3 PID 41
  RUNNING AT cn021``, then ``KILLED BY SIGNAL: 9`` (Intel MPI).

A subject counts only together with an end, and a status above 255 is no process's (HTTP has those).
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from airflow_ft.core.prefixes import Who

WAIT = 3  # lines between the subject and its end
NAMES = {
    "segmentation fault": signal.SIGSEGV,
    "killed": signal.SIGKILL,
    "bus error": signal.SIGBUS,
    "aborted": signal.SIGABRT,
    "illegal instruction": signal.SIGILL,
    "floating point exception": signal.SIGFPE,
    "terminated": signal.SIGTERM,
}

_WORTH = re.compile(r"(?i)exit|signal|abort|died|code|status|terminat|RUNNING AT|Process name|host \S+\): ")
_HEADERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]",
        r"Process name: \[(?:pr?terun|mpirun)-[\w.-]+@\d+,(?P<rank>\d+)\]",
        r"Process name: (?P<node>[\w.-]+)\[(?P<local>\d+)\]\s*$",
        r"RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<node>\S+)",
    )
)
_FOLLOWS = re.compile(r"^\W*(?:(?:Exit code|EXIT CODE): *(?P<code>-?\d+)|KILLED BY SIGNAL: *(?P<signal>\d+))")
_SUBJECT = re.compile(
    r"(?i)--local[_-]rank[=', ]+(?P<local>\d+)"
    r"|\b(?:global |pe |mpi_|first noticed )?rank[ _]?[=:]? ?[\[(]?(?P<rank>\d{1,6})\b"
    r"|\btask (?P<task>\d{1,6})\b(?=[ :(])"
    r"|\bworker (?P<member>\d{1,6})(?= \(pid| (?:was|has|exited|died|failed|terminated|crashed))"
    r"|\b(?:VllmWorker|Worker)[-_](?P<worker>\d{1,4})\b"
)
_SIGNAL = re.compile(
    r"(?i)\b(?:died from|terminated (?:with|by)|killed by|exit(?:ed)?(?: on| with)?|received|caught(?: error)?:?)"
    r"[^;,]{0,24}?\bsignal[ :]*(?P<number>\d{1,2})\b|\(signal (?P<bracketed>\d{1,2})\)"
    r"|(?:exit signal|\(host \S+\):|\btask \d+:) (?P<name>" + "|".join(NAMES) + r")\b"
)
_CODE = re.compile(
    r"(?i)\b(?:exit(?:ed|s)?|failed|terminated|crashed|ended|returned|died)\b[^;]{0,400}?"
    r"\b(?:code|status)[ =:]+(?P<code>-?\d{1,3})\b"
)
_OVER = re.compile(
    r"(?i)\bwas aborted\b|\bdied unexpectedly\b|\bhas exited due to process rank\b|\bMPI_ABORT was invoked\b"
    r"|\bapplication called MPI_Abort\(\w+, (?P<code>\d{1,3})\)"
)
_BY_HOST = re.compile(  # shells on many hosts: pdsh, clush, parallel-ssh
    r"(?:^|: )(?P<node>[A-Za-z][\w.-]*): (?:ssh )?exited with exit code (?P<code>\d{1,3})$"
    r"|\[FAILURE\] (?P<failed>[\w.-]+) Exited with error code (?P<status>\d{1,3})$"
)
_HOST = re.compile(
    r"\(host (\S+?)\)|\bon (?:node|host) ([\w.-]+)|^\[?([A-Za-z][\w.-]*\d[\w.-]*)[:\]](?:mpi_| )rank"
    r"|\[NID (\d+)\]"
)


class Exit(NamedTuple):
    """One process that ended: with a code, or by a signal (negative)."""

    who: Who
    code: int
    pid: int | None = None


class ExitLines:
    """Read the lines of one log, one after the other."""

    def __init__(self, node: str | None) -> None:
        self._node = node
        self._about: tuple[Who, int | None] | None = None  # whose end the next lines will tell
        self._since = 0

    def read(self, line: str) -> Exit | None:
        """Take the next line; return the end that it completes."""
        if self._about is not None and (found := _FOLLOWS.match(line)) is not None:
            (who, pid), self._about = self._about, None
            return Exit(who, -int(found["signal"]) if found["signal"] else int(found["code"]), pid)
        self._since += 1
        if self._since > WAIT:
            self._about = None
        if not _WORTH.search(line):
            return None
        for header in _HEADERS:
            if (found := header.search(line)) is not None:
                self._about, self._since = self._named(found.groupdict()), 0
                return None
        if (found := _BY_HOST.search(line)) is not None:
            return Exit(Who(found["node"] or found["failed"]), int(found["code"] or found["status"]))
        return self._in_one(line)

    def _named(self, told: dict[str, str | None]) -> tuple[Who, int | None]:
        rank, local, pid = (int(found) if (found := told.get(key)) else None for key in ("rank", "local", "pid"))
        return Who(told.get("node") or self._node, rank, local), pid

    def _in_one(self, line: str) -> Exit | None:
        end = _SIGNAL.search(line) or _CODE.search(line) or _OVER.search(line)
        if end is None:
            return None
        code = _code(end.groupdict())
        subjects = list(_SUBJECT.finditer(line[:2000]))
        if not subjects or not -64 <= code <= 255:
            return None
        before = [found for found in subjects if found.start() < end.end()]
        told = (before or subjects)[-1 if before else 0]
        if told["local"]:
            return Exit(Who(self._node, None, int(told["local"])), code)
        host = _HOST.search(line)
        node = next(filter(None, host.groups()), None) if host else None
        return Exit(
            Who(self._node or node, int(told["rank"] or told["task"] or told["member"] or told["worker"])), code
        )


def _code(told: dict[str, str | None]) -> int:
    number = told.get("number") or told.get("bracketed")
    if number:
        return -int(number)
    if told.get("name"):
        return -int(NAMES[str(told["name"]).lower()])
    return int(told.get("code") or 1)
