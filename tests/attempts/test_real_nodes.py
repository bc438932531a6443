"""Whole chains on real processes of the local backend: the node that is bad is found, excluded, and training recovers.

Each chain is driven as the operator drives it: start, watch, record, until it succeeds or stops.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.chain import End
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy
from tests.attempts.dict_store import DictStore
from tests.attempts.real_task import Driver
from tests.systems.disks import fill_up, mounted

pytestmark = [pytest.mark.row("S4"), pytest.mark.row("S3"), pytest.mark.timeout(280)]

SKIPPED = ("disk-size root", "disk-size shm", "disk-free root", "memory-free", "xid", "gpu-check", "gpu-health")
# Trains for a moment when no bad company is there, else fails like a program that doesn't know why.
TRAIN = """
import os, sys, time
bad, place = set(sys.argv[1].split(",")), os.path.join(sys.argv[2], os.environ["FT_JOB"].split(":")[0])
os.makedirs(place, exist_ok=True)
open(os.path.join(place, os.environ["FT_NODE"]), "w").close()
end = time.monotonic() + 40
while len(os.listdir(place)) < int(os.environ["FT_NNODES"]) and time.monotonic() < end:
    time.sleep(0.05)
sys.exit(17 if bad <= set(os.listdir(place)) else 0)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "root")
    assert [job.name for job in inventory.list_jobs(str(tmp_path / "root")) if not job.closed] == []


def job(root: str, scratch: Path, nodes: int, bad: str = "nobody", pool: int = 4) -> LocalJob:
    command = (sys.executable, "-I", "-S", "-c", TRAIN, bad, str(scratch / "meet"))
    return LocalJob(command=command, nodes=nodes, root=root, pool_nodes=pool, workdir=str(scratch))


def policy(**given: object) -> FaultTolerancePolicy:
    return FaultTolerancePolicy.advanced(**{"max_restarts": 3, "settle_seconds": 0.5, "hold_seconds": 20.0, **given})


@pytest.mark.row("P6")
def test_a_fault_that_appears_only_when_two_nodes_work_together_is_bisected_and_training_recovers(
    root: str, tmp_path: Path
) -> None:
    ladder = {
        "UNKNOWN": [
            {"action": "BISECT", "times": 1},
            {"action": "RESUBMIT_EXCLUDING", "when": ["after_bisect"]},
            {"action": "FAIL"},
        ]
    }
    training = job(root, tmp_path, nodes=7, bad="n3,n7", pool=8)
    bisect = BisectSettings(command=training.command, test_seconds=60.0)
    task = Driver(training, policy(ladder=ladder, bisect=bisect))
    chain = task.run()
    assert chain.concluded is End.SUCCEEDED, task.said
    first, second = task.attempts
    assert first.decision is not None and first.decision.action is Action.BISECT
    assert first.decision.charged == ""
    assert second.excluded_nodes == ("n7",)
    assert "n7" not in second.nodes and "n3" in second.nodes
    assert chain.ledger.restarts == 1, "the resubmission after it is charged, the bisect is not"
    assert any("found the link n3 – n7" in event.text for event in chain.events)
    assert any(line.startswith("Bisect, round 1:") for line in task.said), "its progress is shown"


@pytest.mark.row("M9")
def test_a_node_that_fails_its_preflight_is_excluded_charged_and_known_to_the_next_dag(
    root: str, tmp_path: Path
) -> None:
    check = ["sh", "-c", "test $FT_NODE != n1 || { echo uncorrected ECC errors; exit 1; }"]
    looks = {"set": "quick", "skip": SKIPPED, "commands": {"burn-in": check}}
    shared = DictStore()
    task = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks), shared)
    chain = task.run()
    assert chain.concluded is End.SUCCEEDED, task.said
    first, second = task.attempts
    assert first.incidents[-1].diagnosis.fault_class is FaultClass.HW_NODE
    assert first.incidents[-1].diagnosis.suspect_nodes == ("n1",)
    assert second.excluded_nodes == ("n1",)
    assert chain.ledger.restarts == 1
    # Another DAG: it never even meets the node.
    other = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks), shared, dag="other")
    chain = other.run()
    assert chain.concluded is End.SUCCEEDED
    (only,) = other.attempts
    assert "n1" not in only.nodes
    assert only.excluded_nodes == (), "it is no exclusion of the chain: it ends with the quarantine"
    assert any(line.startswith("n1 is in quarantine until") for line in other.said)


@contextmanager
def full_disk(scratch: Path) -> Iterator[tuple[dict[str, str], dict[str, object]]]:
    """The checkpoint folder of n1 is on a disk that is full."""
    with mounted(scratch / "n1", 1) as disk:
        fill_up(disk)
        yield {}, {"set": "quick", "skip": SKIPPED, "checkpoints": str(scratch / "{node}")}


@contextmanager
def ecc_errors(scratch: Path) -> Iterator[tuple[dict[str, str], dict[str, object]]]:
    """A GPU of n1 has errors that were not corrected: a double of NVML's library, and the real pynvml."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or importlib.util.find_spec("pynvml") is None:
        pytest.skip("the double of NVML takes a C compiler and pynvml")
    source = Path(__file__).parents[1] / "agent" / "nvml_health_double.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", scratch / "libnvidia-ml.so.1", source], check=True)
    for node in ("n1", "n2", "n3", "n4"):
        (scratch / f"gpus-{node}").write_text("0 0\n7 0\n" if node == "n1" else "0 0\n0 0\n")
    env = {"LD_LIBRARY_PATH": str(scratch), "NVML_DOUBLE": str(scratch / "gpus-{node}")}
    others = ("disk-size root", "disk-size shm", "disk-free root", "memory-free", "xid", "shm-leftovers", "cpu-speed")
    yield env, {"set": "standard", "skip": others, "needs": {"gpus": 2}}


@pytest.mark.parametrize(
    ("bad", "said"), [(full_disk, "No space left"), (ecc_errors, "GPU 1: 7 uncorrected ECC errors")]
)
def test_a_node_that_is_really_bad_is_found_excluded_and_training_recovers_without_it(
    root: str, tmp_path: Path, bad: Any, said: str
) -> None:
    """Seen in the chain: which node, what it has, and that the next attempt ran elsewhere."""
    with bad(tmp_path) as (env, looks):
        training = job(root, tmp_path, nodes=2).model_copy(update={"env": env})
        task = Driver(training, policy(preflight=looks))
        chain = task.run()
    assert chain.concluded is End.SUCCEEDED, task.said
    first, second = task.attempts
    diagnosis = first.incidents[-1].diagnosis
    assert diagnosis.suspect_nodes == ("n1",) and said in diagnosis.text
    assert second.excluded_nodes == ("n1",) and "n1" not in second.nodes


@pytest.mark.row("M9")
def test_when_the_budget_is_used_up_the_preflight_says_error_exiting(root: str, tmp_path: Path) -> None:
    looks = {"set": "quick", "skip": SKIPPED, "hosts": ["storage.does-not-exist.invalid"]}
    quick = {"base_seconds": 0.0}
    task = Driver(job(root, tmp_path, nodes=2), policy(preflight=looks, max_restarts=1, backoff=quick))
    chain = task.run()
    assert chain.decision is not None and chain.decision.action is Action.FAIL
    assert chain.ledger.restarts == 1
    assert [attempt.incidents[-1].diagnosis.fault_class for attempt in task.attempts] == [FaultClass.ENV_ERROR] * 2
    assert any("error,exiting" in line for line in task.said)
