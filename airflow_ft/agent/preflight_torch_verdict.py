"""What torch's measurements on all nodes say together: wrong sums, slow links, a GPU that is slower than the others.

As in ``preflight_verdict`` a node that fails with most of its partners is bad, a pair that fails alone is a bad pair,
and a number is judged against the pool's own median. Here the pool is all GPUs of all nodes.
"""

from __future__ import annotations

from typing import Any

from .preflight_comm import Pair
from .preflight_result import Result, failed, ok, skipped
from .preflight_verdict import MIN_COMPARED, bad_nodes, bad_pairs, median, pair_verdict

PAIRS, TOGETHER, GPU_SPEED = "allreduce", "allreduce together", "gpu-speed"
# Healthy GPUs of one kind are within some 5 % of each other, one that is throttled loses a third and more.
SLOW_SHARES = (
    ("a product of matrices", "TFLOP/s", 0.8, "Look for a power cap, heat or a clock limit: nvidia-smi -q -d CLOCK."),
    (
        "its memory",
        "GB/s",
        0.8,
        "Look for remapped rows and a memory clock limit: nvidia-smi -q -d ROW_REMAPPER,CLOCK.",
    ),
    ("copies from the host", "GB/s", 0.6, "Look at its PCIe slot (lspci -vv: LnkSta), and at NUMA binding."),
)


def backend_of(known: dict[str, Any], names: list[str]) -> tuple[str, str]:
    """Return which backend all nodes can use, after what they told each other first; or why none is tried."""
    missing = [name for name in names if name not in known]
    pairs = [Pair(*pair) for told in known.values() for pair in told.get("pairs", [])]
    if missing or any(pair.error for pair in pairs):
        return "", "not tried: sockets have failed already, see comm"
    devices = {name: str(told.get("facts", {}).get("device", "")) for name, told in known.items()}
    for name in names:
        if not devices[name]:
            return "", "%s: %s" % (name, known[name].get("facts", {}).get("why") or "can't")
    return ("nccl" if set(devices.values()) == {"cuda"} else "gloo"), ""


def judge(
    told: dict[str, Any], names: list[str], me: str, backend: str, reason: str, shared: bool = False
) -> list[Result]:
    """The items ``allreduce``, ``allreduce together`` and ``gpu-speed`` of the node ``me``.

    ``shared``: nodes are on one machine, where how fast a pair is depends on who else runs just then.
    """
    if not backend:
        nothing = skipped(reason)
        return [nothing._replace(item=PAIRS), nothing._replace(item=TOGETHER), gpu_speed({}, me, reason)]
    pairs = merged([Pair(*pair) for one in told.values() for pair in one.get("pairs", [])])
    odd = {name: str(one["skipped"]) for name, one in told.items() if one.get("skipped")}
    why = "" if backend == "nccl" else "no GPU that is this node's alone"
    return [
        _pairs(pairs, names, me, backend, odd, not shared),
        _together(told, pairs, names, me, odd),
        gpu_speed(told, me, why),
    ]


def merged(pairs: list[Pair]) -> list[Pair]:
    """One word for each pair: both ends have measured it, and an error on either side is one."""
    found: dict[frozenset[str], Pair] = {}
    for pair in pairs:
        ends = frozenset((pair.one, pair.other))
        if pair.error or ends not in found:
            found[ends] = pair if ends not in found or not found[ends].error else found[ends]
    return list(found.values())


def _pairs(pairs: list[Pair], names: list[str], me: str, backend: str, odd: dict[str, str], compare: bool) -> Result:
    if not pairs and odd:
        node = min(odd)
        return skipped("%s, %s: %s" % (backend, node, odd[node]))._replace(item=PAIRS)
    result = pair_verdict(PAIRS, pairs, names, me, compare)
    return result._replace(value="%s: %s" % (backend, result.value))


def _together(told: dict[str, Any], pairs: list[Pair], names: list[str], me: str, odd: dict[str, str]) -> Result:
    mine = told.get(me, {})
    error = str(mine.get("together", odd.get(me) or (odd and min(odd.values())) or "not run"))
    need = "the right sum on all nodes"
    if not error:
        return ok(mine.get("value", ""), need)._replace(item=TOGETHER)
    explained = bad_nodes(pairs, names) or bad_pairs(pairs, names) or odd or [n for n in names if n not in told]
    if explained or "together" not in mine:
        return skipped("not possible: %s" % error)._replace(item=TOGETHER)
    advice = "Each pair is right, all together are not: look at the switches between, and at NCCL's settings."
    return failed(error, need, advice)._replace(item=TOGETHER)


def gpu_speed(told: dict[str, Any], me: str, why: str) -> Result:
    """This node's GPUs against the median of all."""
    mine = told.get(me, {}).get("speed")
    if not mine:
        return skipped(told.get(me, {}).get("skipped") or why or "not measured")._replace(item=GPU_SPEED)
    everyone = [gpu for one in told.values() for gpu in one.get("speed") or ()]
    middles = [median([float(gpu[kind]) for gpu in everyone]) for kind in range(len(SLOW_SHARES))]
    shown = ", ".join("%.4g %s" % (middles[kind], unit) for kind, (_, unit, _, _) in enumerate(SLOW_SHARES))
    need = ">= %s of the median of %d GPUs" % ("/".join("%.0f %%" % (s[2] * 100) for s in SLOW_SHARES), len(everyone))
    if len(everyone) < MIN_COMPARED:
        return ok("%s; %d GPUs, %d needed to compare" % (shown, len(everyone), MIN_COMPARED))._replace(item=GPU_SPEED)
    slow, advice = [], ""
    for number, gpu in enumerate(mine):
        for (what, unit, least, cure), middle, value in zip(SLOW_SHARES, middles, gpu):  # noqa: B905 - Python 3.8
            if value < least * middle:
                share = 100 * value / max(middle, 1e-9)
                slow.append("GPU %d: %s %.4g %s, %.0f %% of the median" % (number, what, value, unit, share))
                advice = advice or cure
    if slow:
        return failed("; ".join(slow)[:600], need, "A straggler. %s" % advice)._replace(item=GPU_SPEED)
    return ok("the median is %s" % shown, need)._replace(item=GPU_SPEED)
