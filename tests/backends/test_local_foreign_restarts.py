"""A job that somebody below us restarts, again and again at the same step: it is counted, told, and taken over."""

from __future__ import annotations

import asyncio

import pytest

from airflow_ft.attempts.ports import Conclusion
from airflow_ft.core.decisions import Action
from airflow_ft.core.policy import FaultTolerancePolicy
from tests.backends.conformance import LocalSystem
from tests.backends.test_local_hangs import Desk, followed

LOOP = """
import sys, time
gains = int(sys.argv[1])
for turn in range(1000):
    if turn:
        print("resumed from checkpoint step 2", flush=True)
    for step in range(3, 6 + gains * turn):
        print(f"step={step} loss=2.0", flush=True)
        time.sleep(0.02)
    print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
    time.sleep(0.1)
    if gains and turn == 6:
        sys.exit(0)
"""


async def watched(local: LocalSystem, gains: int) -> tuple[Conclusion, Desk]:
    (local.scratch / "loop.py").write_text(LOOP)
    ref = await local.submit("python", "-S", "loop.py", str(gains))
    desk, policy = Desk(), FaultTolerancePolicy.full(grace_seconds=0.5, settle_seconds=0.2)
    conclusion = await asyncio.wait_for(followed(ref, policy, desk), 60)
    assert not local.processes(ref)
    return conclusion, desk


@pytest.mark.story("PRG-05")
@pytest.mark.story("RST-10")
def test_a_job_that_restarts_itself_at_the_same_step_is_taken_over(local: LocalSystem) -> None:
    conclusion, desk = asyncio.run(watched(local, gains=0))
    (incident,) = conclusion.incidents
    assert incident.decision.action is not Action.RESTART_IN_PLACE, "the limit of restarts in place is used up"
    assert incident.inputs is not None and incident.inputs.foreign_restarts >= 3
    assert any(notice.kind == "foreign_restart" for notice in conclusion.notices), desk.said  # type: ignore[attr-defined]


@pytest.mark.story("PRG-05")
def test_a_job_that_gains_steps_with_each_restart_of_its_own_is_left_alone(local: LocalSystem) -> None:
    conclusion, desk = asyncio.run(watched(local, gains=3))
    assert conclusion.incidents == (), desk.said  # type: ignore[attr-defined]
    assert conclusion.outcome.end.value == "succeeded"  # type: ignore[attr-defined]
