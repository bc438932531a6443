"""Every rung of the default ladder, reached by a real process on the local backend that fails in that way.

Each story is a chain as the operator makes it (start, watch, record), with small processes that print what real faults
print and end as they do. What a bisect does is another matter: here it is declared possible, and its search is
replaced by what it finds, so that the rungs after it are reached; the attempt after it fails again.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_ft.attempts import bisected
from airflow_ft.attempts.bisected import Bisector
from airflow_ft.attempts.conclude import Concluder
from airflow_ft.attempts.faults import TrainingFault
from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.record import write_conclusion
from airflow_ft.attempts.start import Starter
from airflow_ft.attempts.store import ChainStore
from airflow_ft.attempts.watch import Watch
from airflow_ft.core.bisect import BisectResult
from airflow_ft.core.chain import Attempt
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.ladder import DEFAULT_LADDER
from airflow_ft.core.policy import BackoffSettings, FaultTolerancePolicy, HangSettings
from airflow_ft.core.policy_record import read_policy, write_policy
from airflow_ft.diagnosis.signature_files import load_rules
from tests.backends.conformance import LocalSystem
from tests.backends.test_local_hangs import Desk

SCRIPT = """
import json, os, signal, sys, time
story, rank = json.load(open("story.json")), int(os.environ["RANK"])
count = len([name for name in os.listdir(".") if name.startswith(f"begun-{rank}-")])
open(f"begun-{rank}-{time.time_ns()}", "w").close()
act = story[min(count, len(story) - 1)]
if act["steps"]:
    print(f"step={2 * count + 1} loss=2.0", flush=True)
    print(f"step={2 * count + 2} loss=2.0", flush=True)  # further each time: the same step twice would be deterministic
if rank != act["rank"]:
    time.sleep(3600)
for line in act["says"]:
    print(line.replace("NODE", os.environ["FT_NODE"]), file=sys.stderr, flush=True)
if act["hangs"]:
    os.kill(os.getpid(), signal.SIGSTOP)
if act["code"] < 0:
    os.kill(os.getpid(), -act["code"])
sys.exit(act["code"])
"""


def act(*says: str, code: int = 1, **more: Any) -> dict[str, Any]:
    """One run of the training: what it prints, and how it ends."""
    return {"says": says, "code": code, "steps": True, "hangs": False, "rank": 0, **more}


# What real faults print.
UNCORRECTABLE = "[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
ECC = act(UNCORRECTABLE, "NVRM: Xid (PCI:0000:65:00): 48, DBE")
ECC_OF_NOBODY = act(UNCORRECTABLE)
FABRIC = act("NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1234> with status=12 opcode=0 len=0 vendor err 129")
FABRIC_OF_NOBODY = act(
    "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to "
    "(10.0.0.1, 29500)."
)
WATCHDOG = act(
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
    "600005 milliseconds before timing out.",
    code=-6,
)
HANG = act(hangs=True, rank=1)
HOST_MEMORY = act("MemoryError")
FOREIGN = act("gpu-check: the memory of GPU 0 is held on NODE by another job")
GPU_MEMORY = act("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
BUG = act("KeyError: 'x'")
DNS = act("socket.gaierror: [Errno -3] Temporary failure in name resolution")
MISSING = act("ModuleNotFoundError: No module named 'x'", steps=False)
KILLED = act(code=-9)

# What no log line of this machine can say by itself: a site's own check knows that somebody else holds the GPU.
SITE = """
signatures:
  - id: site.foreign_memory
    pattern: 'gpu-check: the memory of GPU \\d+ is held on (?P<node>\\S+) by another job'
    role: root
    fault_class: OOM_GPU
    retry: useful
    confidence: 0.9
    says: found its GPU in use by another job
    advice: Look who holds it.
    examples:
      match: ["gpu-check: the memory of GPU 0 is held on n1 by another job"]
      no_match: ["gpu-check: fine"]
"""


@dataclass(frozen=True)
class Story:
    """A chain: what each run of the training does, under which policy, and where."""

    acts: tuple[dict[str, Any], ...]
    reaches: tuple[str, ...]
    nodes: int = 1
    bisects: bool = False
    finds: bool = False  # whether a bisect finds a node
    policy: dict[str, Any] = field(default_factory=dict)


HW, NET, COMM = "HW_NODE", "NET_FABRIC", "COMM_HANG"
ONCE_IN_PLACE = {"max_in_place": 1}
STORIES = {
    "nodes break, nobody can bisect": Story(
        (ECC, ECC, ECC_OF_NOBODY), (f"{HW} 1: RESUBMIT_EXCLUDING", f"{HW} 5: RESUBMIT_EXCLUDING", f"{HW} 6: RESUBMIT")
    ),
    "a bisect finds a node, and it breaks again": Story(
        (ECC, ECC_OF_NOBODY, ECC_OF_NOBODY),
        (f"{HW} 1: RESUBMIT_EXCLUDING", f"{HW} 2: BISECT", f"{HW} 3: RESUBMIT_EXCLUDING", f"{HW} 7: FAIL"),
        bisects=True,
        finds=True,
    ),
    "a bisect of nodes finds nothing": Story(
        (ECC_OF_NOBODY, ECC_OF_NOBODY), (f"{HW} 2: BISECT", f"{HW} 4: RESUBMIT"), bisects=True
    ),
    "the network fails at one node": Story(
        (FABRIC, FABRIC, FABRIC, FABRIC_OF_NOBODY),
        (f"{NET} 1: RESTART_IN_PLACE", f"{NET} 2: RESUBMIT_EXCLUDING", f"{NET} 3: RESUBMIT", f"{NET} 7: RESUBMIT"),
    ),
    "the network fails, and a bisect finds nothing": Story(
        (FABRIC_OF_NOBODY,) * 5,
        (
            f"{NET} 1: RESTART_IN_PLACE",
            f"{NET} 3: RESUBMIT",
            f"{NET} 4: BISECT",
            f"{NET} 6: RESUBMIT",
            f"{NET} 8: FAIL",
        ),
        bisects=True,
    ),
    "the network fails, and a bisect finds a node": Story(
        (FABRIC_OF_NOBODY,) * 4, (f"{NET} 5: RESUBMIT_EXCLUDING",), bisects=True, finds=True
    ),
    "a collective times out, and no agent holds the node": Story(
        (WATCHDOG, WATCHDOG), (f"{COMM} 2: RESUBMIT",), policy={"hold_seconds": 0}
    ),
    "a collective times out": Story(
        (WATCHDOG, WATCHDOG), (f"{COMM} 1: RESTART_IN_PLACE", f"{COMM} 8: RESUBMIT"), policy=ONCE_IN_PLACE
    ),
    "a collective times out, and a bisect finds nothing": Story(
        (WATCHDOG,) * 4,
        (f"{COMM} 4: BISECT", f"{COMM} 6: RESUBMIT", f"{COMM} 9: FAIL"),
        bisects=True,
        policy=ONCE_IN_PLACE,
    ),
    "a rank stops": Story(
        (HANG, HANG, HANG),
        (f"{COMM} 1: RESTART_IN_PLACE", f"{COMM} 3: RESUBMIT_EXCLUDING", f"{COMM} 7: RESUBMIT_EXCLUDING"),
        nodes=2,
        policy=ONCE_IN_PLACE,
    ),
    "a rank stops, and a bisect finds its node": Story(
        (HANG, HANG, WATCHDOG, HANG),
        (f"{COMM} 5: RESUBMIT_EXCLUDING",),
        nodes=2,
        bisects=True,
        finds=True,
        policy=ONCE_IN_PLACE,
    ),
    "host memory": Story((HOST_MEMORY, HOST_MEMORY), ("OOM_HOST 1: RESUBMIT", "OOM_HOST 2: FAIL")),
    "GPU memory": Story((GPU_MEMORY,), ("OOM_GPU 3: FAIL",)),
    "GPU memory that somebody else holds": Story(
        (FOREIGN, FOREIGN, FOREIGN), ("OOM_GPU 1: RESUBMIT_EXCLUDING", "OOM_GPU 2: RESUBMIT", "OOM_GPU 3: FAIL")
    ),
    "a bug": Story((BUG,), ("APP_ERROR 1: FAIL",)),
    "a name can't be resolved": Story((DNS, DNS), ("ENV_ERROR 1: RESUBMIT",)),
    "a module is missing": Story((MISSING,), ("ENV_ERROR 2: FAIL",)),
    "a rank is killed, again and again": Story(
        (KILLED,) * 4, ("UNKNOWN 1: RESTART_IN_PLACE", "UNKNOWN 2: RESUBMIT", "UNKNOWN 3: FAIL"), policy=ONCE_IN_PLACE
    ),
}


class Values(dict[str, Any]):
    """A state store of one task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


async def lived(local: LocalSystem, story: Story, between: list[Decision]) -> list[str]:
    """Let a chain live until every act was played. Returns the rungs that were taken, in order.

    ``between`` is where the decisions that follow a bisect are found.
    """
    (local.scratch / "story.json").write_text(json.dumps(story.acts))
    (local.scratch / "train.py").write_text(SCRIPT)
    (local.scratch / "site.yaml").write_text(SITE)
    command = "RANK=$FT_NODE_RANK WORLD_SIZE=$FT_NNODES exec python train.py"
    job = local.job("sh", "-c", command, nodes=story.nodes)
    hang = HangSettings(floor_seconds=1.0, ceiling_seconds=2.0, check_interval_seconds=0.2)
    settings = {"max_restarts": 20, "settle_seconds": 0.2, "grace_seconds": 0.2, "hang": hang, **story.policy}
    policy = FaultTolerancePolicy.full(backoff=BackoffSettings(base_seconds=0), **settings)
    store, taken, played = ChainStore(Values()), [], 0
    for number in range(1, len(story.acts) + 2):
        info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=number, max_tries=99, ti_id="x")
        desk = Desk()
        starter = Starter(store, local.backend, job, policy, info, lambda: datetime.now(timezone.utc), desk.say)
        try:
            chain, started = await starter.start()
        except TrainingFault:
            break
        while between:
            taken += rungs_of(between.pop())
        assert started is not None and started.attempt.ref is not None
        order = WatchOrder(
            info=info, ref=started.attempt.ref, policy=write_policy(policy), ledger=chain.ledger, faults=chain.faults,
            excluded_nodes=chain.excluded_nodes, nodes_needed=story.nodes,
        )  # fmt: skip
        conclusion = await watched(local, order, desk)
        for incident in conclusion.incidents:
            played += 1
            taken += rungs_of(incident.decision)
        write_conclusion(store, chain, started.attempt, conclusion)
        if played >= len(story.acts):
            break
    return taken


RUNGS = {
    f"{fault_class.value} {number}: {rung.action.value}"
    for fault_class, ladder in DEFAULT_LADDER.items()
    for number, rung in enumerate(ladder, 1)
}


def rungs_of(decision: Decision) -> list[str]:
    """Return the rungs that a decision has taken."""
    return [one.rule for one in decision.considered if one.applied and one.rule in RUNGS]


async def watched(local: LocalSystem, order: WatchOrder, desk: Desk) -> Conclusion:
    """Watch an attempt to its end."""
    rules = load_rules([local.scratch / "site.yaml"])
    watch = Watch(order, read_policy(order.policy), local.backend, desk, rules)  # type: ignore[arg-type]
    return await asyncio.wait_for(watch.watch(), 60)


@pytest.fixture
def bisecting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Declare a bisect possible, and say what it finds: the first node of the attempt that failed, or nothing.

    Returns a list that gets the decisions that are made with it.
    """
    possible, decide, between = Concluder.possible, bisected.decide, []

    def decided(*arguments: Any) -> Decision:
        between.append(decide(*arguments))
        return between[-1]

    def found(finds: bool) -> list[Decision]:
        async def searched(_self: Any, last: Attempt, *_more: Any) -> tuple[str, BisectResult]:
            node = last.nodes[0]
            result = BisectResult(faulty_nodes=(node,), confidence={node: 0.99}) if finds else BisectResult()
            return f"Bisect: {result}.", result

        monkeypatch.setattr(Concluder, "possible", lambda self, seen: (*possible(self, seen), Action.BISECT))
        monkeypatch.setattr(Bisector, "_searched", searched)
        monkeypatch.setattr(bisected, "decide", decided)
        return between

    return found


def with_marks() -> list[Any]:
    """The names of the stories, those of the acceptance stories with their mark."""
    marks = {"host memory": "CLS-06", "a module is missing": "CLS-07"}
    return [pytest.param(name, marks=pytest.mark.story(marks[name]) if name in marks else ()) for name in STORIES]


@pytest.mark.row("M13")
@pytest.mark.row("M1")
@pytest.mark.parametrize("name", with_marks())
def test_rungs_are_reached_by_real_processes(name: str, local: LocalSystem, bisecting: Any) -> None:
    story = STORIES[name]
    between = bisecting(story.finds) if story.bisects else []
    taken = asyncio.run(lived(local, story, between))
    assert [rung for rung in story.reaches if rung not in taken] == [], taken


def test_the_stories_reach_every_rung_of_every_default_ladder() -> None:
    reached = {rung for story in STORIES.values() for rung in story.reaches}
    assert RUNGS - reached == set()
    assert reached - RUNGS == set(), "a rung that is no more"
