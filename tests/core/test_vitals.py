"""Second signals: samples of processes in, an opinion out; M14's rule."""

from __future__ import annotations

import pytest

from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.vitals import (
    Opinion,
    RankVitals,
    Sample,
    all_stand_still,
    gpus,
    may_act,
    opinion,
    stands_still,
    unchanged,
)


def sample(at: float, *ranks: tuple[str, float, int], world: int | None = None, gpu: bool = False) -> Sample:
    return Sample(
        at=at,
        ranks=tuple(
            RankVitals(rank=n, node="n1", state=state, cpu_seconds=cpu, io_bytes=io, gpu=gpu, world_size=world)
            for n, (state, cpu, io) in enumerate(ranks)
        ),
    )


IDLE = [("S", 10.0, 500), ("S", 10.0, 500)]


@pytest.mark.parametrize(
    ("ranks", "says", "kind"),
    [
        (IDLE, "confirms", ""),
        ([("S", 10.05, 500), ("S", 10.0, 900)], "confirms", ""),  # a watchdog thread, a line of log
        ([("S", 14.0, 500), ("S", 10.0, 500)], "contradicts", ""),  # compiles, or spins
        ([("D", 10.1, 90_000_000), ("S", 10.0, 500)], "contradicts", ""),  # saves
        ([("S", 10.5, 500), ("S", 10.0, 500)], "unknown", ""),  # neither idle nor busy
        ([("R", 10.1, 500), ("S", 10.0, 500)], "unknown", ""),  # ready to run, but the machine is crowded
        ([("T", 10.0, 500), ("S", 10.0, 500)], "confirms", "stopped"),
        ([("T", 10.0, 500), ("R", 15.0, 500)], "confirms", "stopped"),  # the others spin in a collective
    ],
)
@pytest.mark.row("M5")
def test_what_ranks_do_while_nothing_is_printed(ranks: list[tuple[str, float, int]], says: str, kind: str) -> None:
    found = opinion(sample(0, *IDLE), sample(5, *ranks))
    assert (found.says, found.kind) == (says, kind)


def test_a_file_system_that_does_not_answer() -> None:
    ranks = [("D", 10.0, 500), ("S", 10.0, 500)]
    assert opinion(sample(0, *ranks), sample(5, *ranks)).kind == "stopped"


@pytest.mark.row("P10")
def test_a_rank_that_ended_quietly_and_a_node() -> None:
    missing = opinion(sample(0, *IDLE, world=3), sample(5, *IDLE, world=3))
    assert (missing.says, missing.kind, missing.text) == ("confirms", "exit_hang", "rank 2 ended, the others wait")
    assert opinion(sample(0, *IDLE), sample(5, *IDLE), ["n2"]).kind == "exit_hang"


def test_what_says_nothing() -> None:
    assert opinion(None, None).says == "unknown"
    assert opinion(sample(0, *IDLE), sample(1, *IDLE)).says == "unknown", "too close together"
    assert opinion(sample(0, *IDLE, gpu=True), sample(5, *IDLE, gpu=True)).says == "unknown", "the GPU may work"
    assert opinion(sample(0), sample(5)).says == "unknown"


@pytest.mark.story("PRG-10")
@pytest.mark.parametrize(
    ("silence", "says", "acts"),
    [
        (10, "confirms", True),
        (10, "unknown", False),
        (121, "unknown", True),
        (121, "contradicts", False),
        (241, "contradicts", True),
    ],
)
def test_a_quick_verdict_needs_a_confirmation_and_a_contradiction_time(silence: float, says: str, acts: bool) -> None:
    verdict = HangVerdict(silence=silence, threshold=9)
    assert may_act(verdict, Opinion(says=says), floor=120) is acts


def devices(*series: tuple[list[float], list[float | None]], io: int = 500) -> list[Sample]:
    """Six samples of ranks with a GPU: utilisation and watts of each."""
    return [
        Sample(
            at=2.0 * at,
            ranks=tuple(
                RankVitals(
                    rank=n,
                    node="n1",
                    cpu_seconds=10.0,
                    io_bytes=io,
                    gpu=True,
                    gpu_percent=load[at],
                    gpu_watts=watts[at],
                )
                for n, (load, watts) in enumerate(series)
            ),
        )
        for at in range(6)
    ]


FULL, STEADY = [100.0] * 6, [121.0, 120.0, 122.0, 121.0, 120.5, 121.0]
WORK = [610.0, 655.0, 580.0, 640.0, 602.0, 633.0]


@pytest.mark.row("M14")
@pytest.mark.row("M5")
@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (devices((FULL, STEADY), (FULL, STEADY)), "still"),  # a collective spins on both
        (devices(([0.0] * 6, [70.0] * 6), (FULL, STEADY)), "still"),  # one never came
        (devices((FULL, WORK), (FULL, STEADY)), "working"),  # a long kernel: all wait for it
        (devices((FULL, [None] * 6)), "unknown"),  # 100 % alone is no proof, of neither
        (devices(([100, 100, 100, 40, 95, 10], STEADY)), "unknown"),
        (devices((FULL, STEADY))[:4], "unknown"),  # too few periods
        ([sample(at, *IDLE) for at in range(6)], "unknown"),  # no GPU
    ],
)
def test_what_gpus_say_over_a_silence(samples: list[Sample], says: str) -> None:
    assert gpus(samples) == says


@pytest.mark.row("M14")
def test_gpus_that_stand_still_confirm_what_idle_cpus_alone_can_not() -> None:
    still = devices((FULL, STEADY), (FULL, STEADY))
    assert opinion(still[0], still[-1]).says == "unknown"
    assert opinion(still[0], still[-1], devices=gpus(still)).says == "confirms"
    working = devices((FULL, WORK), (FULL, STEADY))
    assert opinion(working[0], working[-1], devices=gpus(working)).says == "contradicts"


def test_a_cpu_that_waits_for_its_gpu_in_a_loop_is_no_contradiction() -> None:
    still = devices((FULL, STEADY), (FULL, STEADY))
    spins = still[-1].but(ranks=tuple(rank.but(cpu_seconds=20.0) for rank in still[-1].ranks))
    assert opinion(still[0], spins).says == "contradicts"
    heard = opinion(still[0], spins, devices="still")
    assert (heard.says, heard.ranks) == ("unknown", (0, 1)), "the stacks have the last word"


@pytest.mark.row("M14")
def test_the_rule_of_unchanged_io_then_unchanged_utilisation() -> None:
    still, moving = [500] * 4, [500, 600, 700, 800]
    flat, lively = [100.0] * 6, [100.0, 100.0, 100.0, 40.0, 95.0, 10.0]
    assert unchanged(still)
    assert not unchanged(moving)
    assert not unchanged(still[:3])
    assert stands_still(still, flat), "a GPU at 100 % is no proof of life"
    assert not stands_still(still, lively)
    assert not stands_still(moving, flat)
    assert not stands_still(still, flat[:5])
    assert all_stand_still({"a": (still, flat), "b": (still, flat)})
    assert not all_stand_still({"a": (still, flat), "b": (moving, flat)})
    assert not all_stand_still({})


@pytest.mark.story("PRG-10")
@pytest.mark.parametrize(("faults", "looked_at"), [(0, (0,)), (50, (0,)), (5_000, ())])
def test_a_busy_rank_that_takes_memory_is_at_work_and_needs_no_closer_look(faults: int, looked_at: tuple[int]) -> None:
    first, last = sample(0, *IDLE), sample(5, ("R", 15.0, 500), ("S", 10.0, 500))
    last = last.but(ranks=(last.ranks[0].but(page_faults=faults), last.ranks[1]))
    heard = opinion(first, last)
    assert (heard.says, heard.ranks) == ("contradicts", looked_at)
