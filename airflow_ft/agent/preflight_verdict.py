"""What all nodes' measurements together say: a bad node, a bad pair, a straggler, clocks that differ. Pure.

A node that fails with most of its partners is bad; a pair that fails while both are good with others is a bad pair. A
number is judged against the median of the nodes: there is no absolute "fast". Everybody runs this over the same
numbers, so everybody comes to the same verdict.
"""

from __future__ import annotations

from typing import Any

from .preflight_comm import Pair
from .preflight_result import Result, failed, ok, skipped

# A node at half speed is far below, the spread of healthy ones (a few per cent, 10 on shared machines) far above.
SLOW_SHARE = 0.67
SLOW_LINK_SHARE = 0.3
TELLING_SHARE = 0.2  # what takes less of the time doesn't make a node a straggler (two thirds of the speed)
MIN_COMPARED = 3  # of two nodes nobody can say which is the odd one
SKEW_SECONDS = 2.0  # Kerberos and TLS give 5 minutes, log order and rendezvous time-outs do not; a gut feeling


def judge(known: dict[str, Any], names: list[str], me: str) -> list[Result]:
    """The items ``comm``, ``comm together``, ``cpu-speed`` and ``clock`` of the node ``me``."""
    pairs = [Pair(*pair) for told in known.values() for pair in told.get("pairs", [])]
    return [
        pair_verdict("comm", pairs, names, me),
        _together(known, pairs, names, me),
        _speed(known, me),
        _clock(pairs, me),
    ]


def bad_nodes(pairs: list[Pair], names: list[str]) -> list[str]:
    """The nodes that fail with at least two partners and with more than half of them, the worst first.

    Its partners fail with it, too: so the worst is taken out first, and the others are looked at without it.
    """
    left = list(pairs)
    found: list[str] = []
    while True:
        scores = []
        for name in names:
            own = [pair for pair in left if name in (pair.one, pair.other)]
            broken = [pair for pair in own if pair.error]
            if len(broken) >= 2 and len(broken) * 2 > len(own):
                scores.append((len(broken) / len(own), len(broken), name))
        if not scores:
            return found
        worst = max(scores)[2]
        found.append(worst)
        left = [pair for pair in left if worst not in (pair.one, pair.other)]


def bad_pairs(pairs: list[Pair], names: list[str]) -> list[Pair]:
    """The pairs that fail although neither node is bad."""
    bad = set(bad_nodes(pairs, names))
    return [pair for pair in pairs if pair.error and not bad & {pair.one, pair.other}]


def pair_verdict(item: str, pairs: list[Pair], names: list[str], me: str, compare: bool = True) -> Result:
    """What the pairs say about the node ``me``: it is bad, one of its pairs is, it is slow, or all is well.

    :param compare: whether a slow pair means anything.
    """
    own = [pair for pair in pairs if me in (pair.one, pair.other)]
    if me in bad_nodes(pairs, names):
        broken = [pair for pair in own if pair.error]
        text = "%d of %d partners fail: %s" % (len(broken), len(own), broken[0].error)
        return _named(item, failed(text, "all answer", "This node's network is broken: use another node."))
    for pair in bad_pairs(pairs, names):
        if me in (pair.one, pair.other):
            other = pair.other if me == pair.one else pair.one
            advice = "The link between the two is bad, not one of them: keep them apart, look at the switch between."
            return _named(item, failed("with %s: %s" % (other, pair.error), "all answer", advice))._replace(peer=other)
    good = [pair for pair in pairs if not pair.error]
    slow = _slow_link(item, good, me) if compare else None
    if slow is not None:
        return slow
    mine = [pair for pair in own if not pair.error]
    if not mine:
        return _named(item, ok("no partner was tested"))
    latency = sorted(pair.latency_us for pair in mine)[len(mine) // 2]
    speed = sorted(pair.mb_per_second for pair in mine)[len(mine) // 2]
    return _named(item, ok("%d pairs, %.0f us, %.0f MB/s" % (len(mine), latency, speed), "all answer"))


def _slow_link(item: str, good: list[Pair], me: str) -> Result | None:
    if len(good) < MIN_COMPARED:
        return None
    middle = median([pair.mb_per_second for pair in good])
    mine = [pair for pair in good if me in (pair.one, pair.other)]
    slow = [pair for pair in mine if pair.mb_per_second < SLOW_LINK_SHARE * middle]
    if not slow or len(slow) * 2 < len(mine):
        return None
    others = [pair for pair in good if me not in (pair.one, pair.other)]
    if others and median([pair.mb_per_second for pair in others]) < middle / 2:
        return None
    text = "%.0f MB/s, the median of all pairs is %.0f" % (median([pair.mb_per_second for pair in mine]), middle)
    return _named(
        item, failed(text, ">= %d %% of the median" % (SLOW_LINK_SHARE * 100), "This node's network is slow.")
    )


def _together(known: dict[str, Any], pairs: list[Pair], names: list[str], me: str) -> Result:
    error = str(known.get(me, {}).get("together", "not run"))
    if not error:
        return _named("comm together", ok("the sum is right", "a verified all-reduce of all nodes"))
    explained = bad_nodes(pairs, names) or bad_pairs(pairs, names)
    missing = [name for name in names if name not in known]
    if explained or missing:  # whoever is to blame is told under `comm`, or by its absence
        return _named("comm together", skipped("not possible: %s" % error))
    return _named("comm together", failed(error, "a verified all-reduce", "Look at the network between the nodes."))


def _speed(known: dict[str, Any], me: str) -> Result:
    speeds = {name: told.get("facts", {}).get("cpu_speed") for name, told in known.items()}
    numbers = {name: float(speed) for name, speed in speeds.items() if isinstance(speed, (int, float))}
    if me not in numbers or len(numbers) < MIN_COMPARED:
        return _named(
            "cpu-speed", Result("", "skipped", "%d nodes to compare, %d needed" % (len(numbers), MIN_COMPARED))
        )
    share = numbers[me] / max(median(list(numbers.values())), 1e-9)
    need = ">= %d %% of the median" % (SLOW_SHARE * 100)
    if share < SLOW_SHARE:
        cause, advice = _cause(known[me]["facts"])
        return _named("cpu-speed", failed("%.0f %% of the median%s" % (share * 100, cause), need, advice, share))
    return _named("cpu-speed", ok("%.0f %% of the median" % (share * 100), need, share))


def _cause(facts: dict[str, Any]) -> tuple[str, str]:
    """What made a straggler slow, as far as its kernel can tell, and what to do about it."""
    limited, others = (float(facts.get(name) or 0.0) for name in ("cpu_limited", "cpu_others"))
    if limited >= TELLING_SHARE and limited >= others:
        text = ": a CPU limit kept it from running %.0f %% of the time" % (limited * 100)
        return text, "A straggler: raise the CPU limit of its container or cgroup (cpu.max, resources.limits.cpu)."
    if others >= TELLING_SHARE:
        text = ": it waited for other processes %.0f %% of the time" % (others * 100)
        return text, "A straggler: find out who else runs on this node (top), and end it."
    return (
        "",
        "A straggler, with the CPU all to itself: look for a power cap, heat, a slow clock.",
    )


def _clock(pairs: list[Pair], me: str) -> Result:
    """This node's clock against those of its partners."""
    ahead = [-pair.ahead_seconds for pair in pairs if pair.one == me and not pair.error]
    ahead += [pair.ahead_seconds for pair in pairs if pair.other == me and not pair.error]
    if len(ahead) < MIN_COMPARED - 1:
        return _named("clock", skipped("%d partners to compare with, %d needed" % (len(ahead), MIN_COMPARED - 1)))
    off, need = median(ahead), "within %g s" % SKEW_SECONDS
    if abs(off) > SKEW_SECONDS:
        return _named("clock", failed("%+.1f s" % off, need, "Start chronyd or ntpd on this node."))
    return _named("clock", ok("%+.2f s" % off, need))


def _named(item: str, result: Result) -> Result:
    return result._replace(item=item)


def median(numbers: list[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
