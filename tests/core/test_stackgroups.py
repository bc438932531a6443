"""Stacks for people: who stood where, the odd ones first, and little of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_ft.core.faults import StackPlace
from airflow_ft.core.sanitise import size_of
from airflow_ft.core.stackgroups import MOST_FRAMES, MOST_PLACES, grouped

REDUCE = """Process 7: python train.py
Thread 7 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    train (train.py:90)
"""
LOADER = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
Current thread 0x00007f02 (most recent call first):
  File "/job/data.py", line 44 in read
"""


@dataclass(frozen=True)
class Group:
    ranks: tuple[int, ...]
    stack: str
    node: str = "n1"
    stopped: bool = False
    pids: tuple[int, ...] = ()


@pytest.mark.row("P9")
def test_who_is_suspected_comes_first_and_equal_stacks_of_all_nodes_are_one() -> None:
    found = grouped((Group((0, 1), REDUCE), Group((2,), REDUCE, "n2"), Group((3,), LOADER, "n2")), odd_ranks={3})
    assert found == (
        StackPlace(who="Rank 3 on n2", frames=("read (/job/data.py:44)",), odd=True),
        StackPlace(
            who="3 ranks: 0-2 on 2 nodes",
            frames=("all_reduce (torch/distributed/distributed_c10d.py:2501)", "train (train.py:90)"),
        ),
    )


def test_who_is_stopped_is_odd_also_without_a_stack() -> None:
    first, *_ = grouped((Group((0, 1), REDUCE), Group((5,), "", stopped=True)), ())
    assert (first.who, first.frames, first.odd, first.stopped) == ("Rank 5 on n1", (), True, True)


def test_a_loaders_worker_is_not_odd_because_its_rank_is_one_of_many() -> None:
    found = grouped((Group((0, 3), LOADER), Group((3,), REDUCE)), odd_ranks={3})
    assert [(place.who, place.odd) for place in found] == [("Rank 3 on n1", True), ("2 ranks: 0, 3 on n1", False)]


def test_processes_without_a_rank_are_left_out() -> None:
    assert grouped((Group((), REDUCE),), ()) == ()


def test_little_is_kept_whatever_comes() -> None:
    deep = 'Thread 7 (idle): "MainThread"\n' + "".join(f"    {'f' * 500} (x.py:{n})\n" for n in range(200))
    many = [Group((2 * n,), deep.replace("x.py", f"x{n}.py"), f"n{n}") for n in range(512)]
    found = grouped(many, odd_ranks=range(1024))
    assert len(found) == MOST_PLACES
    assert all(len(place.frames) == MOST_FRAMES for place in found)
    assert size_of([place.to_record() for place in found]) < 6_000
    (together,) = grouped([Group(tuple(range(0, 4096, 2)), REDUCE)], ())
    assert len(together.who) < 120
