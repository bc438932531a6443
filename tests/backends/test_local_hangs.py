"""Hangs of real processes on the local backend: what the second signals see, and how soon the watch acts.

The "ranks" are small Python processes with RANK and WORLD_SIZE, started by a launcher as torchrun would; rank 0 prints
steps of 0.1 s as long as all ranks advance.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_ft.agent import processes
from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.watch import prepared_watch
from airflow_ft.backends.abilities import SeesVitals
from airflow_ft.core.chain import JobRef
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.core.policy_record import write_policy
from airflow_ft.core.vitals import Sample, opinion
from tests.backends.conformance import LocalSystem, eventually
from tests.systems.disks import mounted

RANK = """
import os, sys, time
rank, world, kind, at = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], int(sys.argv[2])
def beat(step):
    with open(f"beat-{rank}", "w") as file: file.write(str(step))
def slowest():
    found = []
    for other in range(world):
        try: found.append(int(open(f"beat-{other}").read() or 0))
        except (OSError, ValueError): found.append(0)
    return min(found)
for step in range(1, 100_000):
    if step == at and rank == 1:
        if kind == "sleep": time.sleep(10_000)
        if kind == "exit": sys.exit(0)
        if kind == "stop": os.kill(os.getpid(), 19)
        end = time.time() + (float(sys.argv[3]) if len(sys.argv) > 3 else 10_000)
        while kind == "spin" and time.time() < end: pass
    beat(step)
    while slowest() < step: time.sleep(0.05)
    time.sleep(0.1)
    if rank == 0: print(f"step={step} loss=2.0", flush=True)
"""
LAUNCHER = """
import os, subprocess, sys
world = 3
children = [subprocess.Popen([sys.executable, "-u", "rank.py", *sys.argv[1:]], start_new_session=True,
            env={**os.environ, "RANK": str(n), "WORLD_SIZE": str(world)}) for n in range(world)]
for child in children: child.wait()
"""


class Desk:
    """A desk that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str, *, warning: bool = False) -> None:
        self.said.append(text)

    async def publish(self, key: str, value: object) -> None:
        pass

    async def recall(self, key: str) -> None:
        return None

    def now(self) -> object:
        from datetime import datetime, timezone

        return datetime.now(timezone.utc)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def followed(ref: JobRef, policy: FaultTolerancePolicy, desk: Desk) -> Conclusion:
    """Watch a job of one node to its end, as the first try of a task."""
    info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
    order = WatchOrder(info=info, ref=ref, policy=write_policy(policy), nodes_needed=1)
    return await prepared_watch(order, desk).watch()  # type: ignore[arg-type]


# Saves with its second step, fails to, prints what Python says about it, and then says nothing any more.
FULL = """
import os, resource, sys, time, traceback
if sys.argv[1] == "limit": resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
print("step=1 loss=2.0", flush=True)
for step in range(2, 9):
    time.sleep(0.1)
    print(f"step={step} loss=2.0", flush=True)
try:
    with open(sys.argv[2], "wb", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096: pass
        os.write(file.fileno(), b"x" * 4096)
except OSError:
    if sys.argv[1] == "limit": traceback.print_exc()
time.sleep(10_000)
"""


async def start(local: LocalSystem, *arguments: str) -> JobRef:
    (local.scratch / "rank.py").write_text(RANK)
    (local.scratch / "launcher.py").write_text(LAUNCHER)
    return await local.submit("python", "launcher.py", *arguments)


async def step_of(local: LocalSystem, ref: JobRef) -> int:
    lines = [line for line in (await local.output(ref)).splitlines() if line.startswith("step=")]
    return int(lines[-1].split()[0][5:]) if lines else 0


async def two_samples(local: LocalSystem, ref: JobRef) -> tuple[Sample, Sample]:
    backend = local.backend
    assert isinstance(backend, SeesVitals)
    first = Sample(at=time.time(), ranks=tuple(await backend.vitals(ref)))
    await asyncio.sleep(2.0)
    return first, Sample(at=time.time(), ranks=tuple(await backend.vitals(ref)))


@pytest.mark.row("M5")
@pytest.mark.parametrize(
    ("kind", "says", "word"),
    [("stop", "confirms", "stopped"), ("exit", "confirms", "exit_hang"), ("spin", "contradicts", "")],
)
def test_what_the_second_signals_say(local: LocalSystem, kind: str, says: str, word: str) -> None:
    async def story() -> None:
        ref = await start(local, kind, "5")

        async def there() -> bool:
            return await step_of(local, ref) >= 4

        await eventually(there, "four steps")
        await asyncio.sleep(1.0)
        first, last = await two_samples(local, ref)
        assert {rank.rank for rank in last.ranks} >= {0, 2}
        found = opinion(first, last)
        # Ranks that poll a file each 20 ms are not quite idle on a loaded machine.
        assert (found.says, found.kind) == (says, word) or (kind == "exit" and found.says == "unknown"), found

    asyncio.run(story())


@pytest.mark.row("M4")
@pytest.mark.row("P8")
def test_a_stopped_rank_is_acted_upon_within_ten_steps_and_a_few_seconds(local: LocalSystem) -> None:
    async def story() -> None:
        ref = await start(local, "none", "0")
        policy = FaultTolerancePolicy.full(hang=HangSettings(floor_seconds=120.0))
        desk = Desk()
        watching = asyncio.create_task(followed(ref, policy, desk))

        async def warm() -> bool:
            return await step_of(local, ref) >= 33

        await eventually(warm, "33 steps")
        victim = next(pid for pid in local.processes(ref) if processes.variable(pid, "RANK") == "1")
        os.kill(victim, signal.SIGSTOP)
        stopped = time.monotonic()

        async def restarted() -> bool:
            return (await local.backend.observe(ref)).generation >= 1

        await eventually(restarted, f"a restart in place; said: {desk.said}")
        took = time.monotonic() - stopped
        print(f"restart in place {took:.1f} s after SIGSTOP")
        watching.cancel()
        assert took < 100, "long before the floor of 120 s (5 s on a quiet machine)"

    asyncio.run(story())


@pytest.mark.story("UIO-04")
@pytest.mark.parametrize("kind", ["limit", "disk"])
def test_a_silence_that_a_full_disk_explains_is_no_hang(local: LocalSystem, tmp_path: Path, kind: str) -> None:
    """Whether training says so itself before it falls silent, or only this machine sees that the disk is full."""

    async def story(ckpt: Path) -> None:
        (local.scratch / "full.py").write_text(FULL)
        ref = await local.submit("python", "full.py", kind, str(ckpt / "a.pt"), checkpoints=str(ckpt))
        policy = FaultTolerancePolicy.full(
            grace_seconds=1, hang=HangSettings(floor_seconds=2, ceiling_seconds=4, check_interval_seconds=1)
        )
        desk = Desk()
        watching = followed(ref, policy, desk)
        conclusion = await asyncio.wait_for(watching, 120.0)
        (incident,) = conclusion.incidents
        assert incident.diagnosis.fault_class is FaultClass.ENV_ERROR, desk.said
        words = "disk is full" if kind == "disk" else "disk full"
        assert words in incident.diagnosis.text
        assert incident.decision.action is Action.FAIL, incident.decision.reason
        assert not local.processes(ref)

    with mounted(tmp_path / "disk", megabytes=20) if kind == "disk" else nullcontext(tmp_path) as ckpt:
        asyncio.run(story(ckpt))


@pytest.mark.row("P9")
@pytest.mark.story("PRG-10")
def test_a_rank_that_spins_is_told_by_its_stack_acted_upon_and_named(local: LocalSystem) -> None:
    """Its CPU time looks like work; before the floor of ten minutes only its stack can tell."""

    async def story() -> None:
        ref = await start(local, "spin", "40")
        policy = FaultTolerancePolicy.full(hang=HangSettings(floor_seconds=600.0))
        desk = Desk()
        watching = asyncio.create_task(followed(ref, policy, desk))

        async def restarted() -> bool:
            return (await local.backend.observe(ref)).generation >= 1

        await eventually(restarted, f"a restart in place; said: {desk.said}", 150.0)
        watching.cancel()
        told = " ".join(desk.said)
        assert "rank 1 is spinning in <module> (rank.py:" in told
        assert "Rank 1 is suspected" in told

    asyncio.run(story())
