"""What torch looks at: pure verdicts, its process that may crash, and real gloo between real processes.

NCCL needs two machines with GPUs: its path is the same code with another backend's name, and has never run here.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import preflight, preflight_child, preflight_torch
from airflow_ft.agent import preflight_folder as folder
from airflow_ft.agent import preflight_torch_verdict as verdict
from airflow_ft.agent.preflight_comm import Pair
from airflow_ft.agent.preflight_result import Result, read
from airflow_ft.backends.agent_archive import build_agent_archive

pytestmark = [pytest.mark.row("S3"), pytest.mark.row("M8")]
NAMES = ["n1", "n2", "n3", "n4"]
TORCH = importlib.util.find_spec("torch") is not None


def told(**more: dict[str, Any]) -> dict[str, Any]:
    """What each of four nodes says after all went well."""
    found: dict[str, Any] = {}
    for name in NAMES:
        pairs = [list(Pair(name, other, 50.0, 1000.0)) for other in NAMES if other != name]
        found[name] = {"pairs": pairs, "together": "", "value": "4 nodes, 50 us, 1000 MB/s", **more.get(name, {})}
    return found


def verdicts(said: dict[str, Any], backend: str = "gloo", **more: Any) -> dict[tuple[str, str], Result]:
    return {(me, one.item): one for me in NAMES for one in verdict.judge(said, NAMES, me, backend, "", **more)}


def failing(found: dict[tuple[str, str], Result]) -> list[tuple[str, str]]:
    return [key for key, one in found.items() if one.status == "failed"]


# --- verdicts ----------------------------------------------------------------------------------------------------


def wrong(said: dict[str, Any], me: str, others: list[str]) -> None:
    for pair in said[me]["pairs"]:
        if pair[1] in others:
            pair[4] = "1 of 256 sums are wrong: 7 is 25 instead of 24"


def test_who_sees_wrong_sums_with_everybody_is_bad_alone() -> None:
    """Only its own side is wrong: the partners' sums are right, and both words are about one pair."""
    said = told()
    wrong(said, "n3", ["n1", "n2", "n4"])
    said["n3"]["together"] = "1 of 256 sums are wrong: 7 is 81 instead of 80"
    found = verdicts(said)
    assert failing(found) == [("n3", "allreduce")]
    assert found["n3", "allreduce"].value.startswith("gloo: 3 of 3 partners fail: 1 of 256 sums are wrong")
    assert found["n1", "allreduce"].value == "gloo: 2 pairs, 50 us, 1000 MB/s"


def test_a_sum_that_is_wrong_between_two_nodes_only_is_their_links() -> None:
    said = told()
    wrong(said, "n2", ["n4"])
    found = verdicts(said)
    assert failing(found) == [("n2", "allreduce"), ("n4", "allreduce")]
    assert found["n2", "allreduce"].peer == "n4" and found["n4", "allreduce"].peer == "n2"


def test_a_sum_that_is_wrong_with_all_together_only_is_said_by_whom_it_is_wrong_for() -> None:
    assert failing(verdicts(told(n1={"together": "12 of 256 sums are wrong"}))) == [("n1", "allreduce together")]


def test_what_torch_can_not_do_on_one_node_is_skipped_on_all_with_the_reason() -> None:
    said = {name: {"pairs": [], "skipped": "n2 did not come"} for name in NAMES}
    said["n2"]["skipped"] = "no answer in time"
    found = verdicts(said)
    assert {one.status for one in found.values()} == {"skipped"}
    assert "did not come" in found["n1", "allreduce"].value


def test_slow_pairs_of_nodes_on_one_machine_mean_nothing() -> None:
    said = told()
    for name in NAMES:
        for pair in said[name]["pairs"]:
            pair[3] = 50.0 if "n4" in (name, pair[1]) else pair[3]
    assert failing(verdicts(said)) == [("n4", "allreduce")]
    assert failing(verdicts(said, shared=True)) == []


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["cuda"] * 4, ("nccl", "")),
        (["cuda", "cuda", "cpu", "cuda"], ("gloo", "")),
        (["cpu"] * 4, ("gloo", "")),
        (["cpu", "", "cpu", "cpu"], ("", "n2: torch can't be imported here")),
    ],
)
def test_the_backend_is_the_one_that_all_nodes_have(devices: list[str], expected: tuple[str, str]) -> None:
    facts = [{"device": device, "why": "" if device else "torch can't be imported here"} for device in devices]
    known: dict[str, Any] = dict(zip(NAMES, ({"pairs": [], "facts": one} for one in facts), strict=True))
    assert verdict.backend_of(known, NAMES) == expected
    known["n1"]["pairs"] = [list(Pair("n1", "n2", error="timed out"))]
    assert verdict.backend_of(known, NAMES)[0] == "", "what is broken already isn't waited for once more"


# --- GPUs --------------------------------------------------------------------------------------------------------


def gpus(*speeds: list[float]) -> dict[str, Any]:
    return {"speed": list(speeds)}


GOOD = [700.0, 4000.0, 55.0]


def test_a_gpu_that_is_slower_than_the_pools_median_is_named_with_what_is_slow() -> None:
    said = told(n1=gpus(GOOD, GOOD), n2=gpus(GOOD, [340.0, 4000.0, 55.0]), n3=gpus(GOOD, GOOD), n4=gpus(GOOD, GOOD))
    found = verdicts(said, "nccl")
    assert failing(found) == [("n2", "gpu-speed")]
    slow = found["n2", "gpu-speed"]
    assert slow.value == "GPU 1: a product of matrices 340 TFLOP/s, 49 % of the median"
    assert slow.need == ">= 80 %/80 %/60 % of the median of 8 GPUs" and "straggler" in slow.advice
    assert slow.line().startswith("item=gpu-speed status=failed value=GPU 1: a product")


@pytest.mark.parametrize(("kind", "value"), [(1, "its memory"), (2, "copies from the host")])
def test_memory_and_copies_from_the_host_count_too(kind: int, value: str) -> None:
    slow = list(GOOD)
    slow[kind] /= 2
    found = verdict.gpu_speed({"n1": gpus(GOOD, GOOD, slow)}, "n1", "")
    assert found.status == "failed" and value in found.value


def test_two_gpus_are_told_and_not_compared_and_none_is_skipped_with_the_reason() -> None:
    assert verdict.gpu_speed({"n1": gpus(GOOD, [1.0, 1.0, 1.0])}, "n1", "").status == "ok"
    none = verdict.gpu_speed({}, "n1", "torch can't be imported here")
    assert (none.status, none.value) == ("skipped", "torch can't be imported here")


@pytest.mark.skipif(not TORCH, reason="torch is not installed")
@pytest.mark.timeout(300)
def test_the_speeds_are_right_in_size_on_a_cpu() -> None:
    """On a GPU only the device and the sizes are others: work over time, in the units that are told."""
    torch = __import__("torch")
    began = time.perf_counter()
    teraflops, memory, copies = preflight_torch.speed(torch, "cpu", size=64)
    assert teraflops > 0 and 2 * 64**3 / (teraflops * 1e12) < time.perf_counter() - began
    assert memory > 0 and copies > 0


# --- its process -------------------------------------------------------------------------------------------------


def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, seconds: float = 60.0) -> dict[str, Any]:
    """What is known of a process that does ``body`` instead of torch's part."""
    program = tmp_path / "double.pyz"
    program.write_text("import json, os, sys\n" + textwrap.dedent(body))
    monkeypatch.setattr(sys, "argv", [str(program)])
    return preflight_child.Child({}).ended(time.monotonic() + seconds, "n1")


def test_a_process_that_crashes_in_a_pair_is_an_error_of_that_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As NCCL does it: by a signal, in the middle."""
    body = """
        print("NCCL INFO some words of a library")
        print(json.dumps({"pair": ["n1", "n3", 5.0, 100.0, "", 0.0]}))
        print(json.dumps({"at": "n2"}), flush=True)
        os.abort()
    """
    found = child(monkeypatch, tmp_path, body)
    assert found["pairs"] == [
        ["n1", "n3", 5.0, 100.0, "", 0.0],
        ["n1", "n2", 0.0, 0.0, "torch's process ended with code -6", 0.0],
    ]


def test_a_process_that_hangs_is_killed_and_what_it_was_at_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = """
        print(json.dumps({"at": "all nodes"}), flush=True)
        import time
        time.sleep(300)
    """
    assert child(monkeypatch, tmp_path, body, 8.0)["together"] == "no answer in time"


def test_a_process_that_never_came_so_far_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "ended with code 3" in child(monkeypatch, tmp_path, "sys.exit(3)")["skipped"]


@pytest.mark.parametrize(
    ("gpu", "deep", "shared", "expected"),
    [(True, False, False, "cuda"), (True, True, True, "cpu"), (False, True, False, "cpu"), (False, False, False, "")],
)
def test_torch_is_started_where_it_tells_something_that_sockets_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: bool, deep: bool, shared: bool, expected: str
) -> None:
    device = tmp_path / "nvidia0"
    device.write_text("")
    monkeypatch.setattr(preflight_child, "GPU_FILES", (str(device),) if gpu else ())
    monkeypatch.setattr(preflight_child.importlib.util, "find_spec", lambda name: name)
    found, why = preflight_child.torch_device(deep, shared)
    assert found == expected and bool(why) is not bool(found)
    monkeypatch.setattr(preflight_child.importlib.util, "find_spec", lambda name: None)
    assert preflight_child.torch_device(deep, shared) == ("", "torch can't be imported here")


# --- one folder for checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_folder_that_is_another_one_on_one_node_is_found(tmp_path: Path) -> None:
    marks = [folder.Mark(str(tmp_path / ("own" if name == "n3" else "shared")), name) for name in NAMES]
    assert not any(mark.name for mark in marks), "a folder that isn't there is another item's matter"
    for name in ("own", "shared"):
        (tmp_path / name).mkdir()
    marks = [folder.Mark(str(tmp_path / ("own" if name == "n3" else "shared")), name) for name in NAMES]
    names = {name: mark.name for name, mark in zip(NAMES, marks, strict=True)}
    seen = {name: mark.sees(names) for name, mark in zip(NAMES, marks, strict=True)}
    found = {name: folder.judge(names, seen, name) for name in NAMES}
    assert [name for name, one in found.items() if one.status == "failed"] == ["n3"]
    assert found["n3"].value == "files of n1, n2, n4 are not here"
    for mark in marks:
        mark.remove()
    assert list((tmp_path / "own").iterdir()) == list((tmp_path / "shared").iterdir()) == []


def test_a_folder_of_each_nodes_own_is_meant_to_be_one(tmp_path: Path) -> None:
    marks = {name: folder.Mark(str(tmp_path / "{node}"), name).name for name in NAMES}
    assert folder.judge(marks, {}, "n1").status == "skipped"


# --- real gloo ---------------------------------------------------------------------------------------------------

# Whatever this node's all-reduce comes to, one number of it is changed: bad memory, a bad network card.
CORRUPTING = """
import sys

if "torch" in getattr(sys, "orig_argv", ()):
    import torch.distributed as nodes

    right = nodes.all_reduce

    def all_reduce(vector, *more, **options):
        right(vector, *more, **options)
        vector[7] += 1

    nodes.all_reduce = all_reduce
"""
OFF = ["cpu-speed", "xid", "memory-free", "disk-size root", "disk-size shm", "disk-free root"]


def looked(tmp_path: Path, env: dict[int, dict[str, str]]) -> tuple[list[int], dict[tuple[str, str], Result]]:
    """Three nodes look at each other, deep; each node's exit code and items."""
    archive, peers = build_agent_archive(tmp_path), [[f"n{n}", f"127.0.11.{n}", 21031] for n in (1, 2, 3)]
    (tmp_path / "checkpoints").mkdir()
    runs = []
    for rank, (name, *_) in enumerate(peers):
        (tmp_path / str(name)).mkdir()
        config = {"set": "deep", "skip": OFF, "node": name, "peers": peers, "rank": rank, "seconds": 400}
        config |= {"shared": True, "checkpoints": str(tmp_path / "checkpoints")}
        command = [sys.executable, archive, "preflight", "--dir", tmp_path / str(name), "--config", json.dumps(config)]
        runs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env.get(rank)))
    codes = [run.wait(450) for run in runs]
    found = {}
    for name, *_ in peers:
        items = json.loads((tmp_path / str(name) / "preflight.json").read_text())["items"]
        found |= {(str(name), one.item): one for one in map(read, items) if one}
    return codes, found


@pytest.mark.skipif(not TORCH, reason="torch is not installed")
@pytest.mark.timeout(500)
def test_a_node_whose_sums_are_wrong_is_named_over_real_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair without it adds up; whoever is left is not blamed for what all together come to."""
    import os

    (tmp_path / "corrupting").mkdir()
    (tmp_path / "corrupting" / "sitecustomize.py").write_text(CORRUPTING)
    env = {2: {**os.environ, "PYTHONPATH": str(tmp_path / "corrupting")}}
    codes, found = looked(tmp_path, env)
    assert codes == [0, 0, 78], found
    assert failing(found) == [("n3", "allreduce")]
    assert "2 of 2 partners fail: 1 of 256 sums are wrong: 7 is" in found["n3", "allreduce"].value
    assert found["n1", "allreduce"].value.startswith("gloo: 1 pairs, ")
    assert found["n1", "allreduce together"].value.startswith("3 nodes, "), "its own sums are right"
    assert found["n3", "allreduce together"].status == "skipped", "told already"
    assert found["n1", "checkpoint shared"].value == "shared with 2 nodes"
    assert found["n1", "gpu-speed"].status == "skipped"
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert preflight.SETS[-1] == "deep"
