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
from airflow_ft.core.faults import FaultClass, Role, Suspect, Trust
from airflow_ft.core.findings import Finding, Reading
from airflow_ft.core.launchers import Death
from airflow_ft.core.mentions import place_in, rank_in
from airflow_ft.core.prefixes import Who
from airflow_ft.core.rules import Signature
from airflow_ft.core.stackplaces import in_collective, user_place

NEAR = 10  # lines: a message of several lines, each known by itself
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


def rank_only(who: Who, reading: Reading | None = None) -> tuple[Suspect, ...]:
    """Suspect the rank, if it is known. A local rank stands for it where there is one node only."""
    if who.rank is not None:
        return (Suspect(kind="rank", name=str(who.rank)),)
    if who.local_rank is None or reading is None:
        return ()
    nodes = {other.node for other in reading.ranks if other.node}
    return (Suspect(kind="rank", name=str(who.local_rank)),) if len(nodes) <= 1 else ()


def of_line(facts: Facts, reading: Reading, line: Finding, who: Who) -> tuple[Suspect, ...]:
    """Suspects of a root line: the rank, the device or peer that it names, and its node where that is to blame."""
    alike = [f for f in reading.findings if not f.who.is_known and f.text == line.text]
    several = not line.who.is_known and len(alike) > 1  # who of them was the launcher's first can't be told
    named = [
        *(() if several or line.signature.role is Role.CASCADE else rank_only(who, reading)),
        *_told(reading, line),
    ]
    points_to = line.signature.points_to_rank
    if points_to is not None and points_to != who.rank:
        named.append(Suspect(kind="rank", name=str(points_to)))
    if _blames_node(facts, reading, line, who):
        named.append(Suspect(kind="node", name=str(who.node)))
    elif who.node is None:
        other = _same_with_node(reading, line)
        if other is not None and _blames_node(facts, reading, other, other.who):
            named.append(Suspect(kind="node", name=str(other.who.node)))
    if line.signature.fault_class is FaultClass.HW_NODE and who.node and not any(s.kind == "node" for s in named):
        named.append(Suspect(kind="address", name=who.node))  # where it is; one sign leaves no node out
    if not any(suspect.kind == "rank" for suspect in named):
        named += _corroborating(reading, line)
    if not any(suspect.kind in ("rank", "node", "address") for suspect in named):
        named += _spoken_of(facts, reading, line, who)
    return tuple(dict.fromkeys(named))


def _corroborating(reading: Reading, line: Finding) -> list[Suspect]:
    """Return the one rank with another sign of the same trouble: the kernel names a device, its user signs."""
    if line.signature.role is not Role.ROOT or line.who.is_known or line.signature.fault_class is FaultClass.UNKNOWN:
        return []
    kind, roles = line.signature.fault_class, (Role.ROOT, Role.AMBIGUOUS)
    signed = (f for f in reading.findings if f.who.rank is not None and f.source == line.source)
    alike = (f for f in signed if kind in (f.signature.fault_class, f.signature.second_class))
    ranks = {f.who.rank for f in alike if f.signature.role in roles and not f.misses_a_peer}
    return [Suspect(kind="rank", name=str(rank)) for rank in ranks] if len(ranks) == 1 else []


def _spoken_of(facts: Facts, reading: Reading, line: Finding, who: Who) -> list[Suspect]:
    """Return whom an unsigned cause speaks of, or else where it happened. A place alone leaves no node out."""
    if line.signature.role is Role.CASCADE or line.signature.disruption:
        return []
    near = [line, *(f for f in reading.findings if not f.who.is_known and _tells_more(f, line))]
    rank = next((told for f in near if (told := rank_in(f.text)) is not None), None)
    place = next((named for f in near if (named := place_in(f.text)) is not None), None)
    if place is None or line.signature.fault_class is not FaultClass.HW_NODE:  # of a lost node it is a daemon's number
        rank = _just_above(reading, line) if rank is None else rank
        if rank is not None and not who.is_known:
            return [Suspect(kind="rank", name=str(rank))]
    if place is None and not line.misses_a_peer:
        place = _apart(facts, reading, who)
    return [Suspect(kind="address", name=place)] if place else []


def _tells_more(other: Finding, line: Finding) -> bool:
    near = other.source == line.source and abs(other.line - line.line) <= NEAR
    return _is_about_the_same(other, line) or (near and other.signature.origin == line.signature.origin)


def _just_above(reading: Reading, line: Finding) -> int | None:
    """Return the rank that signed the line right above: a message of several lines is often signed in its first one."""
    above = (f for f in reading.findings if f.source == line.source and f.line == line.line - 1)
    return next((f.who.rank for f in above if f.who.rank is not None), None)


def _apart(facts: Facts, reading: Reading, who: Who) -> str | None:
    """Return the node of somebody, where there are others: a node alone tells nothing that isn't known."""
    others = {*reading.nodes, *facts.nodes} - {who.node}
    named = any(death.who.node == who.node for death in reading.deaths)
    return who.node if others or (named and not facts.nodes) else None


def _same_with_node(reading: Reading, line: Finding) -> Finding | None:
    """Return another line about the same thing that says where: slurmstepd tells of it, then srun with its node."""
    alike = (f for f in reading.findings if f.signature.id == line.signature.id and f.source == line.source)
    return next((f for f in alike if f.captured.get("node")), None)


def _blames_node(facts: Facts, reading: Reading, line: Finding, who: Who) -> bool:
    """Whether a line may name its node: for hardware printed by a job only with a second sign against that node."""
    if not _is_ours(facts, who.node):
        return False
    if line.trust is Trust.PLATFORM or line.captured.get("node"):
        return True
    if line.signature.fault_class is FaultClass.NET_FABRIC:
        return line.signature.local
    if line.signature.fault_class is not FaultClass.HW_NODE:
        return False
    return not line.signature.hardware or _has_second_sign(facts, reading, line, who)


_RECEIVED = re.compile(
    r"received(?::| from) ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
)  # a port tells of it
_PCI = re.compile(r"(?:\b|GPU|PCI:)([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b")
_GPU = re.compile(r"\b(?:GPU|NPU|HPU|XPU|Device|device) ?#?:?(\d{1,2})\b")
_PEER = re.compile(
    r"(?:peer|from|to) \[?((?:\d+\.){3}\d+|[A-Za-z][\w.-]+)(?=<\d+>|\]?:\d+|, \d+\))"
    r"|\(((?:\d+\.){3}\d+), \d+\)|\bremote=\[?((?:\d+\.){3}\d+)\]?:\d+"
)


_SOURCE = re.compile(r"retrieving \w+ from \[(\d+)\]")  # the rank whose word the others wait for
_GONE = re.compile(
    r"(?i)\b(?:unhealthy|stopped sending heartbeats|heartbeat (?:timeout|timed out|lost)|died|crashed|lost"
    r"|is down|(?:is|considered) dead|dead node|timed out\. It may|disconnected|unresponsive|not responding)\b"
)


def _told(reading: Reading, line: Finding) -> list[Suspect]:
    """Return the device or the peer that a line names, or else the next one of its kind."""
    alike = (f for f in reading.findings if _is_about_the_same(f, line) and f.who.may_be(line.who))
    return next((told for finding in (line, *alike) if (told := _in_text(finding))), [])


def _is_about_the_same(other: Finding, line: Finding) -> bool:
    if other.signature.id == line.signature.id:
        return True
    near = other.source == line.source and abs(other.line - line.line) <= NEAR
    return near and (other.signature.fault_class is line.signature.fault_class or "address" in other.captured)


def _in_text(line: Finding) -> list[Suspect]:
    fault_class = line.signature.fault_class
    if (address := line.captured.get("address")) is not None:
        return [Suspect(kind="address", name=address)]
    if fault_class is FaultClass.HW_NODE and (found := _RECEIVED.search(line.text) or _PCI.search(line.text)):
        return [Suspect(kind="gpu", name=found[1])]
    if fault_class in (FaultClass.HW_NODE, FaultClass.OOM_GPU) and (found := _GPU.search(line.text)) is not None:
        return [Suspect(kind="gpu", name=found[1])]
    if fault_class is FaultClass.UNKNOWN and (found := _SOURCE.search(line.text)) is not None:
        return [Suspect(kind="rank", name=found[1])]
    if fault_class is FaultClass.UNKNOWN and _GONE.search(line.text) is not None:
        rank, place = rank_in(line.text), place_in(line.text)
        if rank is not None or place is not None:
            return [Suspect(kind="rank", name=str(rank)) if place is None else Suspect(kind="address", name=place)]
    if fault_class in (FaultClass.NET_FABRIC, FaultClass.UNKNOWN) and (found := _PEER.search(line.text)) is not None:
        return [Suspect(kind="address", name=next(filter(None, found.groups())))]
    return []


def of_code(facts: Facts, reading: Reading, signature: Signature, death: Death) -> tuple[Suspect, ...]:
    """Suspects of an exit code: the rank, and its node where the code may come from hardware."""
    ranks = rank_only(death.who, reading)
    if signature.fault_class is FaultClass.HW_NODE and _is_ours(facts, death.who.node):
        return (*ranks, Suspect(kind="node", name=str(death.who.node)))
    place = _apart(facts, reading, death.who) if death.who.rank is None else None
    return (*ranks, Suspect(kind="address", name=place)) if place else ranks


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
    collective: bool = False
    place: str = ""  # in the user's code


def of_hang(facts: Facts) -> HangSuspects:
    """Suspects of a hang: what backend or second signals say, stopped ranks, who is not in a collective, or who is not
    where most are."""
    told = [e for e in facts.evidence if e.source == "hang" and (e.rank is not None or e.node)]
    found = [Suspect(kind="rank", name=str(e.rank)) for e in told if e.rank is not None]
    found += [Suspect(kind="node", name=e.node) for e in told if e.node and _is_ours(facts, e.node)]
    if found:
        named = tuple(dict.fromkeys(found))
        return HangSuspects(named, f"{as_words(named)} {_verb(named, 'differs', 'differ')} from the others.")
    ranked = [stack for stack in facts.stacks if stack.ranks]  # the launcher itself has no rank
    nodes = {stack.node for stack in ranked}
    groups = _together(ranked)
    odd = [group for group in groups if group.stopped]
    if odd:
        return _named(facts, odd, nodes, ("is stopped (SIGSTOP).", "are stopped (SIGSTOP)."))
    if facts.hang is not None and facts.hang.ranks:
        return _named(facts, _told_by_signals(facts.hang.ranks, groups), nodes, ("is suspected.", "are suspected."))
    odd = _odd_ones(groups)
    if not odd and facts.hang is not None and facts.hang.behind:
        return _named(facts, _told_by_signals(facts.hang.behind, groups), nodes, ("is behind.", "are behind."))
    return _named(facts, odd, nodes, ("differs from the others.", "differ from the others."))


def _told_by_signals(ranks: Sequence[int], groups: Sequence[_Together]) -> list[_Together]:
    """The groups of these ranks, cut down to them; a rank that has ended has no stack, and no node."""
    told = [
        _Together(tuple(member for member in group.members if member[0] in ranks), place=group.place)
        for group in groups
        if any(rank in ranks for rank, _ in group.members)
    ]
    known = {rank for group in told for rank, _ in group.members}
    return [*told, *(_Together(((rank, ""),)) for rank in ranks if rank not in known)]


def _odd_ones(groups: Sequence[_Together]) -> list[_Together]:
    arrived = {member for group in groups if group.collective for member in group.members}
    absent = {member for group in groups for member in group.members} - arrived
    if arrived and absent and len(absent) <= len(arrived):
        return [group for group in groups if all(member in absent for member in group.members)]
    most = max((len(group.members) for group in groups), default=0)
    return [group for group in groups if len(groups) > 1 and len(group.members) * 2 <= most]


def _named(facts: Facts, odd: Sequence[_Together], all_nodes: set[str], how: tuple[str, str]) -> HangSuspects:
    members = list(dict.fromkeys(member for group in odd for member in group.members))
    if not members:
        return HangSuspects()
    ranks = tuple(Suspect(kind="rank", name=str(rank)) for rank, _ in members[:8])
    nodes = {node for _, node in members}
    where = next(iter(nodes)) if len(nodes) == 1 else ""
    apart = len(all_nodes) > 1 and where != "" and _is_ours(facts, where)
    place = next((group.place for group in odd if group.place), "")
    sentence = f"{as_words(ranks)}{f' on {where}' if apart else ''} {_verb(members, *how)}"
    sentence += f" {'It is' if len(members) == 1 else 'The first is'} in {place}." if place else ""
    return HangSuspects((*ranks, Suspect(kind="node", name=where)) if apart else ranks, sentence)


def _together(stacks: Sequence[Stack]) -> list[_Together]:
    """Join what waits at the same place, whatever node it is on: each node groups only its own processes."""
    places: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    where: dict[tuple[str, bool], str] = {}
    for stack in stacks:
        place = ("", True) if stack.stopped else (_frames(stack.stack), False)
        places.setdefault(place, []).extend((rank, stack.node) for rank in stack.ranks)
        where.setdefault(place, user_place(stack.stack))
    # A data loader's worker has its rank's number: where its rank is stands in another group, too.
    return [
        _Together(tuple(dict.fromkeys(members)), place[1], in_collective(place[0]), where[place])
        for place, members in places.items()
    ]


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
        and other.who.node in (who.node, None)
        and other.source == line.source
        and (other.signature.hardware or other.signature.id == "python.fatal")
        for other in reading.findings
    )


def _is_ours(facts: Facts, node: str | None) -> bool:
    return node is not None and (not facts.nodes or node in facts.nodes)
