"""Live hangs: a real torchrun with four ranks, an unmodified script, and six ways to get stuck. Part of ``hang``.

    python -m benchmarks.hang --live [--kinds sleep,spin] [--rounds 5] [--json FILE]

Each round starts the training below on the local backend, under the ``Watch`` coroutine that Airflow's trigger runs,
with the default policy. After ``STEADY`` steps rank ``CULPRIT`` gets stuck. What is measured: how long after that the
watch decided (its own clock's time of the verdict), and whether it names the rank. A rank that ends quietly lets gloo's
peers fail within a second; so ``exit`` waits for its peers through a store, as NCCL's do on the device: nobody fails.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from airflow_ft.agent import processes
from airflow_ft.attempts.conclude import ORDER_KEY
from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.watch import prepared_watch
from airflow_ft.backends.base import Submission
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import Incident
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy

KINDS = ("sleep", "sigstop", "spin", "deadlock", "loader", "exit")
RANKS, CULPRIT, STEADY = 4, 2, 33
START_SECONDS, LIMIT_SECONDS, POLL_SECONDS = 180.0, 300.0, 0.02
TRAIN = """
import argparse, os, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

options = argparse.ArgumentParser()
options.add_argument("--fault", default="")
options.add_argument("--culprit", type=int)
options.add_argument("--at", type=int)
options.add_argument("--seconds", type=float)
args = options.parse_args()


class Numbers(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if args.fault == "loader" and rank == args.culprit and index >= 4 * args.at:
            with open("stuck", "w") as file:
                file.write(str(time.time()))
            time.sleep(100_000)
        return torch.randn(64)


def tell():
    with open("stuck", "w") as file:
        file.write(str(time.time()))


def misbehave():
    tell()
    if args.fault == "sleep":
        time.sleep(100_000)
    elif args.fault == "spin":
        count = 0
        while True:
            count += 1
    elif args.fault == "deadlock":
        dist.all_gather([torch.zeros(64) for _ in range(dist.get_world_size())], torch.zeros(64))
    elif args.fault == "exit":
        os._exit(0)


def average(store, step, weights):
    if args.fault != "exit":
        dist.all_reduce(weights.grad)
        return
    store.add(f"arrived-{step}", 1)
    if rank == 0:
        while store.add(f"arrived-{step}", 0) < dist.get_world_size():
            time.sleep(0.02)
        store.set(f"go-{step}", "1")
    store.wait([f"go-{step}"])


def train(store):
    torch.set_num_threads(1)
    weights = torch.zeros(64, requires_grad=True)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1 if args.fault == "loader" else 0)
    for step, batch in enumerate(loader, 1):
        started = time.monotonic()
        if step == args.at and rank == args.culprit and args.fault not in ("loader", "sigstop"):
            misbehave()
        loss = ((batch @ weights - 1) ** 2).mean()
        weights.grad = None
        loss.backward()
        average(store, step, weights)
        with torch.no_grad():
            weights -= 0.001 * weights.grad
        time.sleep(max(0.0, args.seconds - (time.monotonic() - started)))
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo")
rank = dist.get_rank()
train(dist.distributed_c10d._get_default_store())
"""
STEP = re.compile(r"step (\d+) loss")


class Desk:
    """Keeps what the watch says and decides."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.incident: Incident | None = None

    def say(self, text: str, *, warning: bool = False) -> None:
        """Keep it."""
        self.said.append(text)

    async def publish(self, key: str, value: object) -> None:
        """Keep the decision."""
        if key == ORDER_KEY and self.incident is None:
            self.incident = Incident.from_record(value)

    async def recall(self, key: str) -> None:
        """Nothing was saved."""

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def measure(kinds: list[str], rounds: int, step_seconds: float) -> dict[str, dict[str, object]]:
    """Run all of it, and print a line a round. Returns the numbers a kind."""
    found = {}
    for kind in kinds:
        results = [asyncio.run(_round(kind, step_seconds)) for _ in range(rounds)]
        delays = [delay for delay, _, _ in results if delay is not None]
        goal = 10 * step_seconds + 5
        found[kind] = {
            "rounds": rounds,
            "detected": len(delays),
            "in_goal": sum(delay <= goal for delay in delays),
            "goal_seconds": goal,
            "delays": [round(delay, 2) for delay in delays],
            "delay_median": round(statistics.median(delays), 2) if delays else None,
            "culprit_right": sum(right for _, right, _ in results),
            "texts": sorted({text for _, _, text in results}),
        }
    return found


def show(found: dict[str, dict[str, object]]) -> None:
    """Print the table."""
    print(
        f"\n{'live hang':12}{'detected':>10}{'in goal':>9}{'median':>10}{'culprit':>9}   {RANKS} ranks, torchrun, gloo"
    )
    for kind, values in found.items():
        share = [f"{values[key]}/{values['rounds']}" for key in ("detected", "in_goal", "culprit_right")]
        print(f"{kind:12}{share[0]:>10}{share[1]:>9}{values['delay_median']:>9} s{share[2]:>9}")


async def _round(kind: str, step_seconds: float) -> tuple[float | None, bool, str]:
    with tempfile.TemporaryDirectory(prefix="hang-live-") as name:
        folder, backend, desk = Path(name), create_backend(), Desk()
        (folder / "train.py").write_text(TRAIN)
        arguments = [f"--fault={kind}", f"--culprit={CULPRIT}", f"--at={STEADY}", f"--seconds={step_seconds}"]
        command = ["torchrun", f"--nproc-per-node={RANKS}", "train.py", *arguments]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # torchrun is beside our Python
        job = LocalJob(command=command, root=str(folder / "root"), workdir=str(folder), env={"PATH": path})
        ref = await backend.submit(job, Submission(name="hang-0-a0", chain_id="hang-0", attempt=0, grace=1))
        info = TryInfo(dag_id="hang", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
        order = WatchOrder(info=info, ref=ref, policy=write_policy(FaultTolerancePolicy.full()))
        watching = asyncio.create_task(prepared_watch(order, desk).watch())
        try:
            since = await _stuck(kind, folder, ref, backend)
            end = time.time() + LIMIT_SECONDS
            while since is not None and desk.incident is None and time.time() < end and not watching.done():
                await asyncio.sleep(POLL_SECONDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await backend.cancel(ref, 0)
        if since is None or desk.incident is None:
            print(f"{kind}: not detected. Said: {desk.said}")
            return None, False, ""
        delay = desk.incident.detected_at.timestamp() - since
        ranks = {suspect.name for suspect in desk.incident.diagnosis.suspects if suspect.kind == "rank"}
        text = re.sub(r"\d+", "N", desk.incident.diagnosis.text)
        print(
            f"{kind}: after {delay:.1f} s, suspects {sorted(ranks)}: {desk.incident.diagnosis.text[:300]}", flush=True
        )
        return delay, ranks == {str(CULPRIT)}, text


async def _stuck(kind: str, folder: Path, ref: object, backend: object) -> float | None:
    """Wait until the culprit is stuck. Returns when that was."""
    end = time.time() + START_SECONDS
    while time.time() < end:
        if kind == "loader" and await _step(backend, ref) >= STEADY:
            return time.time()  # its workers read ahead: only now is a batch missed
        if kind != "loader" and (folder / "stuck").exists() and (text := (folder / "stuck").read_text()):
            return float(text)
        if kind == "sigstop" and await _step(backend, ref) >= STEADY:
            marked = processes.with_marker("FT_JOB", f"{ref.name}:{ref.uid}")  # type: ignore[attr-defined]
            victim = next(pid for pid in marked if processes.variable(pid, "RANK") == str(CULPRIT))
            os.kill(victim, signal.SIGSTOP)
            return time.time()
        await asyncio.sleep(POLL_SECONDS)
    return None


async def _step(backend: object, ref: object) -> int:
    chunks, _ = await backend.read_logs(ref, {}, 1_000_000)  # type: ignore[attr-defined]
    steps = STEP.findall(b"".join(chunk.data for chunk in chunks).decode("utf-8", "replace"))
    return max(map(int, steps), default=0)
