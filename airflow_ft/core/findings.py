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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_ft.core.described_nodes import NODE, described_node, node_column
from airflow_ft.core.facts import LogText
from airflow_ft.core.faults import FaultClass, Role, Trust
from airflow_ft.core.launchers import Death, Launcher, without_doubles
from airflow_ft.core.log_heads import Block, next_block
from airflow_ft.core.logclocks import LogClock
from airflow_ft.core.loglines import lines_of, split_rank
from airflow_ft.core.novelty import healthy_part, novel
from airflow_ft.core.prefixes import SAMPLE, PrefixReader, Who
from airflow_ft.core.rules import RuleSet, Signature
from airflow_ft.core.scanning import SMALL, scan
from airflow_ft.core.steplines import read_line
from airflow_ft.core.timeline import Timeline, align

STEPS_AFTER = 3
LAST_WORDS = 8
STEP_LINES, STEP_TIMES = 2_000, 200  # of a log's end that tell how its clock stands
GPUS_OF_A_NODE = 8  # at most, of nearly all nodes: ranks below it may be one node's
MAX_ALIKE = 12  # findings of one kind and one writer that are kept
ABORTS = (-6, 134)
CRASHES = (*ABORTS, -11, 139)  # what a process does to itself on its way out; nobody is killed by them


@dataclass(frozen=True)
class Finding:
    """A line that a signature knows."""

    signature: Signature
    text: str
    source: str
    line: int
    who: Who
    trust: Trust = Trust.JOB
    captured: Mapping[str, str] = field(default_factory=dict)
    at: float | None = None  # by the clock of its log; told only where several logs have to be compared

    @property
    def is_warning(self) -> bool:
        """Whether its program says that it goes on: a warning, a note, something that it tries again."""
        return _GOES_ON.search(self.text) is not None

    @property
    def misses_a_peer(self) -> bool:
        """Whether it only says that somebody else didn't come, or can't be reached."""
        known = self.signature
        return not known.vague and (known.fault_class is FaultClass.COMM_HANG or known.connects)

    @property
    def failed_alone(self) -> bool:
        """Whether a known rank says that itself failed, and not by a connection to somebody else."""
        own = self.signature.role is Role.ROOT and self.who.is_known and not self.misses_a_peer
        return own and not self.is_warning and not (self.signature.generic and _ABOUT_OTHERS.search(self.text))


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
    nodes: tuple[str, ...] = ()  # whose lines were seen
    novel: tuple[Words, ...] = ()  # lines of a kind that was never seen before the last step
    timeline: Timeline = field(default_factory=Timeline)

    def of(self, who: Who) -> list[Finding]:
        """Return the findings of one rank."""
        return [finding for finding in self.findings if finding.who.is_same(who)]


def read_logs(logs: Sequence[LogText], rules: RuleSet, good: Sequence[LogText] = ()) -> Reading:
    """Read all logs.

    :param good: logs of the last attempt that went well: what they say, too, is nothing new.
    """
    findings: list[Finding] = []
    deaths: list[Death] = []
    words: list[Words] = []
    fresh: list[Words] = []
    ranks: dict[Who, None] = {}
    nodes: dict[str, None] = {}
    steps: dict[str, dict[int, float]] = {}
    healthy = [line for log in good for _, line in _numbered(log, rules)]
    for log in logs:
        reader = _LogReading(log, rules, timed=len(logs) > 1)
        reader.read()
        steps[log.source] = reader.steps
        findings += reader.findings
        deaths += reader.deaths
        words += reader.words
        fresh += reader.novel(healthy) if not reader.findings else []
        ranks |= dict.fromkeys(reader.ranks)
        nodes |= reader.nodes
    found_deaths = without_doubles(deaths)
    names = {(d.who.node, d.who.local_rank): d.who.rank for d in found_deaths if d.who.rank is not None}
    names = {**_names_on_one_node(found_deaths, ranks), **names}
    named = [replace(f, who=_named(f.who, names)) for f in findings]
    everybody = dict.fromkeys([_named(who, names) for who in ranks] + [death.who for death in found_deaths])
    found_deaths = [replace(death, who=_named(death.who, names)) for death in found_deaths]
    # A rank's own file repeats the common log.
    unique = {(f.who, f.text, f.signature.id): f for f in reversed(named) if f.who.is_known}
    first_only = [f for f in named if unique.get((f.who, f.text, f.signature.id), f) is f]
    first_only = _without_vague(_as_consequences(_without_consequences(first_only)))
    timeline = align(steps, [(log.source, log.node) for log in logs])
    reading = Reading(
        tuple(first_only), tuple(found_deaths), tuple(words), tuple(everybody), tuple(nodes), tuple(fresh), timeline
    )
    judged = [replace(death, victim=death.victim or _crashed_on_its_way_out(death, reading)) for death in found_deaths]
    return replace(reading, deaths=tuple(judged))


def _names_on_one_node(deaths: Sequence[Death], ranks: Iterable[Who]) -> dict[tuple[str | None, int | None], int]:
    """Return the ranks of dead local ranks where one node's ranks are all that was seen: both numbers are the same."""
    seen = {who.rank for who in ranks if who.rank is not None}
    nodes = {who.node for who in ranks} | {death.who.node for death in deaths}
    if len(nodes) > 1 or max(seen, default=GPUS_OF_A_NODE) >= GPUS_OF_A_NODE:
        return {}
    return {(d.who.node, d.who.local_rank): d.who.local_rank for d in deaths if d.who.local_rank in seen}


def _without_vague(findings: list[Finding]) -> list[Finding]:
    """Leave out plain words where any line is known; an exception keeps its own words."""
    known = [f for f in findings if not f.signature.vague and f.signature.id != "torch.launcher"]
    return [f for f in findings if not f.signature.vague or _EXCEPTION.match(f.text)] if known else findings


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    """Leave out connections that could not be made after one was lost: who lost a peer can't reach it again."""
    lost: dict[str, int] = {}
    for finding in findings:
        signature = finding.signature
        is_loss = signature.role is Role.CASCADE and signature.fault_class is FaultClass.UNKNOWN
        if is_loss and signature.second_class is FaultClass.NET_FABRIC:
            lost[finding.source] = min(finding.line, lost.get(finding.source, finding.line))
    return [f for f in findings if not f.signature.connects or f.line < lost.get(f.source, f.line + 1)]


def _as_consequences(findings: list[Finding]) -> list[Finding]:
    """Where a rank failed by itself, what other ranks say of a peer that they miss is a consequence (a cascade)."""
    missing = [f for f in findings if f.misses_a_peer]
    alone = [f for f in findings if f.failed_alone and not any(m.who.is_same(f.who) for m in missing)]
    if not alone:
        return findings
    return [
        replace(f, signature=f.signature.model_copy(update={"role": Role.CASCADE}))
        if f.misses_a_peer and f.signature.role is Role.ROOT
        else f
        for f in findings
    ]


def _crashed_on_its_way_out(death: Death, reading: Reading) -> bool:
    """Whether a crash is only the end of a process that had lost a peer, or was told to end.

    "Fatal Python error: Aborted" and the like say no more than the signal does: only a root is a word of its own.
    """
    own = reading.of(death.who) or [f for f in reading.findings if f.who.is_known and f.who.may_be(death.who)]
    roles = {finding.signature.role for finding in own if finding.signature.id != "torch.launcher"}
    if death.code not in CRASHES or Role.ROOT in roles:
        return False
    return death.told or (death.code in ABORTS and Role.CASCADE in roles)


def _named(who: Who, names: Mapping[tuple[str | None, int | None], int]) -> Who:
    if who.rank is None and who.local_rank is not None:
        return who._replace(rank=names.get((who.node, who.local_rank)))
    return who


# --- one log -----------------------------------------------------------------------------------------------------

_GOES_ON = re.compile(  # NCCL calls its errors warnings
    r"(?i:\bretry(?:ing)?\b|will be retried|trying again|falling back|\bretries left)"
    r"|(?<!NCCL )(?<!:\d )\bWARN(?:ING)?\b|\bWarning: |\[W\d|\[W |\b(?:INFO|DEBUG)\b|^[WI]\d{4} "
)
_ABOUT_OTHERS = re.compile(  # of an exception that no signature knows
    r"^(?:\w+\.)*(?:Connection\w*|BrokenPipe|EOF|Timeout|Dist\w+)(?:Error|Exception)?\b"
    r"|(?i:\bpeers?\b|\bremote\b|connection|socket|timed? ?out|\b[nhrx]?ccl\b|gloo|barrier|communicator|other ranks?\b)"
)
_STARTED = re.compile(r'ft-agent [\w-]+ \{.*"event": ?"start"')
_OURS = re.compile(  # agent lines; entries of signature files, printed as YAML, JSON or repr, behind any prefix
    r"ft-agent [\w-]+ \{|ft-agent: |\b(?:no_)?match: \[|\bpattern: ['\"]|\bxids: \{|\bid: [a-z0-9_]+\.[a-z0-9_.]+$"
    r"|(?:^|[\]:|-] *|\s{2,})(?:- )?(?:says|advice|reference): "
    r"|[\"'](?:pattern|no_match|fault_class)[\"']: ?|fault_class="
)
_RANK_FILE = re.compile(r"/rank(\d+)\.(?:stderr|stdout)$")
_NOISE = re.compile(r"^[\s*=~^_-]*$|^\s+File \"|^frame #|^\s*\^|\*{8}|Setting OMP_NUM_THREADS")
_DIGIT = re.compile(r"\d")
_EXCEPTION = re.compile(r"^[\w.]+(?:: |:?$)")
_NCCL_INFO = re.compile(r"(?:NCCL|RCCL) (?:INFO|TRACE|VERSION) ")
_SUMMARY = re.compile(r"^\s+traceback\s*: Traceback \(most recent call last\)")
_SUMMARY_END = re.compile(r"^\S|^\s*(?:\[\d+\]:|=+$|-+$)")
_NODE_OBJECT = re.compile(r"\bnode/(?P<node>[a-z0-9][\w.-]*)|\bNode (?P<named>[a-z][\w.-]*\d[\w.-]*) ")
_MESSAGE = re.compile(r"(?!Traceback )\S.{0,400}$")
_TRACEBACK = re.compile(r"(?:^|: )Traceback \(most recent call last\):")


class _LogReading:
    def __init__(self, log: LogText, rules: RuleSet, *, timed: bool = False) -> None:
        self.log, self.rules = log, rules
        self._clock = LogClock() if timed else None
        own = _RANK_FILE.search(log.source)
        self.lines = _numbered(log, rules)
        prefixes = PrefixReader((line for _, line in self.lines), log.node, int(own[1]) if own else None)
        self._writer = prefixes.read
        self.findings: list[Finding] = []
        self.deaths: list[Death] = []
        self.words: list[Words] = []
        self.ranks: dict[Who, None] = {}
        self.nodes: dict[str, None] = {}
        self.steps = self._step_times() if timed else {}
        self._in_traceback: set[Who] = set()
        self._seen: Counter[tuple[str, Who]] = Counter()
        self._summary: Who | None = None  # whose copied traceback is being read
        self._open: dict[Who, str] = {}  # whose message ends in a colon, and goes on in the next line
        self._node = described_node([line for _, line in self.lines]) if log.trust is Trust.PLATFORM else None
        self._column = node_column([line for _, line in self.lines[:SAMPLE]])

    def read(self) -> None:
        begin = max(
            (n for n, (_, line) in enumerate(self.lines) if "ft-agent" in line and _STARTED.search(line)), default=-1
        )
        alive = self._last_proof_of_life(begin)
        launcher, behind = Launcher(self.log), None
        block: Block | None = None
        for index in range(begin + 1, len(self.lines)):
            number, line = self.lines[index]
            if not line or _OURS.search(line):
                continue
            who, text = self._writer(line)
            block = next_block(line, block, known=who.is_known)
            if not who.is_known:  # what a traceback of one rank leads to: its last line is often printed by a library
                who = behind or (who._replace(rank=block.rank) if block is not None else who)
            behind = who if who.is_known and (text[:1] in (" ", "\t") or _TRACEBACK.search(text)) else None
            if self._node is not None and (described := NODE.match(line)) is not None:
                self._node = described["node"]
            launcher.read(line, number)
            if who.is_known:
                self.ranks[who] = None
            if who.node is not None:
                self.nodes[who.node] = None
            if index > alive and not self._read_summary(line, number, launcher.told):
                self._match(text, number, who, line)
                self._go_on(text, number, who, line)
            if not _NOISE.search(text):
                self.words = [*self.words[1 - LAST_WORDS :], Words(self.log.source, number, text[:300], who)]
        stale = self.lines[alive][0] if alive >= 0 else 0
        self.deaths = [death for death in launcher.ends() if death.line > stale]

    def _go_on(self, text: str, number: int, who: Who, line: str) -> None:
        """Read a message that ends in a colon together with the line that it goes on in."""
        begun, more = self._open.get(who, ""), text.strip()
        if begun and more:
            del self._open[who]
            whole = f"{begun} {more}"
            known = self.rules.match(whole)
            if known is not None and not known.generic and known is not self.rules.match(more):
                self._match(whole, number, who, line)
        if more.endswith(":") and _MESSAGE.match(text):
            self._open[who] = more

    def _read_summary(self, line: str, number: int, who: Who | None) -> bool:
        """Take the traceback that a launcher copies into its summary, indented, from the rank's error file."""
        if _SUMMARY.match(line):
            self._summary = who
            return True
        if self._summary is None:
            return False
        text = line.strip()
        if _SUMMARY_END.match(line):
            self._summary = None
        elif _EXCEPTION.match(text):
            self._in_traceback.add(self._summary)
            self._match(text, number, self._summary)
        return True

    def _last_proof_of_life(self, begin: int) -> int:
        """Return the index before which findings are stale: training went on for some steps after them."""
        steps: list[int] = []
        for index in range(len(self.lines) - 1, begin, -1):
            line = self.lines[index][1]
            if not _DIGIT.search(line):
                continue
            sighting = read_line(split_rank(line).text)
            if sighting.step is not None and (not steps or sighting.step != steps[-1]):
                steps.append(sighting.step)
                if len(steps) == STEPS_AFTER:
                    return index
        return -1

    def _step_times(self) -> dict[int, float]:
        """Return when the newest steps were told, by this log's clock."""
        told: list[tuple[int, str]] = []
        for _, line in reversed(self.lines[-STEP_LINES:]):
            step = read_line(split_rank(line).text).step if _DIGIT.search(line) else None
            if step is not None:
                told.append((step, line))
        clock = LogClock()
        times: dict[int, float] = {}
        for step, line in reversed(told[:STEP_TIMES]):
            at = clock.feed(line)
            if at is not None:
                times.setdefault(step, at)
        return times

    def novel(self, good: Sequence[str] = ()) -> list[Words]:
        """Return the lines after the last step that are of a new kind, in this run and in the last good one."""
        healthy = healthy_part([line for _, line in self.lines])
        found = novel([*good, *healthy], self.lines[len(healthy) :]) if healthy or good else []
        return [Words(self.log.source, number, line[:300], self._writer(line)[0]) for number, line in found]

    def _match(self, text: str, number: int, who: Who, line: str = "") -> None:
        if _TRACEBACK.search(text):
            self._in_traceback.add(who)
            return
        inside = who in self._in_traceback
        if inside and text[:1] in (" ", "\t"):
            return  # a line of source code, not of output
        signature = self.rules.match(text)
        if signature is not None and signature.role is Role.ROOT and _NCCL_INFO.match(text):
            return  # what NCCL tries and does without is no error
        if inside:
            self._in_traceback.discard(who)
            if signature is None and _EXCEPTION.match(text):
                signature = self.rules.fallback
        if signature is None or (signature.pattern and signature.pattern in text):  # its own echo
            return
        self._seen[signature.id, who] += 1
        if self._seen[signature.id, who] > MAX_ALIKE:  # a line repeated for ever adds nothing
            return
        if who.node is None and self.log.trust is Trust.PLATFORM:
            object_name = _NODE_OBJECT.search(text)
            who = who._replace(node=(object_name["node"] or object_name["named"]) if object_name else self._node)
        captured = self.rules.captured(signature, text) if "(?P<" in signature.pattern else {}
        if self._column is not None and self._column in text:
            captured = {"node": self._column, **captured}
        who = _captured(who, captured)
        at = self._clock.feed(line) if self._clock is not None and line else None
        found = Finding(signature, text[:500], self.log.source, number, who, self.log.trust, captured, at)
        self.findings.append(found)


def _numbered(log: LogText, rules: RuleSet) -> list[tuple[int, str]]:
    """Return the lines of a log that are worth reading."""
    if log.lines is not None:
        return list(log.lines)
    if len(log.data) > SMALL:
        return scan([log.data], rules)
    return list(enumerate(lines_of(log.data), 1))


def _captured(who: Who, captured: Mapping[str, str]) -> Who:
    rank, node = captured.get("rank", ""), captured.get("node")
    if rank.isdigit() and len(rank) < 7:
        who = Who(who.node, int(rank))
    return who._replace(node=node) if node and who.node is None else who
