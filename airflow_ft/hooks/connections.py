"""Hands Airflow's connections to the backends (``backends.connections``), as plain values that are never stored.

``install`` is called where Airflow's side begins to work with backends: it costs nothing, and imports no Airflow.
"""

from __future__ import annotations

import json

from airflow_ft.backends import connections
from airflow_ft.backends.connections import ConnectionValues, UnknownConnectionError

KUBERNETES_DEFAULT = "kubernetes_default"  # may be missing, as for the provider's hook: the machine's own kubeconfig


def install() -> None:
    """Let backends of this process ask Airflow for connections."""
    connections.use(resolve)


async def resolve(conn_id: str) -> ConnectionValues:
    """Return the values of one of Airflow's connections. Raises ``UnknownConnectionError``."""
    from airflow.providers.common.compat.connection import get_async_connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found = await get_async_connection(conn_id)
    except AirflowNotFoundException as error:
        if conn_id == KUBERNETES_DEFAULT:
            return ConnectionValues(conn_id)
        raise UnknownConnectionError(f"there is no connection {conn_id!r} in Airflow. Make it, or name one.") from error
    # Not ``extra_dejson``: it speaks to the supervisor synchronously, which an event loop must not.
    return ConnectionValues(
        conn_id=conn_id,
        host=found.host,
        port=found.port,
        login=found.login,
        password=found.password,
        extra=json.loads(found.extra) if found.extra else {},
    )
