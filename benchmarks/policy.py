"""The policy, measured: how long a decision takes, and what the modes are worth against a trace of node faults.

    python -m benchmarks.policy --trace fault_trace.json [--seeds 100] [--json]

1. ``decide`` for a chain of 128 attempts and 1,000 excluded nodes: median and best of 300 calls, in CPU time.
2. The same decisions from dictionaries in another order and clocks of another zone: how many differ (none may).
3. ``explain``: how long it takes to make such a decision again from its record.
4. The simulation: 30 days, 128 nodes, blame right 90 % of the time, blind / basic / advanced / full side by side on the
   same worlds; CPU time, ETTR, pages, and the differences of neighbours with their 95 % confidence intervals.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_ft.cli.simulate import TRACE_NODES, published_accuracy
from airflow_ft.core.chain import Attempt, Incident, PastFault
from airflow_ft.core.decide import decide, past_fault
from airflow_ft.core.decisions import Action
from airflow_ft.core.explain import explained, inputs_of
from airflow_ft.core.faults import Diagnosis, FaultClass, Suspect
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import Situation
from airflow_ft.simulation.assumptions import Assumptions
from airflow_ft.simulation.study import side_by_side, study
from airflow_ft.simulation.trace import read_trace

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
CALLS = 300
POOL = tuple(f"node-{number:05d}" for number in range(4000))


def large_situation(fault_class: FaultClass) -> Situation:
    """A chain of 128 attempts (its head keeps 64 faults of 16 nodes each) with 1,000 excluded nodes of 4,000."""
    past = tuple(
        PastFault(
            cause=(fault_class.value, "it"),
            step=step,
            action=Action.RESUBMIT_EXCLUDING.value,
            nodes=POOL[step : step + 16],
            gained=False,
        )
        for step in range(64)
    )
    ledger = Ledger(restarts=127)
    for number in range(40):
        ledger = ledger.charge("restart", NOON - timedelta(minutes=number)).but(restarts=127)
        ledger = ledger.charge("in_place", NOON - timedelta(hours=number)).blamed([POOL[number]], 0.8, NOON)
    return Situation(
        diagnosis=Diagnosis(
            fault_class=fault_class,
            text="It broke.",
            signature="it",
            suspects=tuple(Suspect(kind="node", name=node) for node in POOL[1000:1016]),
        ),
        ledger=ledger,
        faults=past,
        step=99,
        can=(Action.RESTART_IN_PLACE, Action.RESUBMIT, Action.RESUBMIT_EXCLUDING),
        nodes_needed=512,
        pool_nodes=POOL,
        excluded_nodes=POOL[:1000],
    )


def decision_times() -> dict[str, Any]:
    """Measure ``decide`` for every class."""
    policy = FaultTolerancePolicy.full(max_restarts=128)
    found = {}
    for fault_class in FaultClass:
        situation = large_situation(fault_class)
        times = [_milliseconds(lambda here=situation: decide(policy, here, NOON)) for _ in range(CALLS)]
        found[fault_class.value] = {"median_ms": round(statistics.median(times), 3), "best_ms": round(min(times), 3)}
    return found


def explain_time() -> dict[str, float]:
    """Measure making a decision again from its record."""
    policy = FaultTolerancePolicy.full(max_restarts=128)
    situation = large_situation(FaultClass.HW_NODE).compact()
    decision = decide(policy, situation, NOON)
    incident = Incident(
        attempt=127,
        detected_at=NOON,
        diagnosis=situation.diagnosis,
        decision=decision,
        run=situation.run,
        past=past_fault(situation, decision),
        inputs=inputs_of(situation, policy, NOON),
    )
    attempt = Attempt(number=127, name="a", created_at=NOON, policy=policy.to_dict(), incidents=(incident,))
    read = Attempt.from_record(json.loads(json.dumps(attempt.to_record())))
    times = [_milliseconds(lambda: explained(read, read.incidents[0], situation.faults)) for _ in range(100)]
    assert explained(read, read.incidents[0], situation.faults).same
    return {"median_ms": round(statistics.median(times), 3)}


def reproducibility() -> dict[str, int]:
    """Count the decisions that change with the order of dictionaries or the zone of the clock."""
    fields: dict[str, Any] = {
        "max_restarts": 9,
        "unconditional": True,
        "ladder": {"UNKNOWN": ["RESUBMIT", "FAIL"], "NET_FABRIC": ["RESUBMIT_EXCLUDING", "FAIL"]},
        "signature_ladders": {"b": ["FAIL"], "a": ["RESUBMIT"]},
    }
    policies = [
        FaultTolerancePolicy(**dict(order)) for order in itertools.islice(itertools.permutations(fields.items()), 24)
    ]
    zones = [timezone.utc, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-9, minutes=-30))]
    differing = made = 0
    for fault_class in FaultClass:
        situation = large_situation(fault_class)
        digests = {decide(p, situation, NOON.astimezone(z)).digest() for p in policies for z in zones}
        made += len(policies) * len(zones)
        differing += len(digests) - 1
    return {"decisions": made, "differing": differing}


def simulation(trace: Path, seeds: int, assumed: Assumptions) -> dict[str, Any]:
    """Simulate the modes side by side."""
    read = read_trace(json.loads(trace.read_text(encoding="utf-8")), TRACE_NODES)
    began = time.process_time()
    found = study(side_by_side(64), read, assumed, published_accuracy(), seeds).to_dict()
    return {**found, "cpu_seconds": round(time.process_time() - began, 2)}


def _milliseconds(call: Any) -> float:
    """CPU time: other programs of the machine are not measured."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a trace of node faults; without it nothing is simulated")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {
        "decide": decision_times(),
        "explain": explain_time(),
        "reproducibility": reproducibility(),
    }
    if args.trace:
        found["simulation"] = simulation(args.trace, args.seeds, Assumptions())
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, times in found["decide"].items():
        print(f"decide {name:11} median {times['median_ms']:.3f} ms, best {times['best_ms']:.3f} ms")
    print(f"explain     median {found['explain']['median_ms']:.3f} ms")
    counted = found["reproducibility"]
    print(f"{counted['differing']} of {counted['decisions']} decisions differ by order or zone")
    if args.trace:
        shown = found["simulation"]
        print(
            f"simulation  {shown['seeds']} seeds, {shown['cpu_seconds']} s of CPU for {len(shown['policies'])} policies"
        )
        for name, measures in shown["policies"].items():
            ettr, pages = measures["ettr"], measures["pages"]
            print(
                f"  {name:9} ETTR {ettr['mean']:.4f} [{ettr['low']:.4f}, {ettr['high']:.4f}], pages {pages['mean']:.2f}"
            )
        for name, one in shown["ettr_above_the_one_before"].items():
            print(f"  {name:9} {one['mean']:+.4f} [{one['low']:+.4f}, {one['high']:+.4f}] above the one before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
