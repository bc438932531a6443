"""The quarantine as attempts use it: who is kept out of the next submission, and what a fault adds.

It lives in a store that all DAGs share: one key for each word of a chain about a node, so that writers never meet. A
store that can't be reached keeps nobody out and stops nothing: it is said, and training goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from pydantic import JsonValue

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.backends.base import Backend, BackendError, TrainingJob
from airflow_ft.core.chain import Chain, Incident, JobRef
from airflow_ft.core.decide import BLAMED_NODES
from airflow_ft.core.faults import FaultClass, Trust
from airflow_ft.core.quarantine import EXPIRY, REFUSALS, TEXT, Entry, Kept, Release, in_force, under_the_cap
from airflow_ft.core.records import UnreadableRecordError

PREFIX = "ft_quarantine"
_CLUSTER_FIELDS = ("conn_id", "kubernetes_conn_id", "cluster", "partition", "pool")


class SharedStore(Protocol):
    """A key-value store that all DAGs share (Airflow's variables)."""

    def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin so."""

    def get(self, key: str) -> JsonValue:
        """Return a value, or ``None``."""

    def set(self, key: str, value: JsonValue) -> None:
        """Store a value."""

    def delete(self, key: str) -> None:
        """Remove a key; nothing happens if it is gone."""


def cluster_of(job: TrainingJob) -> str:
    """Return the name of the cluster whose nodes a job uses: the same node name elsewhere is another node."""
    return _cluster(getattr(job, "platform", job.backend), {name: getattr(job, name, None) for name in _CLUSTER_FIELDS})


def cluster_of_ref(ref: JobRef) -> str:
    """Return the same of a job that was submitted: its reference has what is needed to find it again."""
    return _cluster(str(ref.where.get("platform", ref.backend)), ref.where)


def _cluster(backend: str, fields: Mapping[str, object]) -> str:
    where = next((str(value) for name in _CLUSTER_FIELDS if (value := fields.get(name))), "default")
    return f"{backend}:{where}"


class Quarantine:
    """The quarantine of one cluster."""

    def __init__(self, store: SharedStore, cluster: str) -> None:
        self._store = store
        self._prefix = f"{PREFIX}/{cluster}/"

    def add(self, entry: Entry) -> None:
        """Write one word. The same chain's newer word about the node replaces its older one, nobody else's."""
        who = hashlib.sha256(f"{entry.word} {entry.chain_id or entry.by}".encode()).hexdigest()[:12]
        self._store.set(f"{self._prefix}{entry.node}/{who}", entry.to_record())

    def release(self, node: str, by: str, now: datetime) -> None:
        """Make everything void that was said of the node so far."""
        self._store.set(f"{self._prefix}{node}/release", Release(node=node, at=now, by=by).to_record())

    def in_force(self, now: datetime) -> list[Kept]:
        """Return the nodes in quarantine. What can't be read is left out."""
        return kept_by({key: self._store.get(key) for key in self._store.keys(self._prefix)}, now)

    def sweep(self, now: datetime) -> int:
        """Remove what ended more than a day ago; returns how many keys."""
        gone = 0
        for key in self._store.keys(self._prefix):
            value = self._store.get(key)
            try:
                over = not key.endswith("/release") and Entry.from_record(value).until < now - timedelta(days=1)
            except UnreadableRecordError:
                continue
            if over:
                self._store.delete(key)
                gone += 1
        return gone


def kept_by(words: Mapping[str, JsonValue], now: datetime) -> list[Kept]:
    """Return the nodes that the stored words of one cluster keep out, by their keys. What can't be read is left out."""
    entries, releases = [], []
    for key, value in words.items():
        try:
            if key.endswith("/release"):
                releases.append(Release.from_record(value))
            else:
                entries.append(Entry.from_record(value))
        except UnreadableRecordError:
            continue
    return in_force(entries, releases, now)


def entries_of(chain: Chain, incidents: Iterable[Incident], expiry: timedelta = EXPIRY) -> list[Entry]:
    """Return what a chain's incidents say about nodes: those that a decision keeps out, each with its evidence.

    A chain that has blamed many nodes with one signature says nothing: the job is the suspect then (DESIGN §4).
    """
    found = []
    for incident in incidents:
        diagnosis, decision = incident.diagnosis, incident.decision
        blamed = {node for fault in chain.faults if fault.cause == diagnosis.cause() for node in fault.nodes}
        if len(blamed | set(diagnosis.suspect_nodes)) >= BLAMED_NODES:
            continue
        if diagnosis.refused_by:
            found.append(_entry(chain, incident, diagnosis.refused_by, "refusal", expiry))
        if diagnosis.refused_by or diagnosis.disruption:
            continue
        trusted = diagnosis.root is not None and diagnosis.root.trust is Trust.PLATFORM
        hardware = diagnosis.fault_class in (FaultClass.HW_NODE, FaultClass.NET_FABRIC)
        for node in diagnosis.suspect_nodes:
            if node in decision.excluded_nodes and hardware:
                found.append(_entry(chain, incident, node, "platform" if trusted else "job", expiry))
    return found


def _entry(chain: Chain, incident: Incident, node: str, word: str, expiry: timedelta) -> Entry:
    return Entry(
        node=node,
        word=word,
        reason=incident.diagnosis.text[:TEXT],
        evidence=incident.diagnosis.root.text[:TEXT] if incident.diagnosis.root else "",
        chain_id=chain.chain_id,
        dag_id=chain.dag_id,
        task=f"{chain.dag_id}.{chain.task_id}",
        since=incident.detected_at,
        until=incident.detected_at + expiry,
        by=f"{chain.dag_id}.{chain.task_id}, attempt {incident.attempt}",
    )


Say = Callable[[str], None]


def written(quarantine: Quarantine, entries: Iterable[Entry], say: Say) -> None:
    """Write entries; a store that refuses them changes nothing else."""
    for entry in entries:
        try:
            quarantine.add(entry)
        except Exception as error:  # noqa: BLE001 - a supervisor's border: no shared memory is no reason to stop
            say(f"{entry.node} could not be put into quarantine: {error!r}")
        else:
            until = f"until {entry.until:%Y-%m-%d %H:%M} UTC"
            if entry.word == "refusal":
                say(f"It is noted {until} that {entry.node} has refused a pod; {REFUSALS} chains make a quarantine.")
            else:
                say(f"{entry.node} is in quarantine {until} ({entry.word}'s word).")


async def kept_out(
    quarantine: Quarantine | None,
    backend: Backend,
    job: TrainingJob,
    excluded: Collection[str],
    now: datetime,
    say: Say,
) -> tuple[list[str], list[str]]:
    """Return who is kept out of a submission, and who is avoided where others are free, because of other chains."""
    kept = looked_up(quarantine, now, say)
    if not kept:
        return [], []
    try:
        pool = (await limited(backend.pool(job), LOOK_SECONDS, "listing nodes")).nodes
    except BackendError as error:
        say(f"The nodes can't be listed ({error}): those in quarantine are avoided where others are free.")
        pool = ()
    out, avoided = under_the_cap(kept, pool, excluded, job.nodes_needed())
    for one in (*out, *avoided):
        say(f"{one.why}{'.' if one in out else '; wanted out, kept: the pool is too small.'}")
    return [one.node for one in out], [one.node for one in avoided]


def looked_up(quarantine: Quarantine | None, now: datetime, say: Say) -> list[Kept]:
    """The nodes in quarantine; none where that can't be seen, which is said."""
    if quarantine is None:
        return []
    try:
        return quarantine.in_force(now)
    except Exception as error:  # noqa: BLE001 - a supervisor's border: no shared memory is no reason to stop
        say(f"The quarantine can't be read, nobody is kept out because of it: {error!r}")
        return []
