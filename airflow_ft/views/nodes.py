"""Nodes in quarantine as the page shows them, and what people change about it.

Anybody may see a person's word about a node. A chain's word is told to those who may read its DAG, and to those who
may read the variables where all words are kept; to others it doesn't exist, also not in a count or a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from pydantic import JsonValue

from airflow_ft.attempts.quarantine import PREFIX, Quarantine, kept_by
from airflow_ft.core.quarantine import TEXT, Entry, Kept
from airflow_ft.diagnosis.redaction import redact
from airflow_ft.views.given import MOST_HOURS
from airflow_ft.views.models import NodeRow, Quarantined
from airflow_ft.views.variables import DatabaseStore

MOST_ROWS = 150
EXTENDED = "extended: "

MayHear = Callable[[Entry], bool]
InQuarantine = Mapping[str, tuple[Quarantined, ...]]  # by the node's name


class NotInQuarantineError(LookupError):
    """Nothing keeps this node out."""


def variable_key(cluster: str, node: str) -> str:
    """The key below which the words about a node are kept: the right to write it is the right to change them."""
    return f"{PREFIX}/{cluster}/{node}"


def in_quarantine(words: Mapping[str, JsonValue], now: datetime, may_hear: MayHear) -> InQuarantine:
    """Return who is in quarantine, by node, as far as this reader may hear the words that say so."""
    found: dict[str, list[Quarantined]] = defaultdict(list)
    for cluster, of_cluster in _by_cluster(words).items():
        for kept in kept_by(of_cluster, now):
            heard = [entry for entry in kept.entries if may_hear(entry)]
            if heard:
                found[kept.node].append(_shown(cluster, heard))
    return {node: tuple(said) for node, said in found.items()}


def clusters(words: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the clusters of which something was said."""
    return tuple(_by_cluster(words))


def all_words(store: DatabaseStore) -> dict[str, JsonValue]:
    """Return all that was said of nodes, of all clusters, in one query."""
    return store.all(f"{PREFIX}/")


def with_quarantine(rows: Iterable[NodeRow], found: InQuarantine) -> tuple[NodeRow, ...]:
    """Return the rows with what is known of quarantine: who is in it comes first, also without a fault."""
    by_name = {node: NodeRow(name=node) for node in found} | {row.name: row for row in rows}
    made = [row.model_copy(update={"quarantine": found.get(name, ())}) for name, row in by_name.items()]
    return tuple(sorted(made, key=lambda row: (not row.quarantine, -row.faults, row.name))[:MOST_ROWS])


# --- what people change --------------------------------------------------------------------------------------------


def put_in(store: DatabaseStore, cluster: str, node: str, hours: float, why: str, by: str, now: datetime) -> None:
    """Put a node into quarantine by a person's word."""
    reason = redact(" ".join(why.split()))[:TEXT] or "put there by a person"
    until = now + timedelta(hours=hours)
    Quarantine(store, cluster).add(Entry(node=node, word="person", reason=reason, since=now, until=until, by=by))


def extend(store: DatabaseStore, cluster: str, node: str, hours: float, by: str, now: datetime) -> None:
    """Keep a node so much longer in quarantine than it would be. Raises ``NotInQuarantineError``."""
    kept = _kept(store, cluster, node, now)
    until = min(kept.until + timedelta(hours=hours), now + timedelta(hours=MOST_HOURS))
    reason = EXTENDED + kept.entries[0].reason.removeprefix(EXTENDED)
    entry = Entry(node=node, word="person", reason=reason[:TEXT], since=now, until=until, by=by)
    Quarantine(store, cluster).add(entry)


def release(store: DatabaseStore, cluster: str, node: str, by: str, now: datetime) -> None:
    """Make void what was said of a node. Raises ``NotInQuarantineError``."""
    _kept(store, cluster, node, now)
    Quarantine(store, cluster).release(node, by, now)


def _kept(store: DatabaseStore, cluster: str, node: str, now: datetime) -> Kept:
    for kept in kept_by(store.all(f"{PREFIX}/{cluster}/{node}/"), now):
        return kept
    raise NotInQuarantineError(f"{node} is not in quarantine on {cluster}.")


# --- helpers -------------------------------------------------------------------------------------------------------


def _by_cluster(words: Mapping[str, JsonValue]) -> dict[str, dict[str, JsonValue]]:
    found: dict[str, dict[str, JsonValue]] = defaultdict(dict)
    for key, value in words.items():
        found[key.removeprefix(f"{PREFIX}/").partition("/")[0]][key] = value
    return {cluster: found[cluster] for cluster in sorted(found)}


def _shown(cluster: str, heard: Sequence[Entry]) -> Quarantined:
    newest = heard[0]
    return Quarantined(
        cluster=cluster,
        since=min(entry.since for entry in heard).timestamp(),
        until=max(entry.until for entry in heard).timestamp(),
        why=redact(newest.reason),
        by=newest.by,
        by_person=newest.word == "person",
        words=len(heard),
    )
