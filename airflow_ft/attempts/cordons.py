"""The quarantine, carried into the platform: what it keeps out there is what is in quarantine, within the cap.

Off by default (``[fault_tolerance] cordon``): a cordon is for everybody on the cluster, not for training alone. It is a
comparison that is repeated, not a deed at the moment of an entry. So it doesn't matter who puts a node into quarantine
or lets it go, nor that an entry simply ends; and whatever could not be done is done the next time. That a cluster was
looked at stands in the store: when the option is switched off, what was cordoned is let go.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.quarantine import PREFIX, Quarantine, SharedStore
from airflow_ft.backends.abilities import Cordons
from airflow_ft.backends.base import Backend, BackendError
from airflow_ft.backends.registry import UnknownBackendError, create_backend
from airflow_ft.core.quarantine import under_the_cap

DONE_PREFIX = "ft_cordons/"  # clusters in which something may be cordoned by us


async def carry_out(
    store: SharedStore, on: bool, now: datetime, create: Callable[[str], Backend] = create_backend
) -> list[str]:
    """Make every cluster's platform keep out who is in quarantine. Returns what was done, and what could not be."""
    known = {key.split("/")[1] for key in store.keys(f"{PREFIX}/")} if on else set()
    done = {key.removeprefix(DONE_PREFIX) for key in store.keys(DONE_PREFIX)}
    told = []
    for cluster in sorted(known | done):
        name, _, where = cluster.partition(":")
        try:
            backend = create(name)
        except UnknownBackendError:
            continue
        if not isinstance(backend, Cordons):
            continue
        try:
            told += await _one(backend, where, Quarantine(store, cluster) if on else None, now, cluster, store)
        except (BackendError, TimeoutError) as error:
            told.append(f"{cluster}: the quarantine is not carried into it: {error}")
    return told


async def _one(
    backend: Cordons, where: str, quarantine: Quarantine | None, now: datetime, cluster: str, store: SharedStore
) -> list[str]:
    wanted = {}
    if quarantine is not None:
        kept = quarantine.in_force(now)
        pool = await limited(backend.all_nodes(where), LOOK_SECONDS, "listing nodes")
        out, _ = under_the_cap(kept, pool, excluded=(), needed=0)
        wanted = {one.node: one.why for one in out}
        if wanted:
            store.set(f"{DONE_PREFIX}{cluster}", {"since": now.isoformat()})
    told = await limited(backend.keep_out(where, wanted), LOOK_SECONDS, "cordoning nodes")
    if not wanted and all(text.endswith("uncordoned.") for text in told):
        store.delete(f"{DONE_PREFIX}{cluster}")
    return [f"{cluster}: {text}" for text in told]
