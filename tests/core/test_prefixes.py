"""Whose line it is, and what is left of it without what others put before it."""

from __future__ import annotations

import pytest

from airflow_ft.core.prefixes import PrefixReader, Who


@pytest.mark.story("WAT-10")
@pytest.mark.parametrize(
    ("line", "who", "text"),
    [
        ("[rank3]: KeyError: 'x'", Who(None, 3), "KeyError: 'x'"),
        ("[default3]:[rank11]: KeyError: 'x'", Who(None, 11, 3), "KeyError: 'x'"),
        ("[1,23]<stderr>:KeyError: 'x'", Who(None, 23), "KeyError: 'x'"),
        ("[0]<stderr>:RuntimeError: y", Who(None, 0), "RuntimeError: y"),
        ("(RayTrainWorker pid=933, ip=10.0.0.11) [rank1]: KeyError: 1", Who("10.0.0.11", 1), "KeyError: 1"),
        ("(WorkerDict pid=7) KeyError: 1", Who(), "KeyError: 1"),
        ("2026-01-01T10:00:00.123Z [rank2]: KeyError: 1", Who(None, 2), "KeyError: 1"),
        (
            "[2026-03-13 22:26:02] h1:12:13 [5] ibvwrap.c:262 NCCL WARN x",
            Who("h1", None, 5),
            "ibvwrap.c:262 NCCL WARN x",
        ),
        ("n48:34050:34121 [0] net_ib.cc:93 NCCL WARN y", Who("n48", None, 0), "net_ib.cc:93 NCCL WARN y"),
        ("Jan 02 10:00:01 node07 kernel: NVRM: Xid", Who("node07"), "NVRM: Xid"),
        ("[Sun Feb 23 16:24:18 2025] NVRM: Xid", Who(), "NVRM: Xid"),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: Xid", Who(), "NVRM: Xid"),
        ("i.pretrain/0 [rank4]: oh", Who(None, 4), "oh"),
        ("step 5: loss 1", Who(), "step 5: loss 1"),
        ("KeyError: 'x'", Who(), "KeyError: 'x'"),
        ("", Who(), ""),
    ],
)
def test_prefixes_are_taken_off(line: str, who: Who, text: str) -> None:
    assert PrefixReader([]).read(line) == (who, text)


def test_labels_of_srun_count_only_where_most_lines_have_them() -> None:
    labelled = [f"{n % 4}: step {n} loss 1" for n in range(20)] + ["2: KeyError: 'x'"]
    assert PrefixReader(labelled).read("2: KeyError: 'x'") == (Who(None, 2), "KeyError: 'x'")
    plain = ["step 1 loss 2"] * 20
    assert PrefixReader(plain).read("2: KeyError: 'x'") == (Who(), "2: KeyError: 'x'")


def test_labels_of_pods_name_their_node() -> None:
    sample = [f"worker-{n % 2}: line {n}" for n in range(20)]
    assert PrefixReader(sample).read("worker-1: KeyError: 'x'") == (Who("worker-1"), "KeyError: 'x'")


def test_the_logs_own_node_and_rank_stand_in() -> None:
    reader = PrefixReader([], node="n1", local_rank=3)
    assert reader.read("KeyError: 1") == (Who("n1", None, 3), "KeyError: 1")
    assert reader.read("[rank9]: KeyError: 1") == (Who("n1", 9), "KeyError: 1")


@pytest.mark.parametrize(
    ("line", "who", "text"),
    [
        ("(worker1, rank=1, pid=1987, ip=10.12.0.7) KeyError: 'x'", Who("10.12.0.7", 1), "KeyError: 'x'"),
        ("[1,mpirank:11,algo-2]<stderr>:KeyError: 'x'", Who(None, 11), "KeyError: 'x'"),
        ("[rank=3] KeyError: 'x'", Who(None, 3), "KeyError: 'x'"),
        ("[rank: 1] KeyError: 'x'", Who(None, 1), "KeyError: 'x'"),
        ("[local_rank=3] KeyError: 'x'", Who(), "[local_rank=3] KeyError: 'x'"),
        ("(the tank=3) KeyError: 'x'", Who(), "(the tank=3) KeyError: 'x'"),
    ],
)
def test_any_bracket_at_the_head_that_names_a_rank_is_a_prefix(line: str, who: Who, text: str) -> None:
    assert PrefixReader([]).read(line) == (who, text)
