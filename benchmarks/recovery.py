"""Recovery from one killed rank: death → detected → respawned → first new step, beside plain torchrun.

    python -m benchmarks.recovery [--rounds 3] [--json FILE]

The same real training (``dags/training/train_gpt.py``, one node, two ranks, gloo), the same SIGKILL to the last rank,
by turns under:

- *airflow_ft*: the local backend with its agent, and the same ``Watch`` coroutine that Airflow's trigger runs, with its
  default settle time (2 s) for evidence. Airflow's processes are not in it: a restart in place doesn't wait for them.
- *torchrun*: ``torchrun --max-restarts 3``, with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: without that variable gloo
  training does not survive a restart at all (measured with torch 2.13).

torchrun's own restart keeps its launcher and has no diagnosis and no limit per cause; ours kills the whole tree, starts
the launcher anew (which imports torch once more before it spawns ranks), and classifies and decides in between. All
times are taken by this script, from /proc and from the logs, every 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.attempts.watch import prepared_watch
from airflow_ft.backends.base import Submission
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy

SCRIPT = Path(__file__).resolve().parent.parent / "dags" / "training" / "train_gpt.py"
STEP = re.compile(rb"step (\d+)/\d+ loss")
RESUMED = re.compile(rb"resumed from checkpoint step (\d+) ")
KILL_AT, STEPS = 25, 80
POLL_SECONDS = 0.02
LIMIT_SECONDS = 240.0


@dataclass
class Timing:
    """Seconds after the SIGKILL."""

    system: str
    detected: float
    respawned: float
    first_step: float
    resumed_from: int


class Recipe:
    """One way to run the training: how it starts, where it writes, how it shows that it noticed."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arguments(self) -> list[str]:
        """The script's arguments."""
        return [str(SCRIPT), f"--steps={STEPS}", "--checkpoint-every=10", f"--out={self.folder / 'out'}"]

    def start(self) -> None:
        """Start the training."""
        raise NotImplementedError

    def log(self) -> bytes:
        """Return the training's whole output."""
        raise NotImplementedError

    def noticed(self) -> bool:
        """Whether the death of the rank has been noticed."""
        raise NotImplementedError

    def stop(self) -> None:
        """End everything."""
        raise NotImplementedError


class Torchrun(Recipe):
    """Plain torchrun with its own restarts."""

    name = "torchrun --max-restarts"

    def start(self) -> None:
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "BENCH": str(self.folder)}
        command = ["torchrun", "--nproc-per-node=2", "--standalone", "--max-restarts=3", *self.arguments()]
        self._file = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL, stdout=self._file, stderr=self._file, env=env, start_new_session=True,
        )  # fmt: skip

    def log(self) -> bytes:
        return (self.folder / "log").read_bytes()

    def noticed(self) -> bool:
        return b"failed (exitcode: -9)" in self.log()

    def stop(self) -> None:
        for process in [*ranks(self.folder), psutil.Process(self._process.pid)]:
            try:
                process.kill()
            except psutil.Error:
                continue
        self._process.wait()
        self._file.close()


class AirflowFt(Recipe):
    """The local backend under the watch of an attempt."""

    name = "airflow_ft in place"

    def start(self) -> None:
        self._backend = create_backend()
        job = LocalJob(
            command=["torchrun", "--nproc-per-node=2", *self.arguments()],
            env={"BENCH": str(self.folder)},
            root=str(self.folder / "root"),
        )
        submission = Submission(name="bench-0-a0", chain_id="bench-0", attempt=0, grace=5)
        self._ref = asyncio.run(self._backend.submit(job, submission))
        order = WatchOrder(
            info=TryInfo(dag_id="bench", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x"),
            ref=self._ref,
            policy=write_policy(FaultTolerancePolicy.advanced()),
        )
        self._watching = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.recovery", "--watch", json.dumps(order.to_record())],
            stdin=subprocess.DEVNULL, stdout=(self.folder / "watch.log").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _node(self) -> Path:
        return self.folder / "root" / "jobs" / self._ref.name / "nodes" / "n1"

    def log(self) -> bytes:
        path = self._node() / "output.log"
        return path.read_bytes() if path.exists() else b""

    def noticed(self) -> bool:
        state = json.loads((self._node() / "state.json").read_bytes())
        return bool(state["child_exits"]) or state["phase"] != "running"

    def stop(self) -> None:
        self._watching.kill()
        self._watching.wait()
        asyncio.run(self._backend.cancel(self._ref, 0.0))


class PlainDesk:
    """A desk without Airflow: lines go to stdout, published values to a dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def say(self, text: str, *, warning: bool = False) -> None:
        print(f"{time.time():.3f} {'! ' if warning else ''}{text}", flush=True)

    async def publish(self, key: str, value: object) -> None:
        self._values[key] = value

    async def recall(self, key: str) -> object:
        return self._values.get(key)

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def ranks(folder: Path) -> list[psutil.Process]:
    """Return the rank processes of the training in ``folder``, by rank."""
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            if env.get("BENCH") == str(folder) and "LOCAL_RANK" in env and process.status() != psutil.STATUS_ZOMBIE:
                found.append((int(env["RANK"]), process))
        except (psutil.Error, ValueError):
            continue
    return [process for _, process in sorted(found, key=lambda pair: pair[0])]


def until(condition: Callable[[], bool], what: str) -> float:
    """Wait for a condition. Returns the time when it was seen."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if condition():
            return time.time()
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"{what}: not within {LIMIT_SECONDS:.0f} s")


def one_round(recipe: Recipe) -> Timing:
    """Start, kill a rank, measure, stop."""
    recipe.start()
    try:
        until(
            lambda: any(int(step) >= KILL_AT for step in STEP.findall(recipe.log())), f"{recipe.name}: step {KILL_AT}"
        )
        victims = ranks(recipe.folder)
        old = {process.pid for process in victims}
        read = len(recipe.log())
        os.kill(victims[-1].pid, signal.SIGKILL)
        died = time.time()
        detected = until(recipe.noticed, f"{recipe.name}: detection")
        respawned = until(lambda: len({p.pid for p in ranks(recipe.folder)} - old) == 2, f"{recipe.name}: respawn")
        first = until(lambda: _steps_after_resume(recipe.log()[read:]), f"{recipe.name}: a new step")
        resumed = int(RESUMED.findall(recipe.log()[read:])[-1])
    finally:
        recipe.stop()
    return Timing(recipe.name, detected - died, respawned - died, first - died, resumed)


def _steps_after_resume(log: bytes) -> bool:
    resumed = RESUMED.search(log)
    return resumed is not None and STEP.search(log, resumed.end()) is not None


def main() -> int:
    """Run the rounds by turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--watch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        asyncio.run(prepared_watch(WatchOrder.from_record(json.loads(args.watch)), PlainDesk()).watch())  # type: ignore[arg-type]
        return 0
    timings: list[Timing] = []
    for number in range(args.rounds):
        for recipe in (AirflowFt, Torchrun):
            with tempfile.TemporaryDirectory(prefix="ft-recovery-") as folder:
                timings.append(one_round(recipe(Path(folder))))
                print(f"round {number + 1} {_row(timings[-1])}", flush=True)
    return _report(timings, args.json)


def _row(timing: Timing) -> str:
    numbers = f"{timing.detected:9.2f} {timing.respawned:10.2f} {timing.first_step:11.2f}"
    return f"{timing.system:24} {numbers}   resumed from {timing.resumed_from}"


def _report(timings: list[Timing], file: Path | None) -> int:
    print(f"\nmedian seconds after SIGKILL  {'detected':>9} {'respawned':>10} {'first step':>11}")
    medians: dict[str, dict[str, float]] = {}
    for recipe in (AirflowFt, Torchrun):
        mine = [timing for timing in timings if timing.system == recipe.name]
        keys = ("detected", "respawned", "first_step")
        medians[recipe.name] = {key: statistics.median(getattr(timing, key) for timing in mine) for key in keys}
        print(f"{recipe.name:30}" + "".join(f"{value:10.2f}" for value in medians[recipe.name].values()))
    ours, theirs = medians[AirflowFt.name], medians[Torchrun.name]
    ratios = {key: ours[key] / theirs[key] for key in ours}
    print(f"{'ratio (ours / torchrun)':30}" + "".join(f"{value:10.2f}" for value in ratios.values()))
    if file:
        result = {"rounds": [asdict(timing) for timing in timings], "medians": medians, "ratios": ratios}
        file.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
