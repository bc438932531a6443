"""``airflow ft doctor``: can this Airflow keep training alive? One line a check, with what to change."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

from airflow_ft.views.debts import owed
from airflow_ft.views.records import database


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    text: str


def show_doctor(args: Namespace) -> None:
    """Print the checks. Exit status 1 when one failed."""
    found = list(checks())
    for conn_id in args.conn or ():
        found += cluster_checks(conn_id, args.namespace)
    if args.json:
        print(json.dumps([check._asdict() for check in found], indent=1))
    else:
        for check in found:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
    if not all(check.ok for check in found):
        raise SystemExit(1)


def checks() -> Iterator[Check]:
    """Yield every check."""
    from airflow.configuration import conf

    beat = conf.getfloat("workers", "min_heartbeat_interval", fallback=5)
    yield Check(
        "[workers] min_heartbeat_interval", beat <= 5, f"{beat:g} s; 1 keeps quick resumes from being misjudged"
    )
    clears = conf.getboolean("state_store", "clear_on_success", fallback=False)
    text = "True: a chain is forgotten when its task succeeds; set it to False to keep the story" if clears else "False"
    yield Check("[state_store] clear_on_success", not clears, text)
    backend = conf.get("workers", "state_store_backend", fallback="")
    text = f"{backend}: chains are kept outside the database; the views can't show them" if backend else "not set"
    yield Check("[workers] state_store_backend", not backend, text)
    yield _triggerer()
    yield _owed()


def cluster_checks(conn_id: str, namespace: str | None) -> list[Check]:
    """Look at a Kubernetes cluster with the eyes of a connection: what it serves and what may be done there."""
    import asyncio

    from airflow_ft.backends.base import BackendError
    from airflow_ft.backends.kubernetes.permissions import findings

    try:
        found = asyncio.run(findings(conn_id, namespace))
    except BackendError as error:
        return [Check(conn_id, False, str(error))]
    return [Check(f"{conn_id} {one.name}", one.ok is not False, one.text) for one in found]


def _triggerer() -> Check:
    from airflow.api.common.airflow_health import get_airflow_health

    state = get_airflow_health()["triggerer"]["status"]
    healthy = state == "healthy"
    return Check("triggerer", healthy, "healthy" if healthy else f"{state or 'none'}; start `airflow triggerer`")


def _owed() -> Check:
    with database() as session:
        names = [found.ref.name for found in owed(session)]
    text = f"{', '.join(names)}; run `airflow ft reap`" if names else "nothing is owed"
    return Check("cancels", not names, text)
