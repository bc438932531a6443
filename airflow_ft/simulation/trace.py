"""Node-fault traces: what is read, and what each kind of entry is taken to do to a training on that node.

The format is that of the InfiniteHBD trace: a list of ``fault_start`` and ``fault_end`` events with ``node_id``,
``event_time`` in days and a ``fault_type`` (Level, Class, Desc). Starts and ends of a node and kind are paired in their
order; a fault without an end lasts to the end of the trace.

``EFFECTS`` is an assumption, not a measurement: the trace says that a node was faulty, not what a training on it saw.
The first row whose words are in the entry holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_ft.core.faults import FaultClass

DAY = 86_400.0


class TraceError(ValueError):
    """A trace can't be read. The message names the entry and what is wrong with it."""


@dataclass(frozen=True)
class Effect:
    """What a kind of node fault does to a training on that node.

    :param fatal: whether training dies or hangs of it.
    :param hangs: how often it hangs instead of dying.
    :param visible: the platform sees at once that the node is out of service; else its people do, later.
    :param planned: somebody took the node out: a drain, nobody's fault.
    """

    fault_class: FaultClass = FaultClass.HW_NODE
    fatal: bool = True
    hangs: float = 0.1
    visible: bool = False
    planned: bool = False


DEAD = Effect(hangs=0.0, visible=True)
GPU = Effect(hangs=0.1)
NETWORK = Effect(FaultClass.NET_FABRIC, hangs=0.5)
SOFTWARE = Effect(FaultClass.ENV_ERROR, hangs=0.0)
DRAIN = Effect(fatal=True, hangs=0.0, visible=True, planned=True)
DEGRADED = Effect(fatal=False, visible=True)  # slower, or found by a test of an idle node: training lives

EFFECTS: tuple[tuple[tuple[str, ...], Effect], ...] = (
    (("Stress Test",), DEGRADED),
    (("Temporarily Offline",), DRAIN),
    (("Taken offline",), DRAIN),
    (("width low",), DEGRADED),
    (("Width low",), DEGRADED),
    (("speed low",), DEGRADED),
    (("Speed low",), DEGRADED),
    (("Bandwidth Low",), DEGRADED),
    (("Temperature",), DEGRADED),
    (("SBE",), DEGRADED),
    (("Silent Data",), DEGRADED),
    (("Fan",), DEGRADED),
    (("Redundancy",), DEGRADED),
    (("Battery",), DEGRADED),
    (("Correctable",), DEGRADED),
    (("correctable", "Bus"), DEGRADED),
    (("Firmware",), DEGRADED),
    (("Power Supply",), DEAD),
    (("Motherboard",), DEAD),
    (("Server down",), DEAD),
    (("Kernel Panic",), DEAD),
    (("Kubelet",), DEAD),
    (("Machine Check",), DEAD),
    (("Cable",), NETWORK),
    (("NIC",), NETWORK),
    (("Optical",), NETWORK),
    (("File System",), SOFTWARE),
    (("Software Failure",), SOFTWARE),
)


@dataclass(frozen=True)
class NodeFault:
    """A node was faulty from ``start`` to ``end``, in seconds of the trace."""

    node: str
    start: float
    end: float
    kind: str
    effect: Effect


@dataclass(frozen=True)
class Trace:
    """All faults of a cluster of ``nodes`` servers over ``seconds``; most servers may have none."""

    faults: tuple[NodeFault, ...]
    seconds: float
    nodes: int


def read_trace(document: Any, nodes: int = 0) -> Trace:
    """Read a loaded trace. Raises ``TraceError``.

    :param nodes: how many servers were watched, also those without a fault; 0: only those with one.
    """
    if not isinstance(document, list) or not document:
        raise TraceError("a trace is a list of events: node_id, event_time (days), event_type, fault_type")
    open_: dict[tuple[str, str], list[float]] = defaultdict(list)
    faults: list[NodeFault] = []
    events = sorted((_event(number, one) for number, one in enumerate(document)), key=lambda event: event[:2])
    last = events[-1][0]
    for at, is_end, node, kind in events:
        if not is_end:
            open_[node, kind].append(at)
        elif open_[node, kind]:
            faults.append(NodeFault(node, open_[node, kind].pop(0), at, kind, effect_of(kind)))
    faults += [NodeFault(n, at, last, kind, effect_of(kind)) for (n, kind), starts in open_.items() for at in starts]
    seen = len({fault.node for fault in faults})
    return Trace(tuple(sorted(faults, key=lambda fault: (fault.start, fault.node))), last, max(nodes, seen))


def effect_of(kind: str) -> Effect:
    """Return what a kind of fault does; what the table doesn't know is taken for a fault of the node's hardware."""
    return next((effect for words, effect in EFFECTS if all(word in kind for word in words)), GPU)


def _event(number: int, one: Any) -> tuple[float, bool, str, str]:
    try:
        kind = one["fault_type"]
        words = kind if isinstance(kind, str) else " / ".join(str(kind[key]) for key in ("Level", "Class", "Desc"))
        at = float(one["event_time"]) * DAY
        what = {"fault_start": False, "fault_end": True}[one["event_type"]]
        return at, what, str(one["node_id"]), words
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"entry {number}: {one!r:.120} can't be read: {error!r}") from None


def mean_faulty(faults: Iterable[NodeFault], seconds: float) -> float:
    """Return how many nodes are faulty at a time, on average."""
    return sum(fault.end - fault.start for fault in faults) / seconds if seconds else 0.0
