"""What a launcher (torchrun, mpirun, srun) says about the ends of its ranks. Feeds ``findings``.

A launcher ends with a code of its own, mostly 1 whatever happened; what happened to each rank is in its summary:

- ``failed (exitcode: -9) local_rank: 2 (pid: 29563)``, and the block ``Root Cause (first observed failure)``;
- a rank that the launcher itself stopped afterwards (-15, or -9 when it didn't stop in time) is a victim;
- "first observed" is the launcher's word only: in a time-out the first to give up is a victim too.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from airflow_ft.core.exit_lines import ExitLines
from airflow_ft.core.facts import LogText
from airflow_ft.core.prefixes import Who


@dataclass(frozen=True)
class Death:
    """The end of one rank, as its launcher reports it.

    ``first``: the launcher calls it the first failure. ``told``: the launcher had told it to end before it did.
    ``at`` is the launcher's time of it, in whole seconds of its node's clock.
    """

    who: Who
    code: int
    source: str
    line: int
    text: str
    pid: int | None = None
    first: bool = False
    victim: bool = False
    told: bool = False
    at: datetime | None = None


_MENTION = re.compile(
    r"exit|died with|terminated with|rank|Root|Fail|rocess|srun|time  |[Cc]ode|EXIT|SIGNAL|task|RANK|orker"
)
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_TOLD = re.compile(r"Sending process (\d+) closing signal")
_TIME = re.compile(r"^(?:\[[^\]]*\]: ?)?\s*time\s+: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
_HEADER = re.compile(r"^(?:\[[^\]]*\]: ?)?(Root Cause|Failures:|Other Failures)")
_RANK = re.compile(r"rank\s+: (\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_MPIRUN = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_COMMAND = re.compile(  # torch.distributed.launch
    r"CalledProcessError: Command .*--local[_-]rank[=', ]+(?P<local>\d+).* "
    r"(?:returned non-zero exit status (?P<code>\d+)|died with <Signals\.\w+: (?P<signal>\d+)>)"
)
_NAMED = re.compile(  # Composer, Lightning and others
    r"\b[Rr]ank:? ?(\d{1,6})\b[^;]{0,60}?\b(?:crashed|exited|died|terminated|failed|ended) with (?:exit |return )?"
    r"code:? (-?\d{1,3})\b"
)
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error:")
_DEEPSPEED = re.compile(r"exits with return code = (-?\d+)")
_SPAWN = re.compile(r"process (\d+) terminated with (?:signal (SIG\w+)|exit code (\d+))")
_DIED = re.compile(r"died with <Signals\.\w+: (\d+)>")
_SRUN = re.compile(
    r"srun: error: ([\w.-]+): tasks? (\d+)(?:[-,]\d+)*: (Exited with exit code|Killed|Terminated|Out Of Memory)\s*(\d*)"
)


class Launcher:
    """What the launcher in one log says about its ranks."""

    def __init__(self, log: LogText) -> None:
        self._log = log
        self._exits = ExitLines(log.node)
        self._deaths: list[Death] = []
        self._forced: set[int] = set()
        self._told: set[int] = set()
        self._at: datetime | None = None
        self._first = False
        self._rank: tuple[int, int] | None = None
        self.told: Who | None = None  # whose end was told last

    def read(self, line: str, number: int) -> None:
        """Take the next line."""
        if not _MENTION.search(line):
            return
        if (header := _HEADER.match(line)) is not None:
            self._first = header[1] == "Root Cause"
        elif (found := _RANK.search(line)) is not None:
            self._rank = int(found[1]), int(found[2])
        elif (found := _EXIT.search(line)) is not None and self._rank is not None:
            who = self.told = Who(self._log.node, *self._rank)
            self._add(who, int(found[1]), line, number, pid=int(found[2]), first=self._first, at=self._at)
            self._rank = self._at = None
        elif (found := _TIME.match(line)) is not None:
            self._at = datetime.strptime(found[1], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=timezone.utc)
        elif (found := _TOLD.search(line)) is not None:
            self._told.add(int(found[1]))
        elif (found := _FAILED.search(line)) is not None:
            who = Who(self._log.node, None, int(found[2]))
            self._add(who, int(found[1]), line, number, pid=int(found[3]), first=True)
        elif (found := _FORCED.search(line)) is not None:
            self._forced.add(int(found[1]))
        elif (found := _COMMAND.search(line)) is not None:
            self._read_command(found, line, number)
        elif (found := _SPAWN.search(line)) is not None:
            code = -signal.Signals[found[2]] if found[2] in signal.Signals.__members__ else int(found[3] or 1)
            self._add(Who(self._log.node, int(found[1])), code, line, number, first=not self._deaths)
        elif (found := _SPAWNED.match(line)) is not None:
            self._add(Who(self._log.node, int(found[1])), 1, line, number, first=not self._deaths)
        elif (found := _NAMED.search(line)) is not None:
            self._add(Who(self._log.node, int(found[1])), int(found[2]), line, number, first=not self._deaths)
        elif (found := _DIED.search(line)) is not None and not self._deaths:
            self._add(Who(self._log.node), -int(found[1]), line, number, first=True)
        elif (found := _MPIRUN.search(line)) is not None:
            self._add(Who(found[3], int(found[1])), -int(found[4]), line, number, pid=int(found[2]), first=True)
        elif (found := _SRUN.search(line)) is not None:
            code = {"Killed": -9, "Out Of Memory": -9, "Terminated": -15}.get(found[3]) or int(found[4] or 1)
            self._add(Who(found[1], int(found[2])), code, line, number, first=not self._deaths)
        elif (end := self._exits.read(line)) is not None:
            self._add(end.who, end.code, line, number, pid=end.pid, first=not self._deaths)
        elif (found := _DEEPSPEED.search(line)) is not None and not self._deaths:
            self._add(Who(self._log.node), int(found[1]), line, number, first=True)

    def _read_command(self, found: re.Match[str], line: str, number: int) -> None:
        code = int(found["code"]) if found["code"] else -int(found["signal"])
        self._add(Who(self._log.node, None, int(found["local"])), code, line, number, first=True)

    def ends(self) -> list[Death]:
        """Return all deaths, with the victims of the launcher marked."""
        return [
            replace(death, victim=death.code in (-15, 143) or death.pid in self._forced, told=death.pid in self._told)
            for death in self._deaths
        ]

    def _add(
        self,
        who: Who,
        code: int,
        line: str,
        number: int,
        *,
        pid: int | None = None,
        first: bool,
        at: datetime | None = None,
    ) -> None:
        if code != 0:
            text = line.strip()[:300]
            self._deaths.append(Death(who, code, self._log.source, number, text, pid=pid, first=first, at=at))


def without_doubles(deaths: list[Death]) -> list[Death]:
    """Join what the launcher said twice about one process, in the order of the first mention."""
    joined: dict[object, Death] = {}
    for death in deaths:
        key = (death.source, death.pid) if death.pid is not None else (death.source, death.who)
        known = joined.get(key)
        if known is None:
            joined[key] = death
        else:
            who = death.who if death.who.rank is not None else known.who
            joined[key] = replace(
                known,
                who=who,
                first=known.first or death.first,
                victim=known.victim or death.victim,
                told=known.told or death.told,
                at=known.at or death.at,
            )
    return list(joined.values())
