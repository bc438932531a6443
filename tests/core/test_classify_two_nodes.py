"""Who began it, when every node's launcher calls one of its own ranks the root cause."""

from __future__ import annotations

import pytest

from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.faults import Diagnosis, FaultClass
from airflow_ft.diagnosis.signature_files import load_rules

CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error "
    "[127.0.1.102]:55474: Connection reset by peer."
)
WATCHDOG = "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, Timeout(ms)=600)"
ABORTED = "[default{local}]:terminate called without an active exception\n[default{local}]:Fatal Python error: Aborted"
NAMES = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}


def said(line: str, rank: int) -> str:
    """What torch prints for an exception that nobody caught."""
    head = f"[default{rank % 2}]:[rank{rank}]: "
    return f"{head}Traceback (most recent call last):\n{head}{line.format(rank=rank)}"


def summary(*ends: tuple[int, int], at: str = "19:56:55", told: tuple[int, ...] = ()) -> str:
    """What torchrun prints: the (rank, code) pairs, the first of which it calls the root cause."""
    lines = [f"W1129 api.py:1028] Sending process {900 + rank} closing signal SIGTERM" for rank in told]
    (rank, code), *_ = ends
    lines.append(
        f"E1129 api.py:1002] failed (exitcode: {code}) local_rank: {rank % 2} (pid: {900 + rank}) of binary: x"
    )
    blocks = [("Failures:", ends[1:]), ("Root Cause (first observed failure):", ends[:1])]
    for header, listed in blocks:
        lines.append(header)
        for rank, code in listed:
            lines += [
                f"  time      : 2026-11-29_{at}",
                f"  rank      : {rank} (local_rank: {rank % 2})",
                f"  exitcode  : {code} (pid: {900 + rank})  ({NAMES.get(code, '')})",
            ]
    return "\n".join(lines)


def diagnose(n1: list[str], n2: list[str], order: tuple[int, ...] = (0, 1)) -> Diagnosis:
    logs = [LogText(f"n{i}/output", "\n".join(text).encode(), f"n{i}") for i, text in ((1, n1), (2, n2))]
    facts = Facts(logs=tuple(logs[i] for i in order), nodes=("n1", "n2"), first_step_seen=True)
    return classify(facts, load_rules())


KILLED = [summary((3, -9), (2, -15), told=(902,))]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("told", [(), (1,)], ids=["noticed by its launcher", "told to end"])
def test_who_aborts_after_losing_a_peer_is_a_victim_of_the_silent_killed_rank(
    order: tuple[int, ...], told: tuple[int, ...]
) -> None:
    n1 = [said(CLOSED, 0), said(CLOSED, 1), ABORTED.format(local=1), summary((1, -6), (0, 1), told=told)]
    diagnosis = diagnose(n1, KILLED, order)
    assert diagnosis.text == "Rank 3 on n2 was killed by SIGKILL."
    assert [suspect.name for suspect in diagnosis.suspects] == ["3"]


def test_who_aborts_after_its_launcher_told_it_to_end_is_a_victim_though_it_said_nothing() -> None:
    n1 = [said(CLOSED, 0), ABORTED.format(local=1), summary((1, -6), (0, 1), told=(1,))]
    assert diagnose(n1, KILLED).text == "Rank 3 on n2 was killed by SIGKILL."


@pytest.mark.parametrize("code", [-6, -9, -11])
def test_a_signal_after_a_lost_peer_is_less_than_one_out_of_the_blue(code: int) -> None:
    n1 = [said(CLOSED, 0), said(CLOSED, 1), summary((1, code), (0, 1))]
    n2 = [said(CLOSED, 2), summary((3, -11), (2, 1), at="19:57:30")]
    assert diagnose(n1, n2).text.startswith("Rank 3 on n2 crashed with SIGSEGV"), "even if it was noticed later"


def test_a_root_of_its_own_outweighs_the_abort_that_follows_it() -> None:
    n1 = [said("CUDA error: device-side assert triggered", 1), ABORTED.format(local=1), summary((1, -6), told=(1,))]
    diagnosis = diagnose(n1, [said(CLOSED, 2), said(CLOSED, 3), summary((2, 1), (3, 1))])
    assert diagnosis.root is not None
    assert diagnosis.root.rank == 1


def test_when_all_that_aborted_had_lost_a_peer_the_lost_peer_is_what_is_told() -> None:
    n1 = [said(WATCHDOG, 0), said(WATCHDOG, 1), summary((0, -6), (1, -6))]
    n2 = [said(WATCHDOG, 2), "[default1]:step 7", summary((2, -6), (3, -15), told=(3,))]
    diagnosis = diagnose(n1, n2)
    assert diagnosis.fault_class is FaultClass.COMM_HANG
    assert [suspect.name for suspect in diagnosis.suspects] == ["3"], "the one that never said so"


@pytest.mark.parametrize(("at", "rank"), [("19:56:54", 0), ("19:56:57", 0), ("19:56:52", 2)])
def test_times_decide_between_equals_only_beyond_a_second(at: str, rank: int) -> None:
    diagnosis = diagnose([summary((0, -9), at="19:56:55")], [summary((2, -9), at=at)])
    assert diagnosis.text.startswith(f"Rank {rank} ")
