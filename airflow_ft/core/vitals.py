"""Second signals: what the processes of a training do while it prints no step.

Fed by ``attempts.second_signals`` with samples that a backend took, asked before a hang is acted upon. Pure. An opinion
``CONFIRMS`` the silence (every rank idle, one stopped, one ended), ``CONTRADICTS`` it (somebody computes or moves
bytes: a save, a compilation; wait longer), or is ``UNKNOWN``. What it can't be certain of:

- *a spinning rank* contradicts although it may hang (NCCL spins, a lock may spin): it is given time, not for ever, and
  none once its stacks say that it gets nowhere (``stackplaces.spinning``);
- *a GPU at work* may leave the CPU idle: where ranks hold a GPU, and nobody has read it, idleness confirms nothing.

``unchanged`` and ``stands_still`` are M14's rule: process I/O unchanged over several periods, then the accelerator's
variance and median unchanged; for one instance, and for all. It is one of the signals (``gpus``): all instances stand
still, and their power is steady as well, because a long kernel and a spinning collective both show 100 %, but only one
of them draws a power that varies. A rank whose CPU waits for its GPU in a loop is then no contradiction.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.records import Record

CONFIRMS, CONTRADICTS, UNKNOWN = "confirms", "contradicts", "unknown"

WINDOW_SECONDS = 1.5  # two samples closer together say nothing
IDLE_CPU = 0.05  # of a core: watchdog and heartbeat threads stay below, the smallest real work above
BUSY_CPU = 0.30
BUSY_BYTES_PER_SECOND = 1_000_000.0
BUSY_FAULTS_PER_SECOND = 200.0  # arrays that come and go; a loop that waits has none (measured: 0), our dump a dozen
LONGER = 2.0  # times the silence, if the signals contradict
PERIODS = 3
SAME_VARIANCE = 1.0  # percent points squared; together with the next a gut feeling for utilisation in percent
SAME_MEDIAN = 2.0
SAME_WATTS, SAME_POWER = 5.0, 0.03  # the larger of both; work varies by tens of watts. A gut feeling, too
STILL, WORKING = "still", "working"


class RankVitals(Record):
    """One rank with all its processes (loader workers too), since it began."""

    rank: int | None = None
    node: str = ""
    state: str = "S"  # of its main process: R, S, D, T, Z
    cpu_seconds: float = 0.0
    io_bytes: int = 0
    page_faults: int = 0
    gpu: bool = False  # it holds a GPU
    gpu_percent: float | None = None
    gpu_watts: float | None = None
    world_size: int | None = None


class Sample(Record):
    """All ranks at one moment. ``at`` is in seconds of the watch's clock."""

    at: float
    ranks: tuple[RankVitals, ...] = ()


def read_ranks(node: str, entries: object) -> list[RankVitals]:
    """Read what ``agent.vitals`` says of a node's ranks. What can't be understood is left out: anybody can print it."""
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        gpu = entry.get("gpu")
        readings = gpu if isinstance(gpu, list) and len(gpu) == 2 else [None, None]
        try:
            rank = RankVitals(
                rank=entry.get("rank"),
                node=node,
                state=entry.get("state") or "S",
                cpu_seconds=entry.get("cpu") or 0.0,
                io_bytes=entry.get("io") or 0,
                page_faults=entry.get("faults") or 0,
                gpu=isinstance(gpu, list),
                gpu_percent=readings[0],
                gpu_watts=readings[1],
                world_size=entry.get("world"),
            )
        except ValidationError:
            continue
        found.append(rank)
    return found


class Opinion(Record):
    """What the second signals say. ``kind`` is a better word for the verdict, if they have one.

    ``ranks`` are the suspects of what is confirmed; of a contradiction, the ranks that use a CPU and move no bytes.
    """

    says: str = UNKNOWN
    kind: str = ""
    text: str = ""
    ranks: tuple[int, ...] = ()


def opinion(
    first: Sample | None, last: Sample | None, ended_nodes: Sequence[str] = (), devices: str = UNKNOWN
) -> Opinion:
    """Compare two samples of the same silence.

    :param ended_nodes: nodes whose command has ended with 0 while others run.
    :param devices: what ``gpus`` says of all samples of this silence.
    """
    if first is None or last is None or not last.ranks or last.at - first.at < WINDOW_SECONDS:
        return Opinion(text="no second signals")
    stopped = [rank for rank in last.ranks if rank.state in ("T", "t")]
    if stopped:
        text = f"{_names(stopped)} stopped by a signal"
        return Opinion(says=CONFIRMS, kind="stopped", text=text, ranks=_numbers(stopped))
    if devices == WORKING:
        return Opinion(says=CONTRADICTS, text="the GPUs work: what they draw or do varies")
    before = {(rank.node, rank.rank): rank for rank in first.ranks}
    pairs = [(before[key], rank) for rank in last.ranks if (key := (rank.node, rank.rank)) in before]
    seconds = last.at - first.at
    busy = [now for was, now in pairs if _is_busy(was, now, seconds)]
    if busy:
        moving = any(_moves(was, now, seconds) for was, now in pairs)
        text = f"{_names(busy)} busy: {_doing(pairs, busy, seconds)}"
        if devices == STILL and not moving and all(rank.gpu for rank in busy):
            return Opinion(text=f"{text}; but the GPUs stand still", ranks=_numbers(busy))
        works = moving or any(_takes_memory(was, now, seconds) for was, now in pairs if now in busy)
        return Opinion(says=CONTRADICTS, text=text, ranks=() if works else _numbers(busy))
    stuck = [now for was, now in pairs if was.state == now.state == "D"]
    if stuck:
        text = f"{_names(stuck)} waiting for a disk or a file system"
        return Opinion(says=CONFIRMS, kind="stopped", text=text, ranks=_numbers(stuck))
    if any(not _is_idle(was, now, seconds) for was, now in pairs) or len(pairs) < len(last.ranks):
        return Opinion(text="the second signals are not clear")
    return _all_idle(last, ended_nodes, devices)


def _all_idle(last: Sample, ended_nodes: Sequence[str], devices: str) -> Opinion:
    missing = _missing(last)
    if missing or ended_nodes:
        who = ", ".join([*(f"rank {rank}" for rank in missing[:8]), *ended_nodes[:8]])
        ranks = tuple(missing[:8])
        return Opinion(says=CONFIRMS, kind="exit_hang", text=f"{who} ended, the others wait", ranks=ranks)
    holding = any(rank.gpu for rank in last.ranks)
    if holding and devices != STILL:
        return Opinion(text="the CPUs are idle, the GPUs say nothing for certain")
    if holding:
        return Opinion(says=CONFIRMS, text=f"all {len(last.ranks)} ranks are idle, and their GPUs stand still")
    return Opinion(says=CONFIRMS, text=f"all {len(last.ranks)} ranks are idle: no CPU time, no I/O")


def gpus(samples: Sequence[Sample]) -> str:
    """Say what the GPUs of all ranks do over the samples of one silence: ``STILL``, ``WORKING`` or ``UNKNOWN``."""
    series: dict[tuple[str, int | None], list[RankVitals]] = {}
    for sample in samples:
        for rank in sample.ranks:
            if rank.gpu:
                series.setdefault((rank.node, rank.rank), []).append(rank)
    if not series:
        return UNKNOWN
    power = [[rank.gpu_watts for rank in ranks[-2 * PERIODS :]] for ranks in series.values()]
    known = [[watts for watts in values if watts is not None] for values in power]
    if any(len(values) >= PERIODS and _spread(values) > _steady(values) for values in known):
        return WORKING
    instances = {
        f"{node}/{number}": ([rank.io_bytes for rank in ranks], [rank.gpu_percent or 0.0 for rank in ranks])
        for (node, number), ranks in series.items()
    }
    complete = all(None not in values for values in power)
    asked = all(rank.gpu_percent is not None for ranks in series.values() for rank in ranks)
    return STILL if complete and asked and all_stand_still(instances) else UNKNOWN


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _steady(values: Sequence[float]) -> float:
    return max(SAME_WATTS, SAME_POWER * statistics.median(values))


def waiting_opinion(ranks: Sequence[int], count: int) -> Opinion:
    """Say that busy ranks are each at one place while their GPUs stand still: they wait in a loop."""
    names = _names([RankVitals(rank=rank) for rank in ranks])
    return Opinion(says=CONFIRMS, text=f"{names} waiting in a loop, and the GPUs of all {count} ranks stand still")


def spinning_opinion(ranks: Sequence[int], place: str) -> Opinion:
    """Say that ranks which use a CPU get nowhere (``stackplaces.spinning``)."""
    names = _names([RankVitals(rank=rank) for rank in ranks])
    where = f" in {place}" if place else ""
    return Opinion(says=CONFIRMS, text=f"{names} spinning{where}, the others wait", ranks=tuple(ranks))


def may_act(verdict: HangVerdict, heard: Opinion, floor: float) -> bool:
    """Say whether a verdict is acted upon by now.

    A quick verdict needs a confirmation; without one silence has to last ``floor`` seconds, as for slow steps. A
    contradiction makes each clock ``LONGER`` times as long.
    """
    patience = max(verdict.threshold, floor if verdict.kind != "never_started" else 0.0)
    if heard.says == CONFIRMS:
        return True
    return verdict.silence > (LONGER * patience if heard.says == CONTRADICTS else patience)


# --- M14 ---------------------------------------------------------------------------------------------------------


def unchanged(io_bytes: Sequence[int], periods: int = PERIODS) -> bool:
    """Whether a process's I/O has stood still over the last periods."""
    return len(io_bytes) > periods and len(set(io_bytes[-periods - 1 :])) == 1


def stands_still(io_bytes: Sequence[int], utilisation: Sequence[float], periods: int = PERIODS) -> bool:
    """M14 for one instance: I/O unchanged over several periods, then the utilisation's variance and median, too.

    :param utilisation: of the accelerator in percent, a value a period, of at least two times ``periods``. A GPU that
        stays at 100 % stands still, too: collectives spin.
    """
    if not unchanged(io_bytes, periods) or len(utilisation) < 2 * periods:
        return False
    before, now = utilisation[-2 * periods : -periods], utilisation[-periods:]
    calm = abs(statistics.pvariance(now) - statistics.pvariance(before)) <= SAME_VARIANCE
    return calm and abs(statistics.median(now) - statistics.median(before)) <= SAME_MEDIAN


def all_stand_still(instances: Mapping[str, tuple[Sequence[int], Sequence[float]]], periods: int = PERIODS) -> bool:
    """M14 for all instances: one that stands still may wait for the others; a hang is when no instance moves."""
    return bool(instances) and all(stands_still(io, load, periods) for io, load in instances.values())


# --- details -----------------------------------------------------------------------------------------------------


def _cores(was: RankVitals, now: RankVitals, seconds: float) -> float:
    return (now.cpu_seconds - was.cpu_seconds) / seconds


def _moves(was: RankVitals, now: RankVitals, seconds: float) -> bool:
    return (now.io_bytes - was.io_bytes) / seconds >= BUSY_BYTES_PER_SECOND


def _takes_memory(was: RankVitals, now: RankVitals, seconds: float) -> bool:
    return (now.page_faults - was.page_faults) / seconds >= BUSY_FAULTS_PER_SECOND


def _is_busy(was: RankVitals, now: RankVitals, seconds: float) -> bool:
    cores = _cores(was, now, seconds)
    crowded = was.state == now.state == "R" and cores > IDLE_CPU  # it would use a core if it got one
    return cores >= BUSY_CPU or crowded or _moves(was, now, seconds)


def _is_idle(was: RankVitals, now: RankVitals, seconds: float) -> bool:
    # Who is ready to run and gets no CPU (a crowded machine) is not idle.
    return now.state != "R" and 0 <= _cores(was, now, seconds) <= IDLE_CPU


def _missing(last: Sample) -> list[int]:
    world = max((rank.world_size or 0 for rank in last.ranks), default=0)
    present = {rank.rank for rank in last.ranks if rank.rank is not None and rank.state != "Z"}
    return [rank for rank in range(world) if rank not in present] if 0 < world <= 100_000 else []


def _numbers(ranks: Sequence[RankVitals]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in ranks if rank.rank is not None)


def _names(ranks: Sequence[RankVitals]) -> str:
    names = [f"{rank.rank}" if rank.rank is not None else (rank.node or "the process") for rank in ranks]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"rank {shown} is" if len(names) == 1 else f"ranks {shown} are"


def _doing(pairs: Sequence[tuple[RankVitals, RankVitals]], busy: Sequence[RankVitals], seconds: float) -> str:
    chosen = [pair for pair in pairs if pair[1] in busy]
    cores = max(_cores(was, now, seconds) for was, now in chosen)
    moved = max((now.io_bytes - was.io_bytes) / seconds for was, now in chosen)
    return f"{cores:.0%} of a core, {moved / 1e6:.1f} MB/s"
