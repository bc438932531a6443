"""Quarantine: the nodes that chains of all DAGs avoid, for a while. Pure: entries in, who is kept out comes out.

An entry is one chain's word about one node, so that any number of writers can never lose one: nobody ever rewrites
somebody else's. What the entries of a node together mean:

================  ==================================================================================================
who says so       it counts
================  ==================================================================================================
a person          at once
the platform      at once: a lost node, a kernel's Xid, a failed preflight
a job's own log   when ``JOB_CHAINS`` chains of different tasks say it (code of one user could write anything)
a refusal         when ``REFUSALS`` chains were refused by a node that calls itself ready
================  ==================================================================================================

An entry ends by itself (``until``). A person's release makes everything void that was said before it. Never more than a
share of the pool is kept out, and never so many that the job finds no place: a person's word goes first, then the
newest. Whoever is over the cap is *soft*: avoided where others are free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime

from airflow_ft.core.records import RECORD_VERSION, Record

JOB_CHAINS = 2  # DESIGN §7: two unrelated chains
REFUSALS = 3
# Three of four repairs in InfiniteHBD's trace of 400 GPU servers were done within 3.2 days.
EXPIRY = timedelta(days=3)
# One rack of four. More than that at once is no set of bad nodes, it is something that they share; a gut feeling.
MAX_SHARE = 0.25
TEXT = 300

Word = Literal["person", "platform", "job", "refusal"]


class Entry(Record):
    """One word about one node. ``by`` is who said it: a chain's task, or a person's name.

    ``dag_id`` is that of a chain's word: who may not read that DAG isn't told of it.
    """

    version: int = RECORD_VERSION
    node: str
    word: str = "job"  # a ``Word``; an unknown one of a newer version counts like a job's
    reason: str = ""
    evidence: str = ""
    chain_id: str = ""
    dag_id: str = ""
    task: str = ""  # dag.task: chains of one task are not unrelated
    since: AwareDatetime
    until: AwareDatetime
    by: str = ""


class Release(Record):
    """A person's word that a node is good: what was said of it before ``at`` is void."""

    version: int = RECORD_VERSION
    node: str
    at: AwareDatetime
    by: str = ""


@dataclass(frozen=True)
class Kept:
    """A node that is to be kept out, and the entries that say so, the newest first."""

    node: str
    entries: tuple[Entry, ...]

    @property
    def until(self) -> datetime:
        """When the last of its entries ends."""
        return max(entry.until for entry in self.entries)

    @property
    def why(self) -> str:
        """One sentence."""
        newest = self.entries[0]
        return f"{self.node} is in quarantine until {self.until:%Y-%m-%d %H:%M} UTC: {newest.reason} ({newest.by})"


def in_force(entries: Iterable[Entry], releases: Iterable[Release], now: datetime) -> list[Kept]:
    """Return the nodes that are in quarantine: a person's word first, then the newest."""
    released: dict[str, datetime] = {}
    for release in releases:
        released[release.node] = max(release.at, released.get(release.node, release.at))
    alive: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.until > now and (entry.node not in released or entry.since > released[entry.node]):
            alive.setdefault(entry.node, []).append(entry)
    found = []
    for node, said in alive.items():
        if _counts(said):
            found.append(Kept(node, tuple(sorted(said, key=lambda entry: entry.since, reverse=True))))
    return sorted(found, key=lambda kept: (not _by_person(kept), -kept.entries[0].since.timestamp(), kept.node))


def _counts(said: Sequence[Entry]) -> bool:
    if any(entry.word in ("person", "platform") for entry in said):
        return True
    tasks = {entry.task or entry.chain_id for entry in said if entry.word != "refusal"}
    refusals = {entry.chain_id for entry in said if entry.word == "refusal"}
    return len(tasks) >= JOB_CHAINS or len(refusals) >= REFUSALS


def _by_person(kept: Kept) -> bool:
    return any(entry.word == "person" for entry in kept.entries)


def under_the_cap(
    kept: Sequence[Kept], pool: Collection[str], excluded: Collection[str], needed: int, max_share: float = MAX_SHARE
) -> tuple[list[Kept], list[Kept]]:
    """Split those in quarantine into the ones that are kept out and the ones that are only avoided.

    :param pool: the nodes in service; where it can't be seen, all are only avoided (story EXC-02: a name that no
        longer exists must not stop a submission).
    :param excluded: those that the chain keeps out itself.
    """
    in_pool = frozenset(pool)
    here = [one for one in kept if one.node in in_pool and one.node not in excluded]
    room = int(max_share * len(in_pool) + 1e-9)
    room = max(0, min(room, len(in_pool) - needed - len(in_pool & set(excluded))))
    return here[:room], here[room:] if in_pool else [one for one in kept if one.node not in excluded]
