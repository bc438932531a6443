"""Where the n-th cluster of this machine lives: a bridge, its networks and names that nobody else uses.

A number is held with a lock file as long as the process lives, so that ``make kubernetes`` and a test run don't meet.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

LOCK = "/run/airflow-ft-kubernetes-{}.lock"
CLUSTERS = 4
NODES = 8


@dataclass(frozen=True)
class Addresses:
    """All addresses of one cluster."""

    number: int

    @property
    def bridge(self) -> str:
        """The network that its nodes are plugged into."""
        return f"ftk{self.number}"

    @property
    def host(self) -> str:
        """This machine on that bridge: where nodes find the API server and the DNS."""
        return f"10.{210 + self.number}.0.1"

    @property
    def services(self) -> str:
        """The range of service addresses."""
        return f"10.{220 + self.number}.0.0/16"

    @property
    def api_service(self) -> str:
        """The address of the service ``kubernetes``: the first of that range."""
        return f"10.{220 + self.number}.0.1"

    @property
    def pods(self) -> str:
        """The range of all pods."""
        return f"10.{230 + self.number}.0.0/16"

    def node(self, index: int) -> str:
        """The address of a node."""
        return f"10.{210 + self.number}.0.{10 + index}"

    @property
    def operators(self) -> str:
        """The address of operators that have a network of their own."""
        return f"10.{210 + self.number}.0.100"

    def pods_of(self, index: int) -> str:
        """The range of the pods of a node."""
        return f"10.{230 + self.number}.{index}.0/24"

    def namespace(self, node: str) -> str:
        """The network namespace of a node."""
        return f"ftk{self.number}-{node}"

    def cable(self, node: str) -> str:
        """Our end of a node's cable. An interface's name has 15 characters at most."""
        return f"ftk{self.number}-{node}"[:15]

    def cgroup(self, node: str) -> str:
        """The cgroup of a node, in each hierarchy: two kubelets in one would kill each other's pods."""
        return f"airflow-ft-{self.number}-{node}"


def claim() -> tuple[Addresses, int]:
    """The first free number, and the descriptor that holds it."""
    for number in range(CLUSTERS):
        descriptor = os.open(LOCK.format(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return Addresses(number), descriptor
    raise RuntimeError(f"{CLUSTERS} clusters run on this machine already")
