"""Classify: from the facts about a failed run to one diagnosis (DESIGN §5). Pure.

The order of the questions, each a function below; the first that has an answer gives the diagnosis:

1. Was the end planned? Then it is a disruption, nobody's fault, whatever the codes and logs say.
2. Does the *platform* say that a node is lost, or can't start what others did? Then that node is the suspect, and all
   other ends are consequences.
3. Did it hang? A full disk explains that; else ``COMM_HANG``, suspected are the ranks whose stack differs from the
   others'.
4. Who stopped first, and with which words? The culprit is the death that isn't a victim of the launcher and doesn't
   only say that a peer is gone; its own earliest *specific* root line wins, then the platform's word, then its exit
   code, then a generic exception.
5. Are there roots, ambiguous lines, or cascades without any death? A cascade that nobody caused is read as it stands.
6. Nothing is known: ``UNKNOWN``, with the last words as candidates.

What the job's own output may prove is limited (it is written by strangers): it names suspects only on the node whose
log it is, and a hardware line needs a second, different sign on that node before the node is suspected at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from airflow_ft.core import diagnoses
from airflow_ft.core import naming_suspects as suspects
from airflow_ft.core.facts import Facts, LogText
from airflow_ft.core.faults import CANT_START_HERE, Diagnosis, Evidence, FaultClass, Retry, Role, Trust
from airflow_ft.core.findings import Finding, Reading, read_logs
from airflow_ft.core.launchers import Death
from airflow_ft.core.prefixes import Who
from airflow_ft.core.preflight import diagnosis_of
from airflow_ft.core.rules import RuleSet, Signature, compile_signatures
from airflow_ft.core.starting import alike_at_start

__all__ = ["Facts", "LogText", "classify"]

LAST_WORDS = 50  # lines at the end of a log: what was written right before the silence, a traceback's length
KILLS, ABORTS = (-9, 137), (-6, 134)
_LIKELY = 0.4  # from here an ambiguous line is taken before what others print
_SURE = 0.7  # from here a signature is specific


def classify(facts: Facts, signatures: Sequence[Signature] | RuleSet) -> Diagnosis:
    """Reduce the facts to one diagnosis."""
    rules = signatures if isinstance(signatures, RuleSet) else _compiled(tuple(signatures))
    if facts.planned_stop:
        return _planned(facts)
    checked = diagnosis_of(facts.evidence, facts.nodes)
    if checked is not None:
        return checked
    reading = read_logs(facts.logs, rules, facts.good_logs)
    diagnosis = (
        _lost_node(facts, reading)
        or _no_start(facts, reading)
        or _no_room(facts, reading, rules)
        or _hung(facts, reading)
        or _excused(facts, reading)
        or _first_death(facts, reading, rules)
        or _lines_alone(facts, reading)
        or _codes_alone(facts, reading, rules)
        or diagnoses.unknown(facts, reading)
    )
    return alike_at_start(facts, reading, diagnosis)


@lru_cache(maxsize=4)
def _compiled(signatures: tuple[Signature, ...]) -> RuleSet:
    return compile_signatures(signatures)


# --- 1, 2, 3: what outweighs the logs ----------------------------------------------------------------------------


def _planned(facts: Facts) -> Diagnosis:
    return Diagnosis(
        fault_class=FaultClass.UNKNOWN,
        text=f"The run was stopped as planned: {facts.planned_stop}.",
        confidence=0.95,
        retry=Retry.USEFUL,
        disruption=facts.planned_stop,
        advice="Nobody's fault: nothing has to be mended. It goes on from the last checkpoint.",
        evidence=facts.evidence[: diagnoses.MAX_EVIDENCE],
    )


def _lost_node(facts: Facts, reading: Reading) -> Diagnosis | None:
    told = [e for e in facts.evidence if _is_platform_root(e) and e.fault_class is FaultClass.HW_NODE and e.node]
    lost = [e for e in told if e.source != CANT_START_HERE]
    return diagnoses.lost_nodes(facts, reading, lost) if lost else None


def _no_start(facts: Facts, reading: Reading) -> Diagnosis | None:
    """A node that is in service and can't start what others have started (story EXC-05)."""
    stuck = [e for e in facts.evidence if _is_platform_root(e) and e.source == CANT_START_HERE and e.node]
    return diagnoses.no_start(facts, reading, stuck) if stuck else None


def _no_room(facts: Facts, reading: Reading, rules: RuleSet) -> Diagnosis | None:
    """A silence that a full disk explains: the platform sees one, or training's last words are about one."""
    if facts.hang is None:
        return None
    for word in facts.evidence:
        if _is_platform_root(word) and word.source == "disk":
            return diagnoses.from_platform(facts, reading, rules, word, None)
    lengths = {log.source: log.data.count(b"\n") for log in facts.logs}
    for found in reversed(reading.findings):
        of_storage = found.signature.origin == "storage.yaml" and found.signature.retry is Retry.USELESS
        is_last = found.line > lengths.get(found.source, 0) - LAST_WORDS
        if of_storage and is_last and found.signature.role is Role.ROOT and found.signature.confidence >= _SURE:
            return diagnoses.from_line(facts, reading, found, None)
    return None


def _hung(facts: Facts, reading: Reading) -> Diagnosis | None:
    verdict = facts.hang
    if verdict is None:
        return None
    named, sentence = suspects.of_hang(facts)
    best = next(
        (f for f in reading.findings if f.signature.role is Role.ROOT and f.signature.confidence >= _SURE), None
    )
    root = Evidence(
        source="hang", text=verdict.text or "No progress.", role=Role.ROOT, fault_class=FaultClass.COMM_HANG
    )
    return Diagnosis(
        fault_class=FaultClass.COMM_HANG,
        text=" ".join(filter(None, (verdict.text or "The training made no progress.", sentence))),
        root=root,
        suspects=named,
        confidence=0.8 if named else 0.6,
        retry=Retry.USEFUL,
        signature=f"hang.{verdict.kind}",
        second_class=best.signature.fault_class if best else None,
        advice="Look at the stacks: the rank that is not in the collective operation is the one to ask. "
        "If it comes again at the same step, look at the data and the code of that step.",
        evidence=diagnoses.evidence(facts, reading, root),
    )


def _excused(facts: Facts, reading: Reading) -> Diagnosis | None:
    """The scheduler's own line says that it ended the run, and nothing before it says that the run had failed."""
    excuses = [f for f in reading.findings if f.signature.disruption and _may_excuse(facts, f)]
    sure = [f for f in excuses if f.signature.role is Role.ROOT]
    if not excuses:
        return None
    line = (sure or excuses)[0]
    others = [f for f in reading.findings if not f.signature.disruption and f.source == line.source]
    before = [f for f in others if f.line < line.line and f.signature.role is Role.ROOT]
    if line.trust is not Trust.PLATFORM or not sure:
        told = [f for f in reading.findings if f.trust is Trust.PLATFORM and f.signature.role is Role.ROOT]
        before += [f for f in told if not f.signature.disruption]
    if any(_is_specific(f.signature) for f in before) or (not sure and (before or _failed_elsewhere(reading, line))):
        return None
    if not sure and any(death.code < 0 and not death.victim for death in reading.deaths):
        return None
    if "time limit" in str(line.signature.disruption):
        waits = [f for f in others if f.line < line.line and f.signature.fault_class is FaultClass.COMM_HANG]
        if waits:  # it stood still until the limit
            return diagnoses.from_line(facts, reading, waits[-1], None).but(second_class=FaultClass.UNKNOWN)
    return diagnoses.excused(facts, reading, line)


def _failed_elsewhere(reading: Reading, line: Finding) -> bool:
    """Whether a rank of another node failed by itself, and not clearly later: its launcher stops the healthy ranks."""
    here = line.who.node
    failed = [f for f in reading.findings if f.failed_alone and here and f.who.node not in (None, here)]
    return any(other in reading.timeline.first([line, other], lambda f: (f.source, f.at)) for other in failed)


def _may_excuse(facts: Facts, finding: Finding) -> bool:
    """The job's own output may excuse nothing where the scheduler doesn't write into it: restarts would be free."""
    return facts.scheduler_in_log or finding.trust is Trust.PLATFORM


# --- 4: who stopped first ----------------------------------------------------------------------------------------


def _first_death(facts: Facts, reading: Reading, rules: RuleSet) -> Diagnosis | None:
    death = _culprit(reading)
    if death is None:
        return None
    line = _best_root(_own_roots(death, reading), reading)
    by_code = rules.for_code(death.code)
    platform = _platform_root(facts, rules, death)
    seen = _seen_by_platform(reading, death)
    if line is not None and _is_specific(line.signature):
        return diagnoses.from_line(facts, reading, line, death)
    if platform is not None:
        return diagnoses.from_platform(facts, reading, rules, platform, death)
    if seen is not None:
        return diagnoses.from_line(facts, reading, seen, death)
    if death.code in ABORTS and line is None:
        line = _why_it_aborted(reading, death)
        by_code = None if line is not None else by_code
    if by_code is not None:
        return _in_context(reading, death, diagnoses.from_code(facts, reading, by_code, death))
    if line is not None:
        return diagnoses.from_line(facts, reading, line, death)
    return _said_by_others(facts, reading, death) or diagnoses.silent(facts, reading, death)


def _seen_by_platform(reading: Reading, death: Death) -> Finding | None:
    """A line of the kernel or the cluster about this death: of its process, pod or node, or the only one."""
    told = [f for f in reading.findings if f.trust is Trust.PLATFORM and f.signature.role is Role.ROOT]
    for fits in (
        [f for f in told if death.pid is not None and f.captured.get("pid") == str(death.pid)],
        [f for f in told if death.who.node is not None and death.who.node in (f.source, f.who.node)],
        told if len({f.source for f in told}) == 1 else [],
    ):
        if fits:
            return _best_root(fits, reading)
    return None


def _why_it_aborted(reading: Reading, death: Death) -> Finding | None:
    """The line of its own after which a process gave up: an abort alone says nothing."""
    own = [f for f in reading.of(death.who) if f.signature.role is Role.AMBIGUOUS and not f.signature.disruption]
    if not own and sum(not other.victim for other in reading.deaths) == 1:  # nobody else can have said it
        unsigned = [f for f in reading.findings if not f.who.is_known and _may_be_of(f, death) and f.line < death.line]
        own = [f for f in unsigned if f.signature.role is Role.AMBIGUOUS and f.signature.retry is not Retry.USEFUL]
    return max(
        (f for f in own if f.signature.confidence >= _LIKELY), key=lambda f: f.signature.confidence, default=None
    )


def _said_by_others(facts: Facts, reading: Reading, death: Death) -> Diagnosis | None:
    """What other ranks raised explains a rank that ended with 1 and whose own words are not in the log."""
    roots = [f for f in reading.findings if f.signature.role is Role.ROOT and f.signature.fault_class is not None]
    best = _best_root(roots, reading) if death.code == 1 else None
    if best is None or not best.who.is_known:
        return None
    told = diagnoses.from_line(facts, reading, best, None)
    return told.but(confidence=min(told.confidence, 0.6))


def _in_context(reading: Reading, death: Death, diagnosis: Diagnosis) -> Diagnosis:
    """Read a bare signal by what its process did last: a kill while weights were loaded, an abort after the work."""
    notes = [f for f in reading.findings if f.signature.role is Role.ADVICE and f.line < (death.line or f.line + 1)]
    last = notes[-1].signature if notes else None
    if last is None or diagnosis.fault_class not in (FaultClass.UNKNOWN, FaultClass.HW_NODE):
        return diagnosis
    if death.code in KILLS and last.fault_class is FaultClass.OOM_HOST:
        return diagnosis.but(
            fault_class=FaultClass.OOM_HOST, second_class=FaultClass.UNKNOWN, confidence=0.55, advice=last.advice
        )
    if death.code in ABORTS and last.id.endswith(".finished"):
        return diagnosis.but(fault_class=FaultClass.UNKNOWN, second_class=FaultClass.APP_ERROR, advice=last.advice)
    return diagnosis


def _culprit(reading: Reading) -> Death | None:
    """Return the guiltiest death; among equals the clearly earlier one, then the one that its launcher calls first."""
    guilty = [(death, _guilt(death, reading)) for death in reading.deaths if not death.victim]
    most = max((guilt for _, guilt in guilty), default=0)
    equals = [death for death, guilt in guilty if guilt == most]
    if most == 0:
        return None
    equals = reading.timeline.first(equals, lambda death: (death.source, death.at.timestamp() if death.at else None))
    return min(equals, key=lambda death: not death.first)


def _guilt(death: Death, reading: Reading) -> int:
    """Say how much a death looks like the cause: 0 is a process that only says that a peer is gone."""
    own = reading.of(death.who)
    if death.code < 0:  # nobody knew before it happened: who had lost a peer already was not the first
        roles = {finding.signature.role for finding in own if finding.signature.id != "torch.launcher"}
        return 1 if Role.CASCADE in roles and Role.ROOT not in roles else 3
    if any(finding.signature.role in (Role.ROOT, Role.AMBIGUOUS) for finding in own):
        return 3
    if any(finding.signature.role is Role.CASCADE for finding in own):
        return 0
    if any(_may_be_of(finding, death) and finding.signature.role is Role.ROOT for finding in reading.findings):
        return 2
    spoke = any(_may_be_of(finding, death) and _is_cascade(finding) for finding in reading.findings)
    return 0 if spoke else 1


def _own_roots(death: Death, reading: Reading) -> list[Finding]:
    """Return the dead rank's root lines; if it has none, lines of the same log that nobody signed."""
    roots = [finding for finding in reading.findings if finding.signature.role is Role.ROOT]
    own = [finding for finding in roots if finding.who.is_same(death.who)]
    if own or any(finding.who.is_same(death.who) and _is_cascade(finding) for finding in reading.findings):
        return own
    unsigned = [finding for finding in roots if _may_be_of(finding, death)]
    if death.code > 0:
        return unsigned
    # A signal leaves no traceback: an exception that nobody signed then belongs to somebody else, and so does what came
    # after the launcher had noticed the death.
    return [f for f in unsigned if _is_specific(f.signature) and (f.source != death.source or f.line < death.line)]


def _may_be_of(finding: Finding, death: Death) -> bool:
    """Whether an unsigned line, or one of a rank whose number the launcher didn't tell, can be the dead rank's."""
    hidden = not finding.who.is_known or death.who.rank is None
    return hidden and finding.who.may_be(death.who)


def _is_cascade(finding: Finding) -> bool:
    return finding.signature.role is Role.CASCADE and finding.signature.id != "torch.launcher"


def _is_specific(signature: Signature) -> bool:
    return signature.user or (not signature.generic and signature.confidence >= _SURE - 0.1)


def _best_root(roots: Sequence[Finding], reading: Reading) -> Finding | None:
    """The user's rule, then a specific line that is no warning, then any; among equals the one that came first."""

    def rank(finding: Finding) -> tuple[bool, bool, bool]:
        warning = finding.is_warning and finding.trust is not Trust.PLATFORM
        return not finding.signature.user, not _is_specific(finding.signature), warning

    best = min(map(rank, roots), default=None)
    equals = [finding for finding in roots if rank(finding) == best]
    first = reading.timeline.first(equals, lambda finding: (finding.source, finding.at))
    return min(first, key=lambda finding: finding.line, default=None)


# --- 5: lines and codes without a death --------------------------------------------------------------------------


def _lines_alone(facts: Facts, reading: Reading) -> Diagnosis | None:
    platform = next((e for e in facts.evidence if _is_platform_root(e)), None)
    best = _best_root([f for f in reading.findings if f.signature.role is Role.ROOT], reading)
    if best is not None and (platform is None or _is_specific(best.signature)):
        return diagnoses.from_line(facts, reading, _waited_before(reading, best) or best, None)
    if platform is not None:
        return diagnoses.from_platform(facts, reading, None, platform, None)
    lines = [f for f in reading.findings if f.signature.role in (Role.AMBIGUOUS, Role.CASCADE)]
    lines = [f for f in lines if not f.signature.disruption and f.signature.id != "torch.launcher"]
    causes = [f for f in lines if f.signature.role is Role.AMBIGUOUS and f.signature.confidence >= _LIKELY]
    if not lines:
        return _noted(facts, reading)
    best = max(
        causes or lines, key=lambda f: (f.signature.confidence, f.signature.fault_class is not FaultClass.UNKNOWN)
    )
    told = diagnoses.from_line(facts, reading, best, None)
    done = any(f.signature.id.endswith(".finished") and f.line < best.line for f in reading.findings)
    if done and best.signature.id.endswith(".native_abort"):  # a crash of the clean-up
        return told.but(fault_class=FaultClass.UNKNOWN, second_class=best.signature.fault_class)
    return told


def _waited_before(reading: Reading, root: Finding) -> Finding | None:
    """The time-out of a collective before an exception that only says that something failed."""
    waits = (f for f in reading.findings if f.signature.fault_class is FaultClass.COMM_HANG and not f.signature.vague)
    if not root.signature.generic:
        return None
    return next((f for f in waits if f.source == root.source and f.line < root.line and f.who.may_be(root.who)), None)


def _noted(facts: Facts, reading: Reading) -> Diagnosis | None:
    """What the kernel noted about hardware is a weak sign, and the only one."""
    notes = [f for f in reading.findings if f.trust is Trust.PLATFORM and f.signature.role is Role.ADVICE]
    hardware = [f for f in notes if f.signature.hardware]
    return diagnoses.from_line(facts, reading, hardware[-1], None) if hardware else None


def _codes_alone(facts: Facts, reading: Reading, rules: RuleSet) -> Diagnosis | None:
    ends = [e for e in facts.evidence if e.code and e.role is not Role.CASCADE]
    ends.sort(key=lambda e: (e.at is None, e.at.timestamp() if e.at else 0.0))
    for end in ends:
        signature = rules.for_code(end.code or 0)
        if signature is not None:
            death = Death(Who(end.node, end.rank), end.code or 0, end.source, 0, end.text)
            return diagnoses.from_code(facts, reading, signature, death)
    return None


# --- the platform -----------------------------------------------------------------------------------------------------


def _is_platform_root(evidence: Evidence) -> bool:
    return evidence.trust is Trust.PLATFORM and evidence.role is Role.ROOT


def _platform_root(facts: Facts, rules: RuleSet, death: Death) -> Evidence | None:
    """The platform's word about this death: its own verdict, or a line of the kernel that a root signature knows."""
    for evidence in facts.evidence:
        if evidence.trust is not Trust.PLATFORM or evidence.node not in (None, death.who.node):
            continue
        if evidence.role is Role.ROOT and evidence.fault_class is not None:
            return evidence
        signature = rules.match(evidence.text)
        if signature is not None and signature.role is Role.ROOT:
            return evidence.but(signature=signature.id, role=Role.ROOT, fault_class=signature.fault_class)
    return None
