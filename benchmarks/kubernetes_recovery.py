"""Crash → first new step of a 2-node PyTorchJob on Kubernetes: in place, beside the operator's own restarts.

    python -m benchmarks.kubernetes_recovery [--rounds 3] [--start-seconds 2] [--json FILE]

The same program in the same manifest on the same real nodes, with the real training-operator, by turns under

- *airflow_ft*: wrapped by the agent and watched by the coroutine that our trigger runs, its settle time included;
- *OnFailure*: the kubelet starts the container again;
- *ExitCode*: the operator deletes the pod and makes it anew.

The program is two ranks that meet over TCP at every step, as a collective does: when rank 1 dies, rank 0 can't go on
and ends too, and no step is made before both are back. ``--start-seconds`` is what a start takes (importing torch: 2 to
4 s).
Rank 1 is told to die from outside, prints what a failed link prints and exits with 137; times are the program's own.
The operator's ways know no cause, no limit per cause and no bad node; the kubelet waits 10 s, 20 s, … from the second
crash within ten minutes on, which this benchmark (one crash a job) does not show.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_ft.core.policy import FaultTolerancePolicy
from tests.kubernetes.lab import CONNECTION, Lab
from tests.systems.kubernetes.cluster import OwnCluster, unavailable
from tests.systems.kubernetes.images import PYTHON_IMAGE

OURS = "airflow_ft"
WAYS = (OURS, "OnFailure", "ExitCode")
LIMIT_SECONDS = 180.0
START, STEP = re.compile(r"^start ([\d.]+)$", re.M), re.compile(r"^step \d+/\d+ loss [\d.]+ at ([\d.]+)$", re.M)
PROGRAM = r"""
import os, socket, sys, time
rank, port = int(os.environ["RANK"]), 23999
print("start", time.time(), flush=True)
time.sleep(float(sys.argv[1]))

def met():
    if rank == 0:
        server = socket.create_server(("0.0.0.0", port))
        return server.accept()[0]
    while True:
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5)
        except OSError:
            time.sleep(0.1)

other = met()
other.settimeout(60)
for step in range(1, 1000000):
    if os.path.exists("/tmp/die"):
        os.unlink("/tmp/die")
        print("NET/IB : Got completion from peer 10.0.0.11<47534> with error 5", file=sys.stderr, flush=True)
        os._exit(137)
    try:
        other.sendall(b"x")
        if not other.recv(1):
            raise ConnectionError("the other rank is gone")
    except OSError as error:
        print("NCCL WARN socketProgress: Connection closed by remote peer:", error, file=sys.stderr, flush=True)
        os._exit(138)
    print(f"step {step}/1000000 loss {1 / step:.4f} at {time.time()}", flush=True)
    time.sleep(0.05)
"""


@dataclass
class Round:
    """Seconds from the order to die to the first new step, and to the new start of rank 0."""

    way: str
    started: float
    first_step: float


def main() -> None:
    """Measure all ways by turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start-seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if reason := unavailable():
        raise SystemExit(f"No Kubernetes here: {reason}")
    rounds = []
    with OwnCluster() as cluster:
        for _ in range(args.rounds):
            for way in WAYS:
                rounds.append(one_round(cluster, way, args.start_seconds))
                print(f"{rounds[-1]}", flush=True)
    _report(rounds, args.json)


def one_round(cluster: OwnCluster, way: str, start_seconds: float) -> Round:
    """One job, one crash."""
    namespace = f"recovery-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", namespace)
    lab = Lab(cluster, namespace)
    try:
        if way == OURS:
            return asyncio.run(_in_place(lab, start_seconds))
        return _by_the_operator(lab, way, start_seconds)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


async def _in_place(lab: Lab, start_seconds: float) -> Round:
    job = lab.job("PyTorchJob", "", options={"manifest": manifest("Never", start_seconds), "conn_id": CONNECTION})
    ref = await lab.backend.submit(job, lab.submission())
    watch = asyncio.create_task(lab.watch(ref, FaultTolerancePolicy.full(max_restarts=3)))
    try:
        return await asyncio.to_thread(_crashed, lab, ref.name, OURS)
    finally:
        watch.cancel()
        await lab.backend.cancel(ref, 0.0)
        await lab.backend.close()  # type: ignore[attr-defined]


def _by_the_operator(lab: Lab, way: str, start_seconds: float) -> Round:
    name = "train"
    made = manifest(way, start_seconds, name)
    lab.cluster.kubectl("-n", lab.namespace, "apply", "-f", "-", given=json.dumps(made))
    return _crashed(lab, name, way)


def _crashed(lab: Lab, job: str, way: str) -> Round:
    """Let rank 1 die, and wait for the next step of rank 0."""
    leader, victim = f"{job}-master-0", f"{job}-worker-0"
    _until(lambda: len(STEP.findall(_log(lab, leader))) > 20, "both train")
    lab.kubectl("exec", victim, "-c", "pytorch", "--", "touch", "/tmp/die")
    died = time.time()

    def again() -> Round | None:
        text = _log(lab, leader)
        starts = [match for match in START.finditer(text) if float(match[1]) > died]
        step = STEP.search(text, starts[0].end()) if starts else None
        if step is None:
            return None
        return Round(way, float(starts[0][1]) - died, float(step[1]) - died)

    return _until(again, f"a step after the crash ({way})")  # type: ignore[no-any-return]


def _log(lab: Lab, pod: str) -> str:
    return lab.kubectl("logs", pod, "-c", "pytorch", check=False)


def _until(ready: Any, what: str) -> Any:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LIMIT_SECONDS:.0f} s: {what}")
        time.sleep(0.3)
    return found


def manifest(restart_policy: str, start_seconds: float, name: str = "") -> dict[str, Any]:
    """The PyTorchJob, as a user writes it."""
    command = ["python3", "-u", "-c", PROGRAM, str(start_seconds)]
    container = {"name": "pytorch", "image": PYTHON_IMAGE, "command": command}
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    replica = {"replicas": 1, "restartPolicy": restart_policy, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name} if name else {},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
    }


def _report(rounds: list[Round], target: Path | None) -> None:
    medians = {way: statistics.median(one.first_step for one in rounds if one.way == way) for way in WAYS}
    print("\ncrash → first new step, median")
    for way, seconds in medians.items():
        print(f"{way:12}{seconds:8.1f} s{medians[OURS] / seconds:8.2f} = {OURS} / it")
    if target is not None:
        ratios = {way: medians[OURS] / seconds for way, seconds in medians.items()}
        told = {"rounds": [asdict(one) for one in rounds], "medians": medians, "ratios": ratios}
        target.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
