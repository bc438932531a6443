"""Logs read for a diagnosis: lines that a signature knows, deaths that a launcher reports, last words.

Fed with log tails and a rule set by ``classify``. A launcher (torchrun, mpirun, srun) ends with a code of its own,
mostly 1 whatever happened; what happened to each rank is in its summary:

- ``failed (exitcode: -9) local_rank: 2 (pid: 29563)``, and the block ``Root Cause (first observed failure)``;
- a rank that the launcher itself stopped afterwards (-15, or -9 when it didn't stop in time) is a victim;
- so is one that crashed on its way out: it aborted after it had said that a peer is gone (a watchdog that gave up, a
  thread that was left behind), or crashed when the launcher had told it to end; unless it has words of its own;
- "first observed" is the launcher's word only: in a time-out the first to give up is a victim too.

What is left out: lines of our own (``ft-agent``, the text of a signature file), everything before the newest start of
the command in the same file, and a finding after which training went on (a handled exception): ``STEPS_AFTER`` step
lines behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import NamedTuple

from airflow_ft.core.facts import LogText
from airflow_ft.core.faults import Role
from airflow_ft.core.loglines import lines_of, split_rank
from airflow_ft.core.rules import RuleSet, Signature
from airflow_ft.core.steplines import read_line

STEPS_AFTER = 3
LAST_WORDS = 8
MAX_FINDINGS = 400  # of one log: a line repeated for ever adds nothing
ABORTS = (-6, 134)
CRASHES = (*ABORTS, -11, 139)  # what a process does to itself on its way out; nobody is killed by them


class Who(NamedTuple):
    """Whose line it is. Any of it may be unknown; a local rank exists on every node."""

    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None

    def is_same(self, other: Who) -> bool:
        """Whether both surely are one process."""
        if self.rank is not None and other.rank is not None:
            return self.rank == other.rank
        return self.node == other.node and self.local_rank is not None and self.local_rank == other.local_rank

    def may_be(self, other: Who) -> bool:
        """Whether nothing that is known of the two says that they are different processes."""
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in zip(self, other, strict=True))

    @property
    def is_known(self) -> bool:
        """Whether a rank is named."""
        return self.rank is not None or self.local_rank is not None


@dataclass(frozen=True)
class Finding:
    """A line that a signature knows."""

    signature: Signature
    text: str
    source: str
    line: int
    who: Who


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


@dataclass(frozen=True)
class Words:
    """The last lines that one log's writer left."""

    source: str
    line: int
    text: str
    who: Who


@dataclass(frozen=True)
class Reading:
    """Everything that was read in all logs, each in its own order."""

    findings: tuple[Finding, ...] = ()
    deaths: tuple[Death, ...] = ()
    words: tuple[Words, ...] = ()
    ranks: tuple[Who, ...] = ()  # all ranks that were seen

    def of(self, who: Who) -> list[Finding]:
        """Return the findings of one rank."""
        return [finding for finding in self.findings if finding.who.is_same(who)]


def read_logs(logs: Iterable[LogText], rules: RuleSet) -> Reading:
    """Read all logs."""
    findings: list[Finding] = []
    deaths: list[Death] = []
    words: list[Words] = []
    ranks: dict[Who, None] = {}
    for log in logs:
        reader = _LogReading(log, rules)
        reader.read()
        findings += reader.findings
        deaths += reader.deaths
        words += reader.words
        ranks |= dict.fromkeys(reader.ranks)
    found_deaths = _without_doubles(deaths)
    names = {(d.who.node, d.who.local_rank): d.who.rank for d in found_deaths if d.who.rank is not None}
    named = [replace(f, who=_named(f.who, names)) for f in findings]
    everybody = dict.fromkeys([_named(who, names) for who in ranks] + [death.who for death in found_deaths])
    found_deaths = [replace(death, who=_named(death.who, names)) for death in found_deaths]
    # A rank's own file repeats the common log.
    unique = {(f.who, f.text, f.signature.id): f for f in reversed(named) if f.who.is_known}
    first_only = [f for f in named if unique.get((f.who, f.text, f.signature.id), f) is f]
    reading = Reading(tuple(first_only), tuple(found_deaths), tuple(words), tuple(everybody))
    judged = [replace(death, victim=death.victim or _crashed_on_its_way_out(death, reading)) for death in found_deaths]
    return replace(reading, deaths=tuple(judged))


def _crashed_on_its_way_out(death: Death, reading: Reading) -> bool:
    """Whether a crash is only the end of a process that had lost a peer, or was told to end.

    "Fatal Python error: Aborted" and the like say no more than the signal does: only a root is a word of its own.
    """
    roles = {finding.signature.role for finding in reading.of(death.who) if finding.signature.id != "torch.launcher"}
    if death.code not in CRASHES or Role.ROOT in roles:
        return False
    return death.told or (death.code in ABORTS and Role.CASCADE in roles)


def _named(who: Who, names: Mapping[tuple[str | None, int | None], int]) -> Who:
    if who.rank is None and who.local_rank is not None:
        return who._replace(rank=names.get((who.node, who.local_rank)))
    return who


# --- one log -----------------------------------------------------------------------------------------------------

_STARTED = re.compile(r'ft-agent [\w-]+ \{.*"event": ?"start"')
_OURS = re.compile(r"ft-agent [\w-]+ \{|ft-agent: |^\s*(?:- )?(?:pattern|says|advice|match|no_match|reference): ")
_RANK_FILE = re.compile(r"/rank(\d+)\.(?:stderr|stdout)$")
_NOISE = re.compile(r"^[\s*=~^_-]*$|^\s+File \"|^frame #|^\s*\^|\*{8}|Setting OMP_NUM_THREADS")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")


class _LogReading:
    def __init__(self, log: LogText, rules: RuleSet) -> None:
        self.log, self.rules = log, rules
        own = _RANK_FILE.search(log.source)
        self.own_local = int(own[1]) if own else None
        self.lines = lines_of(log.data)
        self.findings: list[Finding] = []
        self.deaths: list[Death] = []
        self.words: list[Words] = []
        self.ranks: dict[Who, None] = {}
        self._in_traceback: set[Who] = set()

    def read(self) -> None:
        begin = max(
            (n for n, line in enumerate(self.lines) if "ft-agent" in line and _STARTED.search(line)), default=-1
        )
        alive = self._last_proof_of_life(begin)
        launcher = _Launcher(self.log)
        for number in range(begin + 1, len(self.lines)):
            line = self.lines[number]
            if not line or _OURS.search(line):
                continue
            who, text = self._writer(line)
            launcher.read(line, number + 1)
            if who.is_known:
                self.ranks[who] = None
            if number > alive and len(self.findings) < MAX_FINDINGS:
                self._match(text, number + 1, who)
            if not _NOISE.search(text):
                self.words = [*self.words[1 - LAST_WORDS :], Words(self.log.source, number + 1, text[:300], who)]
        self.deaths = [death for death in launcher.ends() if death.line > alive]

    def _writer(self, line: str) -> tuple[Who, str]:
        rank, text, local = split_rank(line)
        local = local if local is not None or rank is not None else self.own_local
        return Who(self.log.node, rank, local), text

    def _last_proof_of_life(self, begin: int) -> int:
        """Return the index before which findings are stale: training went on for some steps after them."""
        steps: list[int] = []
        for number in range(len(self.lines) - 1, begin, -1):
            sighting = read_line(split_rank(self.lines[number]).text)
            if sighting.step is not None and (not steps or sighting.step != steps[-1]):
                steps.append(sighting.step)
                if len(steps) == STEPS_AFTER:
                    return number
        return -1

    def _match(self, text: str, number: int, who: Who) -> None:
        if _TRACEBACK.match(text):
            self._in_traceback.add(who)
            return
        inside = who in self._in_traceback
        if inside and text[:1] in (" ", "\t"):
            return  # a line of source code, not of output
        signature = self.rules.match(text)
        if inside:
            self._in_traceback.discard(who)
            signature = signature or self.rules.fallback
        if signature is not None and not (signature.pattern and signature.pattern in text):  # its own echo
            self.findings.append(Finding(signature, text[:500], self.log.source, number, who))


# --- launchers ---------------------------------------------------------------------------------------------------

_MENTION = re.compile(r"exit|rank|Root|Fail|rocess|srun|time  ")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_TOLD = re.compile(r"Sending process (\d+) closing signal")
_TIME = re.compile(r"^(?:\[[^\]]*\]: ?)?\s*time\s+: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
_FORCED = re.compile(r"Unable to shutdown process (\d+) via")
_HEADER = re.compile(r"^(?:\[[^\]]*\]: ?)?(Root Cause|Failures:|Other Failures)")
_RANK = re.compile(r"rank\s+: (\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_MPIRUN = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_SRUN = re.compile(
    r"srun: error: ([\w.-]+): tasks? (\d+)(?:[-,]\d+)*: (Exited with exit code|Killed|Terminated)\s*(\d*)"
)


class _Launcher:
    """What the launcher in one log says about its ranks."""

    def __init__(self, log: LogText) -> None:
        self._log = log
        self._deaths: list[Death] = []
        self._forced: set[int] = set()
        self._told: set[int] = set()
        self._at: datetime | None = None
        self._first = False
        self._rank: tuple[int, int] | None = None

    def read(self, line: str, number: int) -> None:
        if not _MENTION.search(line):
            return
        if (header := _HEADER.match(line)) is not None:
            self._first = header[1] == "Root Cause"
        elif (found := _RANK.search(line)) is not None:
            self._rank = int(found[1]), int(found[2])
        elif (found := _EXIT.search(line)) is not None and self._rank is not None:
            who = Who(self._log.node, *self._rank)
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
        elif (found := _MPIRUN.search(line)) is not None:
            self._add(Who(found[3], int(found[1])), -int(found[4]), line, number, pid=int(found[2]), first=True)
        elif (found := _SRUN.search(line)) is not None:
            code = {"Killed": -9, "Terminated": -15}.get(found[3]) or int(found[4] or 1)
            self._add(Who(found[1], int(found[2])), code, line, number, first=not self._deaths)

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


def _without_doubles(deaths: list[Death]) -> list[Death]:
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
