"""Who is missing when all others wait: read from the time-outs of collectives in the logs. Feeds ``diagnoses``.

A time-out is printed by those that came. In this order: ranks that a message names as missing (Horovod's stall check,
``monitoredBarrier``, HCCL's remote rank, a barrier's late tasks); ranks whose last enqueued collective is behind the
others', who wait at an earlier number than the others do, or in another operation; ranks that were seen in the log but
printed no time-out; ranks below the highest one that were never seen at all, if they are few. Else nobody is named.
"""

from __future__ import annotations

import re
from collections import Counter

from airflow_ft.core.faults import FaultClass, Suspect
from airflow_ft.core.findings import Finding, Reading

MAX_NAMED = 8
_MISSING = re.compile(
    r"\[?(?:[Mm]issing ranks?|[Mm]issing rank is):? ?\[?([\d, ]+)|[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier"
    r"|[Rr]emote ?[Rr]ank ?:? ?\[?(\d+)\]"
    r"|^(\d+): \[\S*(?:Horovod|Distributed)|timed out task names: .*?/task:(\d+)"
    r"|(?:from|for) rank (\d+)\b.*time[d ]*out"
    r"|no (?:heartbeat|progress|message|response|sign of life) (?:from|of|by) (?:rank|worker|task) (\d+)"
    r"|[Rr]ank (\d+) is [\d.,]+ ?\w+ behind\b"
    r"|retrieving \w+ from \[(\d+)\]|timed? ?out waiting for ranks? ?:?\[?([\d, ]+)"
    r"|[Rr]ank (\d+)(?: (?:is|has|appears|seems))?(?: to be)? (?:hung|stuck|stalled)\b"
)
_WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (-?\d+)")


def missing_ranks(reading: Reading) -> tuple[Suspect, ...]:
    """Return the ranks that did not come, if the logs tell."""
    waits = [f for f in reading.findings if f.signature.fault_class is FaultClass.COMM_HANG]
    ranks = _named_missing(waits) or _behind(waits) or _elsewhere(waits) or _silent(reading, waits)
    return tuple(Suspect(kind="rank", name=str(rank)) for rank in sorted(ranks)[:MAX_NAMED])


def _named_missing(waits: list[Finding]) -> set[int]:
    found = (_MISSING.search(wait.text) for wait in waits)
    return {
        int(number) for match in found if match for number in re.findall(r"\d+", next(filter(None, match.groups())))
    }


def _behind(waits: list[Finding]) -> set[int]:
    """Return the few ranks that enqueued less than the others."""
    last: dict[int, int] = {}
    for wait in waits:
        if wait.who.rank is not None and (found := _ENQUEUED.search(wait.text)) is not None:
            last[wait.who.rank] = int(found[1])
    if len(last) < 2:
        return set()
    most = max(Counter(last.values()).items(), key=lambda item: (item[1], item[0]))[0]
    behind = {rank for rank, work in last.items() if work < most}
    return behind if len(behind) * 2 <= len(last) else set()


def _elsewhere(waits: list[Finding]) -> set[int]:
    """Return the few ranks that wait in an earlier operation than all others, or in another one at the same number.

    Groups of ranks count each for themselves: nothing is said where the others don't agree on one operation.
    """
    at: dict[int, tuple[int, str]] = {}
    for wait in waits:
        if wait.who.rank is not None and (found := _WORK.search(wait.text)) is not None:
            at.setdefault(wait.who.rank, (int(found[1]), found[2]))
    places = Counter(at.values()).most_common()
    if len(places) != 2 or places[1][1] * 2 > places[0][1]:
        return set()
    (most, _), (few, _) = places
    return {rank for rank, place in at.items() if place == few} if few[0] <= most[0] else set()


def _silent(reading: Reading, waits: list[Finding]) -> set[int]:
    spoke = {wait.who.rank for wait in waits if wait.who.rank is not None}
    everybody = {who.rank for who in reading.ranks if who.rank is not None}
    silent = everybody - spoke
    if not spoke:
        return set()
    if not silent:
        silent = set(range(max(spoke))) - spoke
    return silent if len(silent) <= len(spoke) else set()
