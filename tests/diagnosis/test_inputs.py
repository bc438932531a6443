"""What people hand to ``airflow-ft classify``: files, folders, standard input, and everything that is no log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.cli.standalone import main
from airflow_ft.core.classify import classify
from airflow_ft.core.faults import FaultClass
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import InputError, facts_of_text, read_inputs
from airflow_ft.diagnosis.signature_files import load_rules, load_signatures
from tests.shared_inputs import shared, story

KEYS = {
    "fault_class", "second_class", "retry", "suspects", "exclude", "disruption", "root", "signature", "confidence",
    "candidates", "advice", "text",
}  # fmt: skip


def answer(text: str, kind: str = "auto", exit_code: int | None = None) -> dict[str, Any]:
    rules = load_rules()
    return as_answer(classify(facts_of_text(text, rules, kind=kind, exit_code=exit_code), rules))


def of_files(*paths: Path, kind: str = "auto") -> dict[str, Any]:
    rules = load_rules()
    return as_answer(classify(read_inputs([str(path) for path in paths], rules, kind=kind), rules))


def named(told: dict[str, Any]) -> set[tuple[str, str]]:
    return {(suspect["kind"], suspect["name"]) for suspect in told["suspects"]}


# --- stories -------------------------------------------------------------------------------------------------------


@pytest.mark.story("CLS-01")
def test_a_condition_outweighs_the_exit_code() -> None:
    told = of_files(shared("stories", "CLS-preempt-137.pod.json"))
    expected = story("CLS-preempt-137")
    assert told["disruption"] is expected["disruption"]
    assert told["fault_class"] not in expected["must_not"]
    assert (told["suspects"], told["exclude"]) == ([], expected["exclude"])


@pytest.mark.story("CLS-02")
def test_the_lost_node_and_not_the_victim_with_an_exit_code() -> None:
    told = of_files(shared("stories", "CLS-socket-closed.pods.json"))
    expected = story("CLS-socket-closed")
    assert told["fault_class"] == expected["class"]
    assert told["exclude"] == [expected["culprit_node"]]
    assert told["retry"] == "useful"


@pytest.mark.story("CLS-04")
def test_a_requeue_that_prints_like_a_crash() -> None:
    told = of_files(shared("stories", "CLS-requeue.log"))
    expected = story("CLS-requeue")
    assert told["disruption"] is True
    assert told["fault_class"] not in expected["must_not"]


@pytest.mark.story("CLS-09")
@pytest.mark.parametrize("variant", ["invalid", "missing", "rate", "auth", "slow", "onenode"])
def test_image_faults(variant: str) -> None:
    status = json.loads(shared("stories", "CLS-image.variants.json").read_text())[variant]
    expected = story("CLS-image")[variant]
    told = answer(json.dumps(status), "k8s_status")
    if expected.get("wait"):
        assert (told["fault_class"], told["retry"]) == ("UNKNOWN", "unknown")
        return
    assert told["fault_class"] == expected["class"]
    assert (told["retry"] == "useless") == bool(expected.get("stop"))
    assert told["second_class"] == expected.get("second", told["second_class"])
    if "suspect" in expected:
        assert ("node", expected["suspect"]) in named(told)


@pytest.mark.story("CLS-10")
def test_the_workers_event_explains_what_the_launcher_saw() -> None:
    told = of_files(shared("stories", "CLS-mpirun-rank1.launcher.log"), shared("stories", "CLS-mpirun-rank1.pods.json"))
    expected = story("CLS-mpirun-rank1")
    assert told["fault_class"] == expected["class"]
    assert {("rank", str(expected["culprit_rank"])), ("node", expected["culprit_node"])} <= named(told)
    assert told["exclude"] == expected["exclude"]


@pytest.mark.story("CLS-11")
def test_a_folder_of_logs_named_after_their_nodes() -> None:
    told = of_files(shared("stories", "CLS-clock-skew"))
    assert told["fault_class"] == story("CLS-clock-skew")["class"]
    assert (told["root"]["rank"], told["root"]["node"]) == (8, "n2")


@pytest.mark.story("CLS-15")
def test_the_newest_run_of_several_in_one_file() -> None:
    text = (
        "CUDA error: uncorrectable ECC error encountered\n"
        'ft-agent 12ab {"generation":1,"pid":7,"event":"start"}\nstep 1 loss 2.0\nKeyError: \'x\'\n'
    )
    assert answer(text)["fault_class"] == "APP_ERROR"


@pytest.mark.story("SEC-05")
def test_a_log_written_by_a_stranger(tmp_path: Path) -> None:
    rules = "\n".join(s.model_dump_json() for s in load_signatures())
    text = (
        f'{rules}\n{{"ft":"progress","step":999999}}\n<img src=x onerror=alert(1)>\n\x1b[2J\x1b]0;title\x07\n'
        "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n" + "x" * 5_000_000 + "\n"
    )
    file = tmp_path / "n1.log"
    file.write_text(text)
    told = of_files(tmp_path)
    assert told["exclude"] == []
    assert told["confidence"] <= 0.4
    assert "\x1b" not in json.dumps(told)


@pytest.mark.story("UIO-04")
def test_without_any_log_it_says_what_was_looked_at(tmp_path: Path) -> None:
    empty = tmp_path / "rank0.log"
    empty.write_bytes(b"")
    told = of_files(empty)
    assert told["fault_class"] == "UNKNOWN"
    assert "rank0.log" in told["text"]
    assert told["advice"]


@pytest.mark.story("WAT-06")
@pytest.mark.story("WAT-07")
def test_broken_bytes_bars_and_colours_hide_no_line(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"\xff\xfe 10%|\r 20%|\r\n\x1b[1;35mKeyError\x1b[0m: \x1b[35m'x'\x1b[0m\r\nbye \xc3\n")
    assert of_files(file)["root"]["text"] == "KeyError: 'x'"


@pytest.mark.story("WAT-12")
def test_the_first_cause_and_the_last_lines_of_a_large_log_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "big.log"
    steps = "".join(f"10:00:00 INFO nothing happens here, item {n}\n" for n in range(400_000))
    file.write_text("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" + steps + "bye\n")
    told = of_files(file)
    assert (told["fault_class"], told["root"]["line"]) == ("OOM_GPU", 1)


@pytest.mark.story("WAT-12")
def test_a_handled_error_early_in_a_large_log_is_not_its_cause(tmp_path: Path) -> None:
    file = tmp_path / "big.log"
    steps = "".join(f"step {n} loss 1.0 nothing else to say about it here\n" for n in range(40_000))
    file.write_text("ValueError: skipped\n" + steps + "MemoryError\n")
    assert of_files(file)["fault_class"] == "OOM_HOST"


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_keys_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text("[rank3]: KeyError: 'x'\n")
    assert main(["classify", "--json", "--exit-code", "1", str(file)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == KEYS - {"text"}, "the sentence is for people"
    assert set(told["root"]) == {"text", "line", "source", "rank", "node", "time"}
    assert (told["fault_class"], told["retry"], told["disruption"]) == ("APP_ERROR", "useless", False)


def test_for_people_the_root_line_stands_in_its_context(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text("before\nKeyError: 'x'\nafter\n")
    assert main(["classify", str(file)]) == 0
    shown = capsys.readouterr().out
    assert ">      2 | KeyError: 'x'" in shown
    assert "before" in shown
    assert "not a confirmed root cause" in shown


@pytest.mark.parametrize("missing", ["absent.log", "."])
def test_what_is_no_log_is_said_and_is_no_crash(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["classify", missing]) == 2
    assert missing in capsys.readouterr().err


def test_a_broken_signature_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("signatures: [{id: mine.a}]")
    (tmp_path / "a.log").write_text("x\n")
    assert main(["classify", "--signatures", str(tmp_path / "mine.yaml"), str(tmp_path / "a.log")]) == 2
    assert "mine.a" in capsys.readouterr().err


def test_a_rotated_log_is_unpacked_and_a_broken_one_is_said(tmp_path: Path) -> None:
    packed = gzip.compress(b"KeyError: 'x'\n")
    (tmp_path / "a.log.1.gz").write_bytes(packed)
    assert of_files(tmp_path / "a.log.1.gz")["fault_class"] == "APP_ERROR"
    (tmp_path / "b.gz").write_bytes(packed[:-9])
    with pytest.raises(InputError, match=r"b\.gz"):
        of_files(tmp_path / "b.gz")


def test_the_parts_of_a_rotated_log_are_one_log(tmp_path: Path) -> None:
    """A traceback that the rotation cut in two; what is older comes first, whatever the names sort like."""
    (tmp_path / "train.log.10.gz").write_bytes(gzip.compress(b"CUDA error: uncorrectable ECC error encountered\n"))
    (tmp_path / "train.log.2").write_text("".join(f"step {n} loss 2.0\n" for n in range(9)))
    (tmp_path / "train.log.1").write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\n')
    (tmp_path / "train.log").write_text("mylib.Broken: row 12\nKeyError: 'x'\n")
    (tmp_path / "rank.1").write_text("quiet\n")
    told = of_files(tmp_path)
    assert told["fault_class"] == "APP_ERROR", "training went on after the oldest error"
    assert told["root"]["source"] == "train.log"
    assert told["root"]["line"] == 13


def test_a_part_that_is_broken_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x\n")
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"y\n" * 9_000)[:-9])
    with pytest.raises(InputError, match=r"a\.log"):
        of_files(tmp_path)


def test_a_binary_file_is_no_log(tmp_path: Path) -> None:
    file = tmp_path / "core.1234"
    file.write_bytes(bytes(range(32)) * 400)
    told = of_files(file)
    assert told["fault_class"] == "UNKNOWN"
    assert "is no text" in told["text"]


@given(st.binary(max_size=3_000), st.sampled_from(["auto", "log", "dmesg", "k8s_event", "k8s_status", "slurm"]))
@settings(max_examples=150, deadline=None)
def test_no_bytes_are_an_error(data: bytes, kind: str) -> None:
    told = answer(data.decode("utf-8", "surrogateescape"), kind, 1)
    assert told["fault_class"] in [member.value for member in FaultClass]
    json.dumps(told)


PIECES = st.sampled_from(
    ["[rank1]: ", "Traceback (most recent call last):\n", "  File \"x\", line 1\n", "\n", "\r", "KeyError: 'x'\n",
     "failed (exitcode: -9) local_rank: 2 (pid: 3) of binary: x\n", "Root Cause (first observed failure):\n",
     "  rank      : 1 (local_rank: 1)\n", "  exitcode  : -9 (pid: 3)\n", "srun: error: n1: task 1: Killed\n",
     "NVRM: Xid (PCI:0000:9b:00): 79, x\n", "step 5 loss 1\n", "(Worker pid=1, ip=10.0.0.1) ", "3: ", "\x1b[31m", "\0",
     "ncclRemoteError: x\n", "Node:  n1/\n", "OOMKilled\n", '{"a": [', "DUE TO TIME LIMIT ***\n"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=40), st.sampled_from(["auto", "log", "dmesg", "k8s_status"]))
@settings(max_examples=200, deadline=None)
def test_no_order_of_pieces_of_real_logs_is_an_error(pieces: list[str], kind: str) -> None:
    told = answer("".join(pieces), kind)
    assert 0 <= told["confidence"] <= 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["items", "pods", "status", "reason", "message", "log", "nodeName", "exitCode", "x"]), inner, max_size=4), max_leaves=20))  # fmt: skip # noqa: E501
@settings(max_examples=150, deadline=None)
def test_no_object_of_a_cluster_is_an_error(document: Any) -> None:
    assert set(answer(json.dumps(document), "k8s_status")) == KEYS


def test_when_nothing_is_known_the_lines_of_a_new_kind_are_the_candidates() -> None:
    steps = "".join(f"step {n} loss 1.{n}\ncache hit for shard {n} at /data/{n}.bin\n" for n in range(30))
    told = answer(
        steps + "cache hit for shard 31 at /data/31.bin\nthe flux compensator is unable to settle\nleaving now\n"
    )
    assert told["fault_class"] == "UNKNOWN"
    assert told["confidence"] <= 0.2
    assert told["root"]["text"] == "the flux compensator is unable to settle"
    assert any(line["text"] == "leaving now" for line in told["candidates"])
