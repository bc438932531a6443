"""Who is suspected, and how a sentence names them. Feeds ``classify``.

The limits of the job's own words are kept here: a node is named only if it is one of this attempt's nodes and the
line is from its own log; for hardware a second, different sign on that node is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_ft.core.facts import Facts, Stack
from airflow_ft.core.faults import FaultClass, Suspect
from airflow_ft.core.findings import Death, Finding, Reading, Who
from airflow_ft.core.rules import Signature

_THREAD = re.compile(r"^(?:Current thread|Thread)\b")


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


# --- hangs ----------------------------------------------------------------------------------------------------------


class HangSuspects(NamedTuple):
    """Who is suspected of a hang, and a sentence about them ("" if nobody is)."""

    suspects: tuple[Suspect, ...] = ()
    sentence: str = ""


@dataclass(frozen=True)
class _Together:
    """Processes of all nodes that are at the same place."""

    members: tuple[tuple[int, str], ...]  # a rank (a pid where no rank is known) and its node
    stopped: bool = False


def of_hang(facts: Facts) -> HangSuspects:
    """Suspects of a hang: what the backend says, stopped ranks, else the few that are not where most are."""
    told = [e for e in facts.evidence if e.source == "hang" and (e.rank is not None or e.node)]
    found = [Suspect(kind="rank", name=str(e.rank)) for e in told if e.rank is not None]
    found += [Suspect(kind="node", name=e.node) for e in told if e.node and _is_ours(facts, e.node)]
    if found:
        named = tuple(dict.fromkeys(found))
        return HangSuspects(named, f"{as_words(named)} {_verb(named, 'differs', 'differ')} from the others.")
    ranked = [stack for stack in facts.stacks if stack.ranks]  # the launcher itself has no rank
    if not ranked:
        return HangSuspects()
    groups = _together(ranked)
    odd = [group for group in groups if group.stopped]
    how = "is stopped (SIGSTOP).", "are stopped (SIGSTOP)."
    if not odd:
        most = max(len(group.members) for group in groups)
        odd = [group for group in groups if len(groups) > 1 and len(group.members) * 2 <= most]
        how = "differs from the others.", "differ from the others."
    return _named(facts, [member for group in odd for member in group.members], {stack.node for stack in ranked}, how)


def _named(facts: Facts, members: Sequence[tuple[int, str]], all_nodes: set[str], how: tuple[str, str]) -> HangSuspects:
    if not members:
        return HangSuspects()
    ranks = tuple(Suspect(kind="rank", name=str(rank)) for rank, _ in members[:8])
    nodes = {node for _, node in members}
    where = next(iter(nodes)) if len(nodes) == 1 else ""
    apart = len(all_nodes) > 1 and where != "" and _is_ours(facts, where)
    sentence = f"{as_words(ranks)}{f' on {where}' if apart else ''} {_verb(members, *how)}"
    return HangSuspects((*ranks, Suspect(kind="node", name=where)) if apart else ranks, sentence)


def _together(stacks: Sequence[Stack]) -> list[_Together]:
    """Join what waits at the same place, whatever node it is on: each node groups only its own processes."""
    places: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for stack in stacks:
        place = ("", True) if stack.stopped else (_frames(stack.stack), False)
        places.setdefault(place, []).extend((rank, stack.node) for rank in stack.ranks)
    # A data loader's worker has its rank's number: where its rank is stands in another group, too.
    return [_Together(tuple(dict.fromkeys(members)), stopped) for (_, stopped), members in places.items()]


def _frames(stack: str) -> str:
    """Return the frames of the main thread: what other threads do, and whether it used the CPU, tells nothing."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in stack.splitlines():
        if _THREAD.match(line):
            sections.append((line, []))
        elif line.strip():
            sections[-1][1].append(line.strip())
    marked = [lines for head, lines in sections if "MainThread" in head or head.startswith("Current thread")]
    return "\n".join(marked[0] if marked else [line for _, lines in sections for line in lines])


def _verb(subjects: Sequence[object], one: str, many: str) -> str:
    return one if len(subjects) == 1 else many


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
