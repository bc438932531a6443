"""``airflow-ft bisect`` and ``airflow-ft preflight``, on real probe jobs of the local backend."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.backends.local import inventory
from airflow_ft.cli.definition import get_cli_commands
from airflow_ft.cli.standalone import main

Output = pytest.CaptureFixture[str]
# What this machine happens to be is no matter of these tests.
QUIET = [f"--skip={item}" for item in ("disk-size root", "disk-size shm", "disk-free root", "memory-free", "xid")]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "root")
    assert open_jobs(str(tmp_path / "root")) == [], "probe jobs are left"


def open_jobs(root: str) -> list[str]:
    return [job.name for job in inventory.list_jobs(root) if not job.closed]


# --- bisect ------------------------------------------------------------------------------------------------------


@pytest.mark.row("S4")
@pytest.mark.row("P6")
def test_bisect_names_the_bad_node_and_says_how_it_goes(root: str, capsys: Output) -> None:
    status = main(["bisect", "--root", root, "--json", "--", "sh", "-c", "test $FT_NODE != n2"])
    said = capsys.readouterr()
    assert status == 1
    assert json.loads(said.out)["faulty_nodes"] == ["n2"]
    assert "Bisect, round 1: n1, n2, n3, n4 failed. Suspects left: n1, n2, n3, n4." in said.err


def test_bisect_of_good_nodes_finds_nothing(root: str, capsys: Output) -> None:
    assert main(["bisect", "--root", root, "--nodes", "n2,n4", "--", "true"]) == 0
    assert "nothing found, confidence" in capsys.readouterr().out
    assert {job.nodes for job in inventory.list_jobs(root)} == {("n2", "n4")}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--nodes", "n1,n9"], "n9 not in service. In service are n1, n2, n3, n4."),
        (["--nodes", "n1"], "nodes: 1 given, a test needs 2"),
        (["--backend", "kubernetes"], "is not allowed here. Give local, or use an operator."),
        (["--backend", "nowhere"], "Known are: foreign, kubernetes, local."),
        (["--group-min", "0", "--seconds", "-1"], "seconds: -1.0 is not allowed"),
    ],
)
def test_bisect_says_what_is_wrong_with_its_arguments(root: str, capsys: Output, given: list[str], told: str) -> None:
    assert main(["bisect", "--root", root, *given, "--", "true"]) == 2
    assert told in capsys.readouterr().err


def test_bisect_that_is_interrupted_leaves_nothing_behind(root: str) -> None:
    code = "import sys; from airflow_ft.cli.standalone import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bisect", "--root", root, "--", "sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as search:
        deadline = time.monotonic() + 60
        while not any(job.nodes for job in inventory.list_jobs(root)):
            assert time.monotonic() < deadline, "no test was started"
            time.sleep(0.05)
        search.send_signal(signal.SIGINT)
        _, errors = search.communicate(timeout=60)
    assert search.returncode == 130, errors
    assert open_jobs(root) == []


def test_airflow_has_the_same_command() -> None:
    (group,) = get_cli_commands()
    assert "bisect" in {command.name for command in group.subcommands}


# --- preflight ---------------------------------------------------------------------------------------------------


@pytest.mark.row("S3")
@pytest.mark.row("M8")
def test_preflight_looks_at_this_machine(capsys: Output) -> None:
    assert main(["preflight", "--set", "quick", *QUIET]) == 0
    assert "checkpoint" in capsys.readouterr().out
    assert main(["preflight", "--set", "quick", "--need", "memory-free=99999", "--json"]) == 78
    (items,) = json.loads(capsys.readouterr().out)["nodes"].values()
    (memory,) = (one for one in items if one["item"] == "memory-free")
    assert (memory["status"], memory["need"]) == ("failed", "> 99999 GB")


@pytest.mark.row("M9")
def test_preflight_of_nodes_names_the_bad_one(root: str, tmp_path: Path, capsys: Output) -> None:
    for node in ("n1", "n3"):
        (tmp_path / "saved" / node).mkdir(parents=True)
    (tmp_path / "saved" / "n2").write_text("a file where the folder should be")
    where = ["--backend", "local", "--root", root, "--nodes", "n1,n2,n3"]
    told = [*where, *QUIET, "--checkpoints", str(tmp_path / "saved" / "{node}"), "--json"]
    assert main(["preflight", *told]) == 78
    found = json.loads(capsys.readouterr().out)
    assert found["bad_nodes"] == ["n2"]
    assert found["untested"] == {}
    status = {node: {one["item"]: one["status"] for one in items} for node, items in found["nodes"].items()}
    assert [status[node]["checkpoint"] for node in ("n1", "n2", "n3")] == ["ok", "failed", "ok"]
    assert {status[node]["comm together"] for node in status} == {"ok"}, "what nodes do together was looked at"


def test_preflight_says_what_is_wrong_with_its_arguments(capsys: Output) -> None:
    assert main(["preflight", "--need", "memory-free=much", "--set", "quick"]) == 2
    assert main(["preflight", "--nodes", "n1"]) == 2
    said = capsys.readouterr().err
    assert "need: 'memory-free=much' is not allowed." in said
    assert "nodes: needs --backend." in said
