"""Diagnoses: the record for each kind of answer that ``classify`` comes to, with its sentence and its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.core import naming_suspects as suspects
from airflow_ft.core.calibration import confidence_of
from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import NO_START, Diagnosis, Evidence, FaultClass, Retry, Role, Suspect, Trust
from airflow_ft.core.findings import Finding, Reading, Words
from airflow_ft.core.launchers import Death
from airflow_ft.core.prefixes import Who
from airflow_ft.core.rules import RuleSet, Signature
from airflow_ft.core.waiting import missing_ranks

OF_ONE_MACHINE = {  # what one node's software lacks; the same command goes well on another one
    "python.missing_module",
    "python.broken_import",
    "cuda.driver_mismatch",
    "cuda.no_device",
    "process.command_missing",
}
THICK = 0.7  # from here a signature is sure enough to say that a retry is useless
MAX_EVIDENCE = 20  # DESIGN §3


def from_line(facts: Facts, reading: Reading, line: Finding, death: Death | None) -> Diagnosis:
    """A line that a signature knows is the cause."""
    signature = line.signature
    who = _writer(reading, line, death)
    root = Evidence(
        source=line.source,
        text=line.text,
        line=line.line,
        node=who.node,
        rank=who.rank,
        code=death.code if death else None,
        signature=signature.id,
        role=signature.role,
        fault_class=signature.fault_class,
        trust=line.trust,
    )
    confidence = confidence_of(signature)
    if signature.fault_class is FaultClass.COMM_HANG and _is_nobody_known_dead(reading):
        named = missing_ranks(reading)
    else:
        named = suspects.of_line(facts, reading, line, who)
    if _is_strangers_word(line) and not any(suspect.kind == "node" for suspect in named):
        confidence = min(confidence, 0.4)  # what the kernel says is worth less when the job printed it
    return Diagnosis(
        fault_class=signature.fault_class,
        text=_sentence(who, signature, line.text),
        root=root,
        suspects=named,
        confidence=confidence,
        retry=_retry(reading, line),
        signature=None if signature.generic else signature.id,
        second_class=signature.second_class,
        advice=signature.advice,
        evidence=evidence(facts, reading, root),
    )


def from_code(facts: Facts, reading: Reading, signature: Signature, death: Death) -> Diagnosis:
    """An exit code is the cause."""
    root = Evidence(
        source=death.source,
        text=death.text,
        line=death.line or None,
        node=death.who.node,
        rank=death.who.rank,
        code=death.code,
        signature=signature.id,
        role=Role.ROOT,
        fault_class=signature.fault_class,
    )
    return Diagnosis(
        fault_class=signature.fault_class,
        text=_sentence(death.who, signature, death.text),
        root=root,
        suspects=suspects.of_code(facts, reading, signature, death),
        confidence=confidence_of(signature),
        retry=signature.retry,
        signature=signature.id,
        second_class=signature.second_class,
        advice=signature.advice,
        evidence=evidence(facts, reading, root),
    )


def from_platform(
    facts: Facts, reading: Reading, rules: RuleSet | None, root: Evidence, death: Death | None
) -> Diagnosis:
    """The platform's word is the cause."""
    signature = rules.match(root.text) if rules else None
    fault_class = root.fault_class or (signature.fault_class if signature else FaultClass.UNKNOWN)
    who = death.who if death else Who(root.node, root.rank)
    text = _sentence(who, signature, root.text) if signature else f"{_upper(root.text[:200])}."
    return Diagnosis(
        fault_class=fault_class,
        text=text,
        root=root,
        suspects=(Suspect(kind="node", name=root.node),) if root.node and fault_class is FaultClass.HW_NODE else (),
        confidence=0.85,
        retry=signature.retry if signature else Retry.UNKNOWN,
        signature=signature.id if signature else f"platform.{root.source}",
        advice=signature.advice if signature else "The platform reported it. Mend what it names, then start again.",
        evidence=evidence(facts, reading, root),
    )


def lost_nodes(facts: Facts, reading: Reading, lost: Sequence[Evidence]) -> Diagnosis:
    """The platform says that nodes are gone."""
    names = _nodes(lost)
    which = f"Node {names[0]} was" if len(names) == 1 else f"Nodes {', '.join(names)} were"
    return Diagnosis(
        fault_class=FaultClass.HW_NODE,
        text=f"{which} lost ({lost[0].text[:160]}).",
        root=lost[0],
        suspects=tuple(Suspect(kind="node", name=name) for name in names),
        confidence=0.9,
        retry=Retry.USEFUL,
        signature="platform.node_lost",
        advice="The platform says that the node is gone. Run without it and have it checked.",
        evidence=evidence(facts, reading, lost[0]),
    )


def no_start(facts: Facts, reading: Reading, stuck: Sequence[Evidence]) -> Diagnosis:
    """Nodes that are in service couldn't start what others did."""
    suspected = tuple(Suspect(kind="node", name=name) for name in _nodes(stuck))
    return Diagnosis(
        fault_class=FaultClass.HW_NODE,
        text=f"{suspects.as_words(suspected)} could not start what other nodes did ({stuck[0].text[:240]}).",
        root=stuck[0],
        suspects=suspected,
        confidence=0.7,
        retry=Retry.USEFUL,
        signature=NO_START,
        second_class=FaultClass.ENV_ERROR,
        advice="What the pod waits for came on other nodes. Run without this one, and look at its storage driver, its "
        "mounts and its network plugin.",
        evidence=evidence(facts, reading, stuck[0]),
    )


def _nodes(told: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(one.node) for one in told))


def excused(facts: Facts, reading: Reading, line: Finding) -> Diagnosis:
    """A line of the scheduler says that the end was planned."""
    return from_line(facts, reading, line, None).but(suspects=(), disruption=line.signature.disruption)


def silent(facts: Facts, reading: Reading, death: Death) -> Diagnosis:
    """A rank ended with a code and without a known line."""
    words = next((w for w in reversed(reading.words) if w.who.is_same(death.who)), None)
    root = Evidence(
        source=death.source, text=death.text, line=death.line, node=death.who.node, rank=death.who.rank, code=death.code
    )
    last = f"; its last words: {words.text[:160]}" if words else " and said nothing that is known"
    return Diagnosis(
        fault_class=FaultClass.UNKNOWN,
        text=f"{suspects.name(death.who)} ended with exit code {death.code}{last}.",
        root=root,
        suspects=suspects.rank_only(death.who, reading),
        confidence=0.2,
        retry=Retry.UNKNOWN,
        second_class=FaultClass.APP_ERROR,
        advice="The program chose this exit code itself. Look up in its source where it ends with it.",
        evidence=evidence(facts, reading, root),
    )


def unknown(facts: Facts, reading: Reading) -> Diagnosis:
    """Nothing is known: the last words are candidates."""
    ends = [e for e in facts.evidence if e.code]
    words = reading.words[-1] if reading.words else None
    if words is not None:
        text = f"The run ended for an unknown reason; its last words: {words.text[:160]}"
    elif facts.gone:
        text = "The job is gone and left no trace."
    else:
        looked = ", ".join(log.source for log in facts.logs[:4]) or "no log"
        text = f"The run ended without a word; looked at: {looked}."
        text = " ".join([text, *(f"{_upper(e.text)}." for e in facts.evidence if e.role is Role.ADVICE and e.text)])
    root = _words_as_evidence(words) if words else (ends[0] if ends else None)
    fresh = [_words_as_evidence(line) for line in reading.novel]
    if fresh:
        root = fresh[0]
        text = f"The run ended for an unknown reason; the first line of a kind never seen before: {root.text[:160]}"
    if ends and ends[0].code is not None:
        text = f"The command ended with code {ends[0].code}. {text}"
    return Diagnosis(
        fault_class=FaultClass.UNKNOWN,
        text=text,
        root=root,
        confidence=0.1,
        retry=Retry.UNKNOWN,
        second_class=FaultClass.APP_ERROR if ends and 0 < (ends[0].code or 0) < 126 else None,
        advice="No known sign was found. Read the end of each rank's log.",
        evidence=(*evidence(facts, reading, root), *fresh[1:])[:MAX_EVIDENCE],
    )


# --- evidence and words ------------------------------------------------------------------------------------------


def _writer(reading: Reading, line: Finding, death: Death | None) -> Who:
    """Return who wrote a line; if it isn't signed, the one rank that printed the same kind of line with its name."""
    alike = {f.who for f in reading.findings if f.signature.id == line.signature.id and f.who.is_known}
    if line.who.is_known:
        who = line.who
        global_rank = {other.rank for other in alike if other.rank is not None and other.node in (None, who.node)}
        if who.rank is None and len(global_rank) == 1:  # one library says the GPU, another one the rank
            who = who._replace(rank=global_rank.pop())
        told = next((d.who.node for d in reading.deaths if d.who.is_same(who)), None)
        return who._replace(node=who.node or told)  # a launcher knows where its ranks are
    if death is not None:
        node = line.who.node if line.trust is Trust.PLATFORM and line.who.node else death.who.node
        return death.who._replace(node=node)
    return alike.pop()._replace(node=line.who.node) if len(alike) == 1 else line.who


def _retry(reading: Reading, line: Finding) -> Retry:
    """Say that a retry is useless only on good evidence: a cause that is sure, and nothing that a retry would cure.

    A night's budget is worth more than one start too many, and a wrong stop costs the night.
    """
    signature = line.signature
    if signature.retry is not Retry.USELESS or signature.user:
        return signature.retry
    thin = signature.role is not Role.ROOT or signature.confidence < THICK
    rivals = (f for f in reading.findings if f.signature.retry is Retry.USEFUL and f.signature.role is Role.ROOT)
    cured = any(not f.signature.connects and not f.is_warning and f.signature.confidence >= THICK for f in rivals)
    return Retry.UNKNOWN if thin or cured or _only_here(reading, line) else Retry.USELESS


def _only_here(reading: Reading, line: Finding) -> bool:
    """Whether one machine lacks what the others have: ranks elsewhere spoke, and none of them said the same."""
    if line.signature.id not in OF_ONE_MACHINE or not line.who.is_known:
        return False
    alike = {f.who for f in reading.findings if f.signature.id in OF_ONE_MACHINE}
    return len(alike) == 1 and any(not who.is_same(line.who) for who in reading.ranks)


def _is_strangers_word(line: Finding) -> bool:
    kernels = line.signature.origin in ("kernel.yaml", "xid.yaml")
    return line.signature.hardware and kernels and line.trust is Trust.JOB


def _is_nobody_known_dead(reading: Reading) -> bool:
    return not any(death.code < 0 and not death.victim for death in reading.deaths)


def evidence(facts: Facts, reading: Reading, root: Evidence | None) -> tuple[Evidence, ...]:
    """Return the root and what else speaks: the platform, all deaths, then one line of each kind and rank."""
    items = [root] if root is not None else []
    items += [evidence for evidence in facts.evidence if evidence != root]
    items += [
        Evidence(
            source=death.source,
            text=death.text,
            line=death.line,
            node=death.who.node,
            rank=death.who.rank,
            code=death.code,
            role=Role.CASCADE if death.victim else Role.AMBIGUOUS,
        )
        for death in reading.deaths
    ]
    seen: set[object] = {(root.signature, root.rank, root.node)} if root is not None else set()
    for finding in reading.findings:
        key = (finding.signature.id, finding.who.rank, finding.who.node)
        if key not in seen:
            seen.add(key)
            items.append(_finding_as_evidence(finding))
    return tuple(items[:MAX_EVIDENCE])


def _finding_as_evidence(finding: Finding) -> Evidence:
    return Evidence(
        source=finding.source,
        text=finding.text[:300],
        line=finding.line,
        node=finding.who.node,
        rank=finding.who.rank,
        signature=finding.signature.id,
        role=finding.signature.role,
        fault_class=finding.signature.fault_class,
    )


def _sentence(who: Who, signature: Signature, line: str) -> str:
    told = line if len(line) <= 200 else f"{line[:199]}…"
    return f"{suspects.name(who)} {signature.says.replace('{line}', told.strip())}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _words_as_evidence(words: Words) -> Evidence:
    return Evidence(source=words.source, text=words.text, line=words.line, node=words.who.node, rank=words.who.rank)
