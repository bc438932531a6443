"""What the agent says of its ranks: from /proc, and from NVML through a double of its library that says it is one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_ft.agent import nvml, vitals
from airflow_ft.core.vitals import read_ranks

DOUBLE = Path(__file__).with_name("nvml_double.c")
ASK = """
import json, sys
from airflow_ft.agent import nvml, vitals
vitals._holds_gpu = lambda pid: True
print(json.dumps([vitals.ranks_of(json.loads(sys.argv[1])), [gpu._asdict() for gpu in nvml.read()]]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("the double of NVML needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / nvml.LIBRARY, DOUBLE], check=True)
    return folder


def ask(library: Path, tmp_path: Path, devices: str, pids: list[int]) -> tuple[list[dict], list[dict]]:  # type: ignore[type-arg]
    (tmp_path / "devices").write_text(devices)
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_DOUBLE": str(tmp_path / "devices")}
    done = subprocess.run([sys.executable, "-c", ASK, json.dumps(pids)], env=env, capture_output=True, check=True)
    ranks, gpus = json.loads(done.stdout)
    return ranks, gpus


@pytest.fixture
def ranks() -> list[subprocess.Popen[bytes]]:
    made = [
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env={**os.environ, "RANK": str(4 + n), "LOCAL_RANK": str(n), "WORLD_SIZE": "8"},
        )
        for n in range(2)
    ]
    yield made  # type: ignore[misc]
    for process in made:
        process.kill()
        process.wait()


@pytest.mark.row("M5")
def test_a_rank_has_the_readings_of_the_gpu_that_it_holds(
    library: Path, tmp_path: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    pids = [process.pid for process in ranks]
    devices = f"100 120500 GPU-aa {pids[1]}\n37 650250 GPU-bb {pids[0]} 1\n"
    seen, gpus = ask(library, tmp_path, devices, pids)
    assert [(rank["rank"], rank["world"], rank["gpu"]) for rank in seen] == [
        (4, 8, [37.0, 650.2]),
        (5, 8, [100.0, 120.5]),
    ]
    assert [gpu["uuid"] for gpu in gpus] == ["GPU-aa", "GPU-bb"]


def test_where_pids_are_others_the_local_rank_tells(
    library: Path, tmp_path: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    seen, _ = ask(library, tmp_path, "-1 90000 GPU-aa\n50 80000 GPU-bb\n", [process.pid for process in ranks])
    assert [rank["gpu"] for rank in seen] == [[None, 90.0], [50.0, 80.0]]


def test_without_a_driver_its_numbers_are_unknown(tmp_path: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps([process.pid for process in ranks])],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    if not json.loads(done.stdout)[1]:  # a machine without GPUs
        assert [rank["gpu"] for rank in json.loads(done.stdout)[0]] == [[None, None]] * 2


def test_a_rank_that_works_is_seen_to_work() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"], env={**os.environ, "RANK": "3"})
    try:
        end = time.monotonic() + 30
        while vitals.ranks_of([busy.pid])[0]["cpu"] < 0.2:
            assert time.monotonic() < end
            time.sleep(0.05)
        (rank,) = read_ranks("n1", vitals.ranks_of([busy.pid]))
        assert (rank.rank, rank.gpu, rank.node) == (3, False, "n1")
        assert rank.io_bytes > 0
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.row("P9")
def test_a_peek_sees_who_is_on_a_cpu_and_nobody_else(tmp_path: Path) -> None:
    """A rank that sleeps isn't asked: a signal could interrupt it."""
    spins = "def spin():\n    while True: pass\nimport os, time\nif os.environ['RANK'] == '0': spin()\ntime.sleep(600)"
    starts = (
        "import os, subprocess, sys\n"
        f"command = [sys.executable, '-c', {spins!r}]\n"
        "made = [subprocess.Popen(command, env=dict(os.environ, RANK=str(rank))) for rank in (0, 1)]\n"
        "for one in made: one.wait()"
    )
    command = [sys.executable, "-m", "airflow_ft.agent"]
    agent = subprocess.Popen([*command, "run", f"--dir={tmp_path / 'a'}", "--", sys.executable, "-c", starts])
    try:
        end, seen = time.monotonic() + 60, []
        while [ranks for ranks, stack in seen if "spin" in stack] != [[0]] or len(seen) != 1:
            assert time.monotonic() < end, seen  # rank 1 is on a CPU as well while it starts
            time.sleep(0.2)
            looking = [*command, "stacks", f"--dir={tmp_path / 'a'}", "--peek"]
            found = json.loads(subprocess.run(looking, capture_output=True, check=True).stdout)
            seen = [(group["ranks"], group["stack"]) for group in found["groups"] if group["ranks"]]
        asked = [*command, "vitals", f"--dir={tmp_path / 'a'}"]
        told = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
        assert sorted(rank["rank"] for rank in told["ranks"]) == [0, 1], "who is asked from outside tells of both"
    finally:
        agent.terminate()
        agent.wait(90)


@pytest.mark.parametrize(
    "said", [None, "x", [3, {"rank": "no number"}, {"cpu": "x"}], {"rank": 1}, [{"rank": 1, "gpu": [1, 2, 3]}]]
)
def test_what_anybody_may_print_breaks_nothing(said: object) -> None:
    assert all(rank.gpu_watts is None for rank in read_ranks("n1", said))


@pytest.mark.row("M14")
def test_the_agent_says_a_line_about_its_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "airflow_ft.agent", "run", f"--dir={tmp_path / 'a'}", "--vitals=0.3", "--nonce=n0"]
    training = [sys.executable, "-c", "import time; time.sleep(600)"]
    agent = subprocess.Popen(
        [*command, "--", *training], stderr=subprocess.PIPE, env={**os.environ, "RANK": "7", "WORLD_SIZE": "8"}
    )
    try:
        assert agent.stderr is not None
        for line in agent.stderr:
            if b'"event":"vitals"' in line:
                break
        said = json.loads(line[line.index(b"{") :])
        (rank,) = read_ranks("n1", said["ranks"])
        assert (rank.rank, rank.world_size, rank.state) == (7, 8, "S")
        assert line.startswith(b"ft-agent n0 {")
    finally:
        agent.terminate()
        agent.communicate(timeout=30)
