"""Places in stacks: who spins, and how a suspect's place is named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_ft.core.facts import Facts
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.naming_suspects import of_hang
from airflow_ft.core.stackplaces import Frame, frames, spinning, user_place

FAULTHANDLER = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
Current thread 0x00007f02 (most recent call first):
  File "/venv/lib/python3.12/site-packages/torch/serialization.py", line 12 in _save
  File "/job/train.py", line 44 in misbehave
  File "/job/train.py", line 90 in <module>
"""
PY_SPY = """Process 7: python train.py
Python v3.12.3
Thread 8 (idle): "pin_memory"
    wait (threading.py:359)
Thread 7 (active): "MainThread"
    misbehave (train.py:44)
    <module> (train.py:90)
"""


def test_the_main_thread_is_found_in_both_forms() -> None:
    assert [frame.function for frame in frames(FAULTHANDLER)] == ["_save", "misbehave", "<module>"]
    assert frames(PY_SPY) == (Frame("misbehave", "train.py", 44), Frame("<module>", "train.py", 90))
    assert frames("") == frames("no stack at all") == ()


@pytest.mark.row("P9")
def test_a_suspect_is_named_with_its_own_frame_not_a_librarys() -> None:
    assert user_place(FAULTHANDLER) == "misbehave (train.py:44)"
    assert user_place('Thread 1:\n  File "/usr/lib/python3.12/x.py", line 3 in f') == ""


def at(*places: str) -> tuple[Frame, ...]:
    """Frames, the innermost first, from "function file:line"."""
    found = []
    for place in places:
        function, where = place.split(" ")
        file, _, line = where.rpartition(":")
        found.append(Frame(function, file, int(line)))
    return tuple(found)


LOOP = [at(f"misbehave train.py:{line}", "train train.py:9") for line in (44, 45, 44, 45)]
REDUCE = at("all_reduce /x/site-packages/torch/distributed/c10d.py:7", "train train.py:12")
COMPILING = at("g /x/site-packages/torch/_inductor/graph.py:4", "train train.py:9")


def looks(*ranks: list[tuple[Frame, ...]]) -> list[dict[int, tuple[Frame, ...]]]:
    return [dict(enumerate(look)) for look in zip(*ranks, strict=True)]


@pytest.mark.story("PRG-10")
@pytest.mark.parametrize(
    ("seen", "world", "found"),
    [
        (looks(LOOP), 4, (0,)),  # one spins, three wait without a CPU (gloo)
        (looks(LOOP, [REDUCE] * 4, [REDUCE] * 4, [REDUCE] * 4), 4, (0,)),  # the others spin in a collective (NCCL)
        (looks([REDUCE] * 4, [REDUCE] * 4), 2, ()),  # all in one collective: who didn't come isn't seen
        (looks(LOOP, LOOP), 2, ()),  # all at one place: a long computation that all of them do
        (looks([COMPILING] * 4), 4, ()),
        (looks([at("evaluate train.py:70", "train train.py:9")] * 4), 4, ()),
        (looks([at("svd /x/site-packages/numpy/linalg.py:7", "train train.py:9")] * 4), 4, ()),  # calls a library
        (looks([LOOP[0], at("parse train.py:60", "train train.py:9"), LOOP[0], LOOP[0]]), 4, ()),  # it moves: it works
        (looks([LOOP[0], at("misbehave train.py:44", "train train.py:10"), LOOP[0], LOOP[0]]), 4, ()),  # called anew
        (looks(LOOP[:3]), 4, ()),  # three looks are too few
        (looks(LOOP, [COMPILING, REDUCE, COMPILING, REDUCE]), 4, ()),  # somebody else is at work
        (looks(LOOP), 1, ()),  # nobody waits for it
    ],
)
def test_who_spins(seen: list[dict[int, tuple[Frame, ...]]], world: int, found: tuple[int, ...]) -> None:
    assert spinning(seen, list(seen[0]), world) == found


def test_a_rank_that_left_its_cpu_does_not_spin() -> None:
    assert spinning([{0: LOOP[0]}, {}, {0: LOOP[0]}, {0: LOOP[0]}], [0], 4) == ()
    assert spinning([], [], 4) == ()


@dataclass
class Group:
    ranks: tuple[int, ...]
    stack: str
    node: str = "n1"
    pids: tuple[int, ...] = ()
    stopped: bool = False


def suspects(*groups: Group, **told: tuple[int, ...]) -> tuple[list[str], str]:
    hang = HangVerdict(text="No step.", **told)
    found = of_hang(Facts(hang=hang, stacks=groups, nodes=("n1",)))
    return [suspect.name for suspect in found.suspects], found.sentence


SLEEPS = 'Current thread 1:\n  File "train.py", line 44 in misbehave'
WAITS = (
    'Current thread 1:\n  File "/x/site-packages/torch/c10d.py", line 4 in all_reduce\n  File "train.py", line 9 in f'
)
LOADER = 'Current thread 1:\n  File "/x/site-packages/torch/utils/data/worker.py", line 4 in _worker_loop'


@pytest.mark.row("P9")
def test_who_is_not_in_the_collective_is_suspected_also_among_two() -> None:
    assert suspects(Group((0,), WAITS), Group((1,), SLEEPS)) == (
        ["1"],
        "Rank 1 differs from the others. It is in misbehave (train.py:44).",
    )
    # Each rank's loader worker has its rank's number, and is in no collective.
    assert suspects(Group((0, 1), WAITS), Group((2,), SLEEPS), Group((0, 1, 2), LOADER))[0] == ["2"]


def test_what_the_second_signals_said_comes_before_the_majority() -> None:
    assert suspects(Group((0,), SLEEPS), Group((1, 3), WAITS), ranks=(2,)) == (["2"], "Rank 2 is suspected.")
    assert suspects(Group((0,), SLEEPS), Group((1, 3), WAITS), ranks=(0,))[1].startswith(
        "Rank 0 is suspected. It is in"
    )


def test_what_ranks_print_counts_where_stacks_say_nothing() -> None:
    assert suspects(behind=(2,)) == (["2"], "Rank 2 is behind.")
    assert suspects(Group((0,), SLEEPS), Group((1, 2), WAITS), behind=(2,))[0] == ["0"]
