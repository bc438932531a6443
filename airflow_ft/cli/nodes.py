"""``airflow ft nodes``: which nodes are in quarantine and why; put one in, let one go.

airflow ft nodes --cluster local:default
airflow ft nodes quarantine n3 --cluster local:default --why "fan replaced on Monday" --hours 48
airflow ft nodes release n3 --cluster local:default
"""

from __future__ import annotations

import getpass
import json
from argparse import Namespace
from datetime import datetime, timedelta, timezone

from airflow_ft.attempts.quarantine import PREFIX, Quarantine
from airflow_ft.core.quarantine import Entry
from airflow_ft.views.variables import DatabaseStore

LIST, ADD, RELEASE = "list", "quarantine", "release"


def nodes(args: Namespace) -> None:
    """Do what was asked. Exit status 1 for a request that can't be understood."""
    store, now = DatabaseStore(), datetime.now(timezone.utc)
    if args.action == LIST:
        _show(store, args, now)
        return
    if not args.node or not args.cluster:
        known = ", ".join(_clusters(store)) or "none yet"
        raise SystemExit(f"{args.action}: give a node and --cluster (backend:name; known: {known}).")
    quarantine = Quarantine(store, args.cluster)
    if args.action == RELEASE:
        quarantine.release(args.node, getpass.getuser(), now)
        print(f"{args.node} is released: what was said of it until now is void.")
        return
    until = now + timedelta(hours=args.hours)
    reason, by = args.why or "put there by a person", getpass.getuser()
    quarantine.add(Entry(node=args.node, word="person", reason=reason, since=now, until=until, by=by))
    print(f"{args.node} is in quarantine until {until:%Y-%m-%d %H:%M} UTC.")


def _show(store: DatabaseStore, args: Namespace, now: datetime) -> None:
    found = {
        cluster: Quarantine(store, cluster).in_force(now)
        for cluster in _clusters(store)
        if args.cluster in (None, cluster)
    }
    if args.json:
        shown = {
            cluster: [
                {"node": one.node, "until": one.until.isoformat(), "entries": [e.to_record() for e in one.entries]}
                for one in kept
            ]
            for cluster, kept in found.items()
        }
        print(json.dumps(shown, indent=1))
        return
    for cluster, kept in found.items():
        for one in kept:
            print(f"{cluster}  {one.why}")
    if not any(found.values()):
        print("No node is in quarantine.")


def _clusters(store: DatabaseStore) -> list[str]:
    return sorted({key.split("/")[1] for key in store.keys(f"{PREFIX}/")})
