"""Who is suspected, and how a sentence names them. Feeds ``classify``.

The limits of the job's own words are kept here: a node is named only if it is one of this attempt's nodes and the
line is from its own log; for hardware a second, different sign on that node is needed.
"""

from __future__ import annotations

from airflow_ft.core.facts import Facts
from airflow_ft.core.faults import FaultClass, Suspect
from airflow_ft.core.findings import Death, Finding, Reading, Who
from airflow_ft.core.rules import Signature

_STOPPED = ("State: T", "(stopped)", "do_signal_stop")


def name(who: Who) -> str:
    """Return the beginning of a sentence about somebody."""
    on = f" on {who.node}" if who.node else ""
    if who.rank is not None:
        return f"Rank {who.rank}{on}"
    if who.local_rank is not None:
        return f"Local rank {who.local_rank}{on}"
    return f"The command on {who.node}" if who.node else "The training"


def as_words(suspects: tuple[Suspect, ...]) -> str:
    """Return "Rank 2", "Ranks 2, 3" or "Node n1", for a sentence."""
    ranks = [suspect.name for suspect in suspects if suspect.kind == "rank"]
    names = ranks or [suspect.name for suspect in suspects]
    kind = "rank" if ranks else suspects[0].kind
    return f"{kind.capitalize()}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def rank_only(who: Who) -> tuple[Suspect, ...]:
    """Suspect the rank, if it is known."""
    return (Suspect(kind="rank", name=str(who.rank)),) if who.rank is not None else ()


def of_line(facts: Facts, reading: Reading, line: Finding, who: Who) -> tuple[Suspect, ...]:
    """Suspects of a root line: the rank, and its node if this is about hardware and something else speaks for it."""
    ranks = rank_only(who)
    if line.signature.fault_class is not FaultClass.HW_NODE or not _is_ours(facts, who.node):
        return ranks
    if line.signature.hardware and not _has_second_sign(facts, reading, line, who):
        return ranks
    return (*ranks, Suspect(kind="node", name=str(who.node)))


def of_code(facts: Facts, signature: Signature, death: Death) -> tuple[Suspect, ...]:
    """Suspects of an exit code: the rank, and its node where the code may come from hardware."""
    ranks = rank_only(death.who)
    if signature.fault_class is FaultClass.HW_NODE and _is_ours(facts, death.who.node):
        return (*ranks, Suspect(kind="node", name=str(death.who.node)))
    return ranks


def of_silence(reading: Reading) -> tuple[Suspect, ...]:
    """Suspects of a time-out that all others report: the ranks that never printed one, if they are the few."""
    spoke = {f.who.rank for f in reading.findings if f.who.rank is not None}
    everybody = {who.rank for who in reading.ranks if who.rank is not None}
    silent = sorted(everybody - spoke)
    if not spoke or not silent or len(silent) * 2 > len(everybody):
        return ()
    return tuple(Suspect(kind="rank", name=str(rank)) for rank in silent[:8])


def of_hang(facts: Facts) -> tuple[Suspect, ...]:
    """Suspects of a hang: what the backend says, stopped processes, else the few ranks whose stack differs."""
    told = [e for e in facts.evidence if e.source == "hang" and (e.rank is not None or e.node)]
    found = [Suspect(kind="rank", name=str(e.rank)) for e in told if e.rank is not None]
    found += [Suspect(kind="node", name=e.node) for e in told if e.node and _is_ours(facts, e.node)]
    if found:
        return tuple(dict.fromkeys(found))
    stacks = [stack for stack in facts.stacks if stack.ranks or stack.pids]
    odd = [stack for stack in stacks if any(mark in stack.stack for mark in _STOPPED)]
    if not odd and len(stacks) > 1:
        most = max(len(stack.ranks) or len(stack.pids) for stack in stacks)
        odd = [stack for stack in stacks if (len(stack.ranks) or len(stack.pids)) * 2 <= most]
    named = [Suspect(kind="rank", name=str(rank)) for stack in odd for rank in stack.ranks][:8]
    nodes = {stack.node for stack in odd}
    if len(nodes) == 1 and len({stack.node for stack in stacks}) > 1 and _is_ours(facts, next(iter(nodes))):
        named.append(Suspect(kind="node", name=next(iter(nodes))))
    return tuple(named)


def _has_second_sign(facts: Facts, reading: Reading, line: Finding, who: Who) -> bool:
    """Whether something other than this kind of line speaks against the node: a crash, another signature."""
    if any(e.node == who.node and e.fault_class is FaultClass.HW_NODE for e in facts.evidence):
        return True
    if any(d.code < 0 and not d.victim and (d.who.is_same(who) or d.who.node == who.node) for d in reading.deaths):
        return True
    return any(
        other.signature.id != line.signature.id
        and other.who.node == who.node
        and (other.signature.hardware or other.signature.id == "python.fatal")
        for other in reading.findings
    )


def _is_ours(facts: Facts, node: str | None) -> bool:
    return node is not None and (not facts.nodes or node in facts.nodes)
