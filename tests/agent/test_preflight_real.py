"""Preflight of several real processes: a cut network, and NVML (a double of its library, real pynvml)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.agent.preflight_result import Result, read
from airflow_ft.backends.agent_archive import build_agent_archive

pytestmark = [pytest.mark.row("S3"), pytest.mark.row("M8"), pytest.mark.timeout(200)]
ROOT = os.geteuid() == 0
TOGETHER = {
    "set": "standard",
    "skip": ["cpu-speed", "xid", "memory-free", "disk-size root", "disk-size shm", "disk-free root"],
}


def start(
    folder: Path, rank: int, peers: list[list[object]], before: list[str], **more: object
) -> subprocess.Popen[str]:
    archive = build_agent_archive(folder)
    own = folder / str(peers[rank][0])
    own.mkdir()
    config = {**TOGETHER, "node": peers[rank][0], "peers": peers, "rank": rank, "seconds": 60, **more}
    command = [*before, sys.executable, str(archive), "preflight", "--dir", str(own), "--config", json.dumps(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def results(folder: Path, node: object) -> dict[str, Result]:
    record = json.loads((folder / str(node) / "preflight.json").read_text())
    return {one.item: one for one in map(read, record["items"]) if one}


def failing(folder: Path, peers: list[list[object]]) -> set[tuple[object, str]]:
    found = {(peer[0], item): one for peer in peers for item, one in results(folder, peer[0]).items()}
    return {key for key, one in found.items() if one.status == "failed"}


# --- a pair that can't talk --------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Three network namespaces on one bridge, 10.213.0.1 to .3."""
    if not ROOT or not shutil.which("ip"):
        pytest.skip("network namespaces take root and iproute2")
    mark = uuid.uuid4().hex[:5]
    bridge, names = f"br{mark}", [f"ft{mark}{number}" for number in (1, 2, 3)]
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 1):
            ip("netns", "add", name)
            ip("link", "add", f"v{mark}{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"v{mark}{number}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.213.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    try:
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        subprocess.run(["ip", "link", "del", bridge], check=False)


def test_a_pair_whose_traffic_is_cut_is_named_and_no_node_alone(namespaces: list[str], tmp_path: Path) -> None:
    ip("-n", namespaces[0], "route", "add", "blackhole", "10.213.0.2/32")
    ip("-n", namespaces[1], "route", "add", "blackhole", "10.213.0.1/32")
    peers: list[list[object]] = [[f"n{number}", f"10.213.0.{number}", 21021] for number in (1, 2, 3)]
    runs = [
        start(tmp_path, rank, peers, ["ip", "netns", "exec", name], seconds=15) for rank, name in enumerate(namespaces)
    ]
    codes = [run.wait(100) for run in runs]
    assert codes == [78, 78, 0]
    assert failing(tmp_path, peers) == {("n1", "comm"), ("n2", "comm")}
    assert results(tmp_path, "n1")["comm"].peer == "n2"
    assert results(tmp_path, "n2")["comm"].peer == "n1"
    assert "not one of them" in results(tmp_path, "n1")["comm"].advice


def test_with_nothing_cut_all_is_well(namespaces: list[str], tmp_path: Path) -> None:
    peers: list[list[object]] = [[f"n{number}", f"10.213.0.{number}", 21022] for number in (1, 2, 3)]
    runs = [
        start(tmp_path, rank, peers, ["ip", "netns", "exec", name], shared=True) for rank, name in enumerate(namespaces)
    ]
    assert [run.wait(100) for run in runs] == [0, 0, 0], failing(tmp_path, peers)


# --- a straggler -------------------------------------------------------------------------------------------------


@pytest.fixture
def half_a_cpu() -> Iterator[list[str]]:
    """What is put before a command to give it half a CPU."""
    name = f"ft-{uuid.uuid4().hex[:8]}"
    old = Path("/sys/fs/cgroup/cpu")
    group = (old if old.is_dir() else old.parent) / name
    limit, value = ("cpu.cfs_quota_us", "50000") if old.is_dir() else ("cpu.max", "50000 100000")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no CPU limit can be set here: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip("no CPU limit can be set here: the controller is not on")
        (group / limit).write_text(value)
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@pytest.mark.row("S3")
def test_a_node_with_half_a_cpu_is_named_as_straggler_with_the_cause(half_a_cpu: list[str], tmp_path: Path) -> None:
    peers: list[list[object]] = [[f"n{number}", f"127.0.9.{number}", 21023] for number in (1, 2, 3)]
    together = {"skip": [item for item in TOGETHER["skip"] if item != "cpu-speed"], "shared": True}
    runs = [start(tmp_path, rank, peers, half_a_cpu if rank == 2 else [], **together) for rank in range(3)]
    assert [run.wait(100) for run in runs] == [0, 0, 78], failing(tmp_path, peers)
    assert failing(tmp_path, peers) == {("n3", "cpu-speed")}
    slow = results(tmp_path, "n3")["cpu-speed"]
    assert "a CPU limit kept it from running" in slow.value
    assert "raise the CPU limit" in slow.advice


# --- GPUs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or importlib.util.find_spec("pynvml") is None:
        pytest.skip("the double of NVML takes a C compiler and pynvml")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_health_double.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def looked(
    library: Path, folder: Path, gpus: str, needs: dict[str, float] | None = None, **more: str
) -> dict[str, Result]:
    devices = folder / "gpus"
    devices.write_text(gpus)
    config = {"set": "standard", "node": "n1", "needs": {"disk-size root": 0, **(needs or {})}}
    archive = build_agent_archive(folder)
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_DOUBLE": str(devices), **more}
    subprocess.run(
        [sys.executable, str(archive), "preflight", "--dir", folder, "--config", json.dumps(config)],
        env=env, check=False, capture_output=True,
    )  # fmt: skip
    record = json.loads((folder / "preflight.json").read_text())
    return {one.item: one for one in map(read, record["items"]) if one}


def test_healthy_gpus_are_counted(library: Path, tmp_path: Path) -> None:
    items = looked(library, tmp_path, "0 0\n0 4\n")  # 4: a power cap, which is normal
    assert items["gpu-check"].status == "ok" and items["gpu-check"].value == "2 GPUs, driver double-1.0"
    assert items["gpu-health"].status == "ok"


def test_uncorrected_ecc_errors_and_a_hot_gpu_are_found_with_their_number(library: Path, tmp_path: Path) -> None:
    items = looked(library, tmp_path, "0 0\n3 0\n0 64\n")
    assert items["gpu-health"].status == "failed"
    assert items["gpu-health"].value == "GPU 1: 3 uncorrected ECC errors; GPU 2: throttled: hardware thermal"


def test_a_gpu_less_than_expected_fails(library: Path, tmp_path: Path) -> None:
    items = looked(library, tmp_path, "0 0\n", {"gpus": 2})
    assert items["gpu-check"].status == "failed" and items["gpu-check"].need == ">= 2"


def test_persistence_is_judged_where_it_is_wanted(library: Path, tmp_path: Path) -> None:
    items = looked(library, tmp_path, "0 0\n", {"persistence": 1})
    assert items["gpu-health"].value == "GPU 0: persistence mode is off"


def test_a_driver_that_is_too_old_for_torchs_cuda_is_named(library: Path, tmp_path: Path) -> None:
    """The CUDA is read from torch's own file: a torch that isn't there must not be needed for that."""
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise ImportError('it would take seconds')")
    (torch / "version.py").write_text("__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    more = {"PYTHONPATH": str(tmp_path / "site")}
    old = looked(library, tmp_path, "0 0\n", **more, NVML_DOUBLE_CUDA="12040")["cuda-match"]
    assert (old.status, old.value, old.need) == ("failed", "driver 12.4, torch 13.0", "a driver for CUDA 13.x")
    assert looked(library, tmp_path, "0 0\n", **more, NVML_DOUBLE_CUDA="13000")["cuda-match"].status == "ok"
