"""Where a backend gets the connection that a job names: from whoever knows them. Backends know no Airflow.

Airflow's side installs a resolver (``use``); it hands over plain values, which live in memory only. Without one (a
backend used outside Airflow) a connection has no values, and a backend takes what its own tools find on this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ConnectionValues:
    """A connection as plain values. ``repr`` shows no secret."""

    conn_id: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, object] = field(default_factory=dict, repr=False)


class UnknownConnectionError(LookupError):
    """There is no connection of this name."""


Resolver = Callable[[str], Awaitable[ConnectionValues]]

_resolvers: list[Resolver] = []


def use(resolver: Resolver) -> None:
    """Install the resolver of this process."""
    _resolvers[:] = [resolver]


async def resolve(conn_id: str) -> ConnectionValues:
    """Return the values of a connection. Raises ``UnknownConnectionError``."""
    if not _resolvers:
        return ConnectionValues(conn_id)
    return await _resolvers[0](conn_id)
