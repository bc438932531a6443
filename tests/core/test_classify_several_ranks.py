"""Logs of several ranks together: who failed by himself, who only misses a peer, and who is named."""

from __future__ import annotations

import pytest

from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.faults import Diagnosis, FaultClass, Retry
from airflow_ft.diagnosis.signature_files import load_rules

UNREACHED = "[rank0]: tr:1:2 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2<50433> failed"
UNKNOWN_WORDS = "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'm.py', line 1\n[rank1]: BadShard: {}\n"
WORK = (
    "[rank{0}]:[E1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 milliseconds"
)


def diagnose(*texts: str) -> Diagnosis:
    logs = tuple(LogText(f"log{n}", text.encode()) for n, text in enumerate(texts))
    return classify(Facts(logs=logs, scheduler_in_log=True), load_rules())


def names(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(suspect.kind, suspect.name) for suspect in diagnosis.suspects]


def test_an_exception_outweighs_a_peer_that_could_not_be_reached_afterwards() -> None:
    found = diagnose(f"{UNREACHED}\n{UNKNOWN_WORDS.format('row 12')}")
    assert found.fault_class is FaultClass.APP_ERROR
    assert names(found) == [("rank", "1")]
    assert diagnose(UNREACHED).fault_class is FaultClass.NET_FABRIC


@pytest.mark.parametrize("words", ["peer is gone", "socket was closed", "waited for the other ranks", "NCCL aborted"])
def test_an_exception_about_others_outweighs_nothing(words: str) -> None:
    assert diagnose(f"{UNREACHED}\n{UNKNOWN_WORDS.format(words)}").fault_class is FaultClass.NET_FABRIC


def test_a_launcher_that_was_stopped_is_a_victim_of_the_exception_on_another_node() -> None:
    stopped = "{} | W0611 14:00:07 1 api.py:719] Received Signals.SIGTERM death signal, shutting down workers"
    raised = (
        "b | [rank9]: Traceback (most recent call last):\nb |   File 'x'\nb | [rank9]: AssertionError: loss is 812\n"
    )
    elsewhere = diagnose(f"{stopped.format('a')}\na | step 3\n{raised}{raised}")
    assert (elsewhere.fault_class, elsewhere.disruption) == (FaultClass.APP_ERROR, None)
    assert names(elsewhere) == [("rank", "9")]
    assert diagnose(f"{stopped.format('b')}\nb | step 3\n{raised}{raised}").disruption


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ([(0, 901, "A"), (1, 898, "A"), (2, 901, "A")], ["1"]),  # behind
        ([(0, 901, "A"), (1, 901, "B"), (2, 901, "A")], ["1"]),  # elsewhere at the same number
        ([(0, 901, "A"), (1, 904, "A"), (2, 901, "A")], []),  # ahead: it waits for the others
        ([(0, 901, "A"), (1, 898, "A")], []),  # one against one tells nothing
        ([(0, 901, "A"), (1, 898, "B"), (2, 50, "C")], []),  # groups of ranks count each for themselves
    ],
)
def test_who_waits_elsewhere_than_all_others_is_named(places: list[tuple[int, int, str]], named: list[str]) -> None:
    found = diagnose("\n".join(WORK.format(*place) for place in places))
    assert found.fault_class is FaultClass.COMM_HANG
    assert [name for _, name in names(found)] == named


def test_a_message_that_ends_in_a_colon_goes_on_in_the_next_line_of_its_writer() -> None:
    text = (
        "[h0] Barrier timed out. Some timed out task names:\n"
        "[h1] Barrier timed out. Some timed out task names:\n"
        "[h0] /job:jax_worker/replica:0/task:3\n"
        "[h1] /job:jax_worker/replica:0/task:3\n"
    )
    assert names(diagnose(text)) == [("rank", "3")]
    assert (
        diagnose("RuntimeError: \n\n    CUDA Setup failed despite GPU being available.\n").signature == "cuda.no_device"
    )


def test_a_gpus_number_and_a_ranks_are_one_process_where_both_tell_of_one_fault() -> None:
    found = diagnose(
        "hgx-04:2291:2610 [4] transport/p2p.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'\n"
        "[rank12]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    )
    assert ("rank", "12") in names(found)
    assert ("rank", "4") not in names(found)


def test_one_word_of_a_job_says_where_but_leaves_no_node_out() -> None:
    found = diagnose("[pod/w-3/main] RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    assert names(found) == [("address", "w-3")]
    assert found.suspect_nodes == ()


def test_a_retry_is_useless_only_on_good_evidence() -> None:
    full = "[rank0]: OSError: [Errno 28] No space left on device"
    assert diagnose(full).retry is Retry.USELESS
    assert diagnose("FileNotFoundError: [Errno 2] No such file or directory: '/x'").retry is Retry.UNKNOWN
    broken = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert diagnose(f"{full}\n{broken}").retry is Retry.UNKNOWN


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Rank 5 crashed with exit code -9.\nGlobal rank 0 (PID 811) exited with code -15", "5"),  # Composer
        ("[rank: 1] Child process with PID 8841 terminated with code -11.", "1"),  # Lightning
        (
            "-- Process 2 terminated with the following error:\nTraceback (most recent call last):\n  File\nOops: 1",
            "2",
        ),
    ],
)
def test_any_launcher_that_names_the_rank_that_ended(text: str, named: str) -> None:
    assert names(diagnose(text)) == [("rank", named)]


def test_the_place_of_an_actor_stands_beside_what_is_said_of_it() -> None:
    found = diagnose(
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
        "\tpid: 6420\n\tip: 10.72.56.3\nThe actor is dead because its node has died. Node Id: 677d\n"
    )
    assert ("address", "10.72.56.3") in names(found)


def test_an_abort_is_explained_by_what_the_process_said_before_it() -> None:
    said = "[rank1]: CUDA error: an illegal memory access was encountered\n"
    failed = "E0101 10:00:00 1 api.py:1] failed (exitcode: -6) local_rank: 1 (pid: 82) of binary: python\n"
    found = diagnose(f"[rank0]: step 3\n{said}{failed}")
    assert (found.fault_class, names(found)) == (FaultClass.APP_ERROR, [("rank", "1")])
    assert diagnose(f"[rank0]: step 3\n[rank1]: step 3\n{failed}").fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(("seen", "named"), [((0, 1), "1"), ((0, 9), None)])
def test_a_local_rank_is_the_rank_where_one_nodes_ranks_are_all_that_was_seen(
    seen: tuple[int, int], named: str | None
) -> None:
    lost = "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    left = "E0101 10:00:00 1 api.py:1] failed (exitcode: 44) local_rank: 1 (pid: 82) of binary: python"
    found = diagnose("\n".join([f"[rank{seen[0]}]: step 3", f"[rank{seen[1]}]: leaving", lost, left]))
    assert [name for kind, name in names(found) if kind == "rank"] == ([named] if named else [])


def test_numbers_at_all_lines_are_labels_where_one_comes_again() -> None:
    text = "18: OSError: [Errno 5] Input/output error\n18: bye\n17: step 3\n"
    assert names(diagnose(text)) == [("rank", "18")]
    assert names(diagnose(text.replace("18: bye", "19: bye"))) == [("rank", "18")]
    assert names(diagnose(text.replace("18: bye", "19: bye").replace("17", "22"))) == []  # a file's numbered lines


def test_a_launcher_knows_where_its_ranks_are() -> None:
    raised = "12: RuntimeError: stack expects each tensor to be equal size\n12: bye\n"
    found = diagnose(f"{raised}srun: error: gpu-07: task 12: Exited with exit code 1\n")
    assert found.root is not None
    assert (found.root.rank, found.root.node) == (12, "gpu-07")
    assert found.suspect_nodes == ()
    broken = raised.replace("stack expects each tensor to be equal size", "CUDA error: uncorrectable ECC error")
    found = diagnose(f"{broken}srun: error: gpu-07: task 12: Exited with exit code 1\n")
    assert names(found) == [("rank", "12"), ("address", "gpu-07")]
