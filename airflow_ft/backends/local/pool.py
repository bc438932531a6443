"""The pool: which nodes there are, who has them, and who gets them next.

A lease says which job has a node; it is valid while that job's placement names the node and the job isn't over, so
nobody has to give it back, and a placer that died half-way holds nothing. Leases are written before the placement,
both under the pool's lock. There is no scheduler: whoever looks at a queued job tries to place it. The lock is held
for milliseconds; a placer that is frozen inside it makes others wait for their time-out, and then their job stays
queued.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_ft.backends.base import BackendError
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import (
    Identity,
    JobFolder,
    Mark,
    Placement,
    now,
    read_record,
    replace_json,
)
from airflow_ft.core.records import Record

LOCK_SECONDS = 3.0
# Below the kernel's ephemeral ports (32768 up), which any process may be given at any time.
PORTS = range(20000, 32000)
_ADDRESSES_A_BLOCK = 154  # 127.0.1.101 to 127.0.1.254


class Lease(Record):
    """Which job has a node: ``lease``."""

    job: str
    uid: str
    port: int = 0


class PoolBusyError(Exception):
    """The lock was not to be had in time."""


class Pool:
    """The nodes of one pool."""

    def __init__(self, root: str, name: str, size: int) -> None:
        self.root = root
        self.name = name
        self.path = os.path.join(root, "pools", name)
        self.nodes = tuple(f"n{number}" for number in range(1, size + 1))

    def down(self, node: str) -> Mark | None:
        """Who took a node out of service."""
        return read_record(os.path.join(self.path, "nodes", node, "down"), Mark)

    def in_service(self, excluded: tuple[str, ...] = ()) -> list[str]:
        """The nodes that a job may use."""
        return [node for node in self.nodes if node not in excluded and self.down(node) is None]

    def lease(self, node: str) -> Lease | None:
        """Who has a node, or had it."""
        return read_record(os.path.join(self.path, "nodes", node, "lease"), Lease)

    def holder(self, node: str) -> JobFolder | None:
        """The job that has the node now."""
        lease = self.lease(node)
        if lease is None:
            return None
        folder = JobFolder(self.root, lease.job)
        identity, placement = folder.identity(), folder.placement()
        if identity is None or identity.uid != lease.uid or placement is None or node not in placement.nodes:
            return None
        return None if survey.is_over(folder, identity) else folder

    def is_free(self, node: str) -> bool:
        """Whether nobody has the node. Where that can't be told it is not free."""
        try:
            return self.holder(node) is None
        except BackendError:
            return False

    def take(self, node: str, identity: Identity, port: int) -> None:
        """Write the lease."""
        lease = Lease(job=identity.name, uid=identity.uid, port=port)
        replace_json(os.path.join(self.path, "nodes", node, "lease"), lease.model_dump())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the pool's lock. Raises ``PoolBusyError`` if somebody else does for too long."""
        for node in self.nodes:
            os.makedirs(os.path.join(self.path, "nodes", node), mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _flock(lock)
            yield
        finally:
            os.close(lock)


def place(folder: JobFolder, identity: Identity) -> str:
    """Give the job its nodes if they are free; else returns why it has to wait."""
    pool = Pool(folder.root, identity.pool, identity.pool_nodes)
    usable = pool.in_service(identity.excluded_nodes)
    if len(usable) < identity.nodes:
        return (
            f"needs {identity.nodes} nodes, but only {len(usable)} of the pool's {len(pool.nodes)} are in service and "
            "not excluded: it will not start until a node is repaired"
        )
    try:
        with pool.locked():
            return _place_locked(pool, folder, identity, usable)
    except PoolBusyError as busy:
        return str(busy)


def _place_locked(pool: Pool, folder: JobFolder, identity: Identity, usable: list[str]) -> str:
    if folder.placement() or folder.tombstone():
        return ""
    free = [node for node in usable if pool.is_free(node)]
    if len(free) < identity.nodes:
        return f"waits for {identity.nodes} nodes, {len(free)} of {len(usable)} are free"
    chosen = tuple(sorted(free, key=lambda node: node in identity.soft_nodes)[: identity.nodes])
    addresses = tuple(address(node) for node in chosen)
    port = _free_port(addresses[0], _ports_in_use(pool))
    for node in chosen:
        pool.take(node, identity, port)
    folder.place(Placement(nodes=chosen, addresses=addresses, port=port, at=now()))
    return ""


def address(node: str) -> str:
    """The loopback address of a node: what is bound on one node doesn't disturb another one.

    All are equally long: torchrun's c10d rendezvous gives out node ranks in the *string* order of the addresses.
    """
    block, place = divmod(int(node[1:]) - 1, _ADDRESSES_A_BLOCK)
    return f"127.0.{1 + block}.{101 + place}"


def _flock(lock: int) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise PoolBusyError("waits for the pool's lock, which another process holds") from None
            time.sleep(0.02)


def _ports_in_use(pool: Pool) -> set[int]:
    return {lease.port for lease in map(pool.lease, pool.nodes) if lease is not None}


def _free_port(host: str, taken: set[int]) -> int:
    """A port that nobody listens on, and no other job was given (its store may be between two generations)."""
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in taken:
            return port
    return random.choice(PORTS)
