"""Who is named: what launchers say of an end, a logger's head of its writer, and a message of its subject."""

from __future__ import annotations

import pytest

from airflow_ft.core.classify import Facts, LogText, classify
from airflow_ft.core.described_nodes import node_column
from airflow_ft.core.exit_lines import ExitLines
from airflow_ft.core.mentions import place_in, rank_in
from airflow_ft.core.prefixes import PrefixReader, Who
from airflow_ft.diagnosis.signature_files import load_rules


def ends(text: str) -> list[tuple[Who, int]]:
    reader = ExitLines(None)
    return [(end.who, end.code) for line in text.splitlines() if (end := reader.read(line)) is not None]


def suspects(text: str) -> list[tuple[str, str]]:
    found = classify(Facts(logs=(LogText("log", text.encode()),)), load_rules())
    return [(suspect.kind, suspect.name) for suspect in found.suspects]


@pytest.mark.row("P2")
@pytest.mark.parametrize(
    ("text", "who", "code"),
    [
        ("x31n0.example: rank 22 died from signal 11 and dumped core", Who("x31n0.example", 22), -11),
        ("_pmiu: [NID 00512] PE RANK 17 exit signal Killed", Who("00512", 17), -9),
        ("8s: flux-shell[1]: ERROR: task 9 (host n21): Segmentation fault", Who("n21", 9), -11),
        ("ERROR: One or more process (first noticed rank 12) terminated with signal 9", Who(None, 12), -9),
        ("Container rank 6 status failed cmd ['python', 't.py'] code 1 log workerlog.6", Who(None, 6), 1),
        ("ABORT!!! the trainer process with rank=[3] was aborted.", Who(None, 3), 1),
        ("MPI process (rank: 13, pid: 8812) terminated with signal 11 -> abort job", Who(None, 13), -11),
        ("['python', 't.py', '--local_rank=5'] exits with return code = -11", Who(None, None, 5), -11),
        ("launcher: worker 4 (pid 771) was killed by signal 9", Who(None, 4), -9),
        ("pdsh@head: worker2: ssh exited with exit code 255", Who("worker2"), 255),
        ("  Process name: [[4211,1],7]\n  Exit code:    44", Who(None, 7), 44),
        ("Process name: bert-1[3]\nExit code: 137", Who("bert-1", None, 3), 137),
        ("=   RANK 3 PID 41 RUNNING AT cn21\n=   KILLED BY SIGNAL: 9 (Killed)", Who("cn21", 3), -9),
    ],
)
def test_an_end_is_read_in_any_launchers_words(text: str, who: Who, code: int) -> None:
    assert ends(text) == [(who, code)]


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 exited",
        "rank 2: request failed with status 503",
        "signal 9 was sent",
        "Process name: bert-1[3]\n1\n2\n3\n4\nExit code: 137",  # too far below
    ],
)
def test_a_subject_without_its_end_tells_no_death(text: str) -> None:
    assert ends(text) == []


@pytest.mark.story("WAT-10")
@pytest.mark.parametrize(
    ("line", "who"),
    [
        ("10:00:01 [R12] KeyError: 1", Who(None, 12)),
        ("ERROR   | rank 6 | train:91 | KeyError: 1", Who(None, 6)),
        ("<node 2, local rank 3, global rank 19> KeyError: 1", Who(None, 19)),
        ("2025-05-05 10:00:00 rank=77 host=n19 KeyError: 1", Who("n19", 77)),
        ("[2025-06-01 10:03:12 TP5] KeyError: 1", Who(None, 5)),
        ("05/01/2024 10:00:04 [ERROR|DP=1|TP=3|ip-26-0-161-142]: KeyError: 1", Who("ip-26-0-161-142")),
        ("2023-10-11T15:44:49.000Z nid005:3 olmo.util:158 CRITICAL Uncaught KeyError: 1", Who("nid005", None, 3)),
        ("task.2.7xk3@gpu07    | KeyError: 1", Who("gpu07")),
        ('{"level": "error", "rank": 5, "host": "n7", "msg": "KeyError: 1"}', Who("n7", 5)),
        ('{"labels": {"node": "n7"}, "message": "Traceback (most recent call last):\\n x\\nKeyError: 1"}', Who("n7")),
        ('ts=1 level=error rank=13 host=n06 msg="KeyError: 1"', Who("n06", 13)),
        ("[error    ] KeyError: 1    rank=14 step=45", Who(None, 14)),
    ],
)
def test_a_loggers_head_tells_who_wrote_and_is_taken_off(line: str, who: Who) -> None:
    assert PrefixReader([]).read(line) == (who, "KeyError: 1")


@pytest.mark.parametrize(
    "line", ['{"rank": 5', '{"rank": 5}', "{}", '{"msg": {"rank": 1}}', "x | y | z", "a=1 b=2 msg="]
)
def test_what_is_no_record_stays_as_it_is(line: str) -> None:
    assert PrefixReader([]).read(line) == (Who(), line)


def test_the_members_of_a_job_label_their_lines() -> None:
    """Names that differ in their last number only, before every line."""
    lines = ["trainer-5 INFO ready", "trainer-6 MemoryError: 61 GiB"]
    assert PrefixReader(lines).read(lines[1]) == (Who("trainer-6"), "MemoryError: 61 GiB")
    steps = ["step-1 loss 2", "step-2 loss 1"]
    assert PrefixReader(steps).read(steps[0]) == (Who(), "step-1 loss 2")


def test_words_below_a_heading_are_the_ranks_of_the_heading() -> None:
    lines = "{}\nTraceback (most recent call last):\n  File 'x'\n{}KeyError: 'x'\n"
    assert suspects(lines.format("[Rank 2 Error Snippet]:", "")) == [("rank", "2")]
    assert suspects(lines.format("==> log/rank_3.err <==", "\n")) == [("rank", "3")]
    assert suspects(lines.format("---Begin global rank 10 STDERR---", "---End global rank 10 STDERR---\n")) == []


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("Unexpected result tensor(nan) on rank 88 at iteration 3", 88),
        ("Rank 5 is running a broadcast, but Rank 0 is running an allreduce", 5),
        ("CheckpointException ranks:dict_keys([12])", 12),
        ("Fault nodes are: [11]", 11),
        ("local rank 3 of peer rank 4", None),
        ("[pod/llm-worker-6] step", None),
    ],
)
def test_an_unsigned_message_names_the_rank_it_is_about(text: str, rank: int | None) -> None:
    assert rank_in(text) == rank


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Connection to gpu-node-3 closed by remote host.", "gpu-node-3"),
        ("Lost executor 3 on 10.139.64.21: worker lost", "10.139.64.21"),
        ("error: gn-112: prolog failed", "gn-112"),
        ("it ran on GPU3 at step 7 on device 2", None),
    ],
)
def test_an_unsigned_message_names_the_place_it_is_about(text: str, place: str | None) -> None:
    assert place_in(text) == place


def test_a_table_names_its_node_in_a_column() -> None:
    assert node_column(["JobID State   NodeList MaxRSS", "77    FAILED   gpu-a17   503K"]) == "gpu-a17"
    assert node_column(["REASON                TIME NODELIST", "NHC: gpu lost here   10:00 a100-17"]) == "a100-17"
    assert (
        node_column(["JobID State   NodeList MaxRSS", "77    FAILED   gpu-a17   5", "78    FAILED   gpu-a18   5"])
        is None
    )


def test_what_every_rank_says_is_nobodys_in_particular() -> None:
    line = "[rank{0}]: ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory\n"
    assert suspects("".join(map(line.format, range(4)))) == []
    assert suspects(line.format(2) + "[rank1]: step 3\n") == [("rank", "2")]


def test_the_kernel_names_the_device_and_its_user_the_rank() -> None:
    xid = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus.\n"
    assert suspects(f"[rank6]: torch.AcceleratorError: CUDA error: unspecified launch failure\n{xid}") == [
        ("gpu", "0000:c1:00"),
        ("rank", "6"),
    ]
