"""One cluster of one seed: which nodes there are and when which of them is faulty. The same for all policies.

Nodes are drawn from the trace's servers (those without a fault too), the training begins at a random day of it. Are
more nodes wanted than the trace has, servers are drawn again, each time with another beginning. Faults of nobody's
fault come on top, at their rate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from random import Random

from airflow_ft.core.faults import FaultClass
from airflow_ft.simulation.assumptions import Assumptions
from airflow_ft.simulation.trace import DAY, Effect, NodeFault, Trace

HANG = Effect(FaultClass.COMM_HANG, hangs=1.0)
CRASH = Effect(FaultClass.UNKNOWN, hangs=0.0)


@dataclass(frozen=True)
class World:
    """``faults`` in seconds of the training; those of nobody have no node and no length."""

    nodes: tuple[str, ...]
    faults: tuple[NodeFault, ...]
    seconds: float

    @cached_property
    def of_node(self) -> dict[str, list[NodeFault]]:
        """The faults of each node."""
        found: dict[str, list[NodeFault]] = defaultdict(list)
        for fault in self.faults:
            found[fault.node].append(fault)
        return found

    @cached_property
    def deadly(self) -> tuple[NodeFault, ...]:
        """The faults that end a training, by their start."""
        return tuple(sorted((one for one in self.faults if one.effect.fatal), key=lambda one: one.start))

    def active(self, node: str, at: float) -> list[NodeFault]:
        """What is wrong with a node at a time."""
        return [fault for fault in self.of_node.get(node, ()) if fault.start <= at < fault.end]


def make_world(trace: Trace, assumed: Assumptions, seed: int) -> World:
    """Draw a cluster."""
    chance = Random(f"world/{seed}")
    wanted, seconds = assumed.nodes + assumed.spares, assumed.days * DAY
    by_node: dict[str, list[NodeFault]] = defaultdict(list)
    for fault in trace.faults:
        by_node[fault.node].append(fault)
    servers = [*by_node, *(f"quiet-{number}" for number in range(trace.nodes - len(by_node)))]
    names: list[str] = []
    faults: list[NodeFault] = []
    while len(names) < wanted:
        drawn = chance.sample(servers, min(len(servers), wanted - len(names)))
        begin = chance.uniform(0.0, max(0.0, trace.seconds - seconds))
        for server in drawn:
            name = f"n{len(names):04d}"
            names.append(name)
            faults += _window(by_node.get(server, []), name, begin, seconds, trace.seconds)
    faults += _of_nobody(assumed, chance, seconds)
    return World(tuple(names), tuple(sorted(faults, key=lambda fault: fault.start)), seconds)


def _window(faults: list[NodeFault], name: str, begin: float, seconds: float, whole: float) -> list[NodeFault]:
    found = []
    for round_ in range(int(seconds // whole) + 1 if whole else 1):  # longer than the trace: it begins anew
        for fault in faults:
            start, end = fault.start - begin + round_ * whole, fault.end - begin + round_ * whole
            if end >= 0 and start < seconds:
                found.append(NodeFault(name, start, end, fault.kind, fault.effect))
    return found


def _of_nobody(assumed: Assumptions, chance: Random, seconds: float) -> list[NodeFault]:
    found = []
    for rate, kind, effect in (
        (assumed.transient_hangs, "transient hang", HANG),
        (assumed.transient_crashes, "transient crash", CRASH),
    ):
        per_second = rate / 1000 * assumed.nodes / DAY
        at = chance.expovariate(per_second) if per_second else seconds
        while at < seconds:
            found.append(NodeFault("", at, at, kind, effect))
            at += chance.expovariate(per_second)
    return found
