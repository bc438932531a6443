"""Whole tries on what somebody else has started: watched, judged, told what would have been done, and left alone."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_ft.agent import processes
from airflow_ft.attempts.letting_go import cancel_for_person, let_go
from airflow_ft.attempts.orders import watch_order
from airflow_ft.attempts.paying import pay_debts
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.staged import cancelled, stage_watch
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import Debt, End
from airflow_ft.core.decisions import UNTOUCHED, Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from airflow_ft.core.story import state_word
from tests.attempts.real_task import Driver, LogDesk

pytestmark = [pytest.mark.row("S4"), pytest.mark.timeout(120)]

STEPS = "for step in 1 2 3; do echo step $step/{total} loss 2.5; sleep 0.2; done; "
QUICK = HangSettings(floor_seconds=1, ceiling_seconds=2, startup_seconds=60, check_interval_seconds=0.5)
POLICY = FaultTolerancePolicy.full(max_restarts=3, settle_seconds=0.5, grace_seconds=1.0, hang=QUICK)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
Start = Callable[[str], "tuple[subprocess.Popen[bytes], str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script that writes a log. What is left of it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str) -> tuple[subprocess.Popen[bytes], str]:
        log = tmp_path / f"{len(started)}.log"
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(["sh", "-c", script], stdout=output, stderr=output, stdin=subprocess.DEVNULL)
            )
        return started[-1], str(log)

    yield run
    for one in started:
        processes.kill_tree([one.pid])
        one.wait()


def task(process: subprocess.Popen[bytes], log: str, **more: object) -> Driver:
    return Driver(ForeignJob(**{"pid": process.pid, "log": log, **more}), POLICY)


def test_a_fault_is_classified_and_what_a_job_of_ours_would_get_is_told(start: Start) -> None:
    """One try and no further: what would have been done stands in the chain, and costs nothing."""
    training, log = start(STEPS.format(total=9) + f"echo '{ECC}'; exit 1")
    it = task(training, log)
    chain = it.run()
    (attempt,) = it.attempts
    (incident,) = attempt.incidents
    decision = incident.decision
    assert incident.diagnosis.fault_class is FaultClass.HW_NODE
    assert decision.action is Action.FAIL
    assert decision.shadow is not None and decision.shadow.action in (Action.RESUBMIT, Action.RESUBMIT_EXCLUDING)
    assert f"Nothing is done to process {training.pid}, which is not ours" in decision.reason
    assert (chain.ledger.restarts, chain.debts, attempt.progress.step if attempt.progress else None) == (0, (), 3)
    assert [one.rule for one in decision.considered if one.applied][-1] == "not ours"
    assert chain.events[-1].text.endswith("→ nothing: it is not ours.")
    assert state_word(chain) == "failed", "fault tolerance has stopped nothing"
    assert f"Attempt 0 watches process {training.pid}, found as {attempt.name}." in it.said


def test_an_end_of_which_nobody_knows_the_code_is_judged_by_the_log(start: Start) -> None:
    """Its parent has asked for the code, so it is gone: it had made its last step."""
    training, log = start(STEPS.format(total=3))
    it = task(training, log, start_ticks=processes.start_ticks(training.pid))
    training.wait()
    chain = it.run()
    (attempt,) = it.attempts
    assert chain.concluded is End.SUCCEEDED
    assert attempt.outcome is not None and attempt.outcome.code is None
    assert "how it ended is not known; it had finished by then" in " ".join(attempt.outcome.warnings)


def test_a_hang_is_told_and_the_process_is_left_alone(start: Start) -> None:
    training, log = start(STEPS.format(total=9) + "sleep 1000")
    it = task(training, log)
    chain = it.run()
    (attempt,) = it.attempts
    assert attempt.incidents[-1].diagnosis.fault_class is FaultClass.COMM_HANG
    assert chain.decision is not None and chain.decision.action is Action.FAIL
    assert training.poll() is None
    assert any(f"{attempt.name} is left as it is: not ours" in line for line in it.said)


def test_the_stages_of_the_explicit_form_come_to_the_same(start: Start) -> None:
    """Watch, classify, decide, act, each as a task of its own would do it."""
    training, log = start(STEPS.format(total=9) + "sleep 1000")
    it = task(training, log)
    desk = LogDesk(it.said)

    async def staged() -> Conclusion:
        chain, started = await it.starter(1, desk).start()
        assert started is not None
        order = watch_order(chain, started.attempt, it.info(1), POLICY, desk.now(), staged=True)
        fault = (await stage_watch(order, desk).watch()).fault
        assert fault is not None
        fault = await stage_watch(order, desk).diagnose(fault)
        fault = await stage_watch(order, desk).decide(fault)
        return await stage_watch(order, desk).carry_out(fault)

    conclusion = asyncio.run(staged())
    decision = conclusion.incidents[-1].decision
    assert (decision.action, decision.level) == (Action.FAIL, UNTOUCHED)
    assert decision.shadow is not None and conclusion.debts == ()
    assert training.poll() is None


def watched(start: Start) -> tuple[Driver, subprocess.Popen[bytes]]:
    """A try that has begun to watch, and is then ended."""
    training, log = start(STEPS.format(total=9) + "sleep 1000")
    it = task(training, log)
    chain, started = asyncio.run(it.starter(1, LogDesk(it.said)).start())
    assert started is not None and chain.open == 0
    return it, training


@pytest.mark.story("LIF-01")
def test_a_person_who_clears_or_ends_the_task_ends_the_watch_alone(start: Start) -> None:
    it, training = watched(start)
    (attempt,) = it.attempts
    assert attempt.ref is not None
    chain = it.store.load()
    assert chain is not None
    order = watch_order(chain, attempt, it.info(1), POLICY, datetime.now(timezone.utc))
    asyncio.run(cancel_for_person(order, LogDesk(it.said)))
    assert it.said[-1].startswith(f"The task was ended or cleared; {attempt.name} is left as it is: not ours")
    # Cleared: the next try begins a segment of its own and watches the same process again.
    chain, started = asyncio.run(it.starter(2, LogDesk(it.said), max_tries=2000).start())
    assert started is not None and started.attempt.number == 1
    assert started.attempt.ref is not None and started.attempt.ref.uid == attempt.ref.uid
    assert training.poll() is None


def test_a_clean_up_says_that_it_left_it_alone_and_comes_to_its_end(start: Start) -> None:
    """The explicit form's teardown, and a debt of an older version: neither tries for ever."""
    it, training = watched(start)
    (attempt,) = it.attempts
    assert attempt.ref is not None
    arguments = (it.store, it.backend, it.job, 1.0, "The group has ended.")
    chain = asyncio.run(cancelled(*arguments, lambda: datetime.now(timezone.utc), it.said.append))
    assert chain is not None and chain.open is None
    assert it.said[-1].startswith(f"{attempt.name} is left as it is: not ours")
    owing = chain.but(debts=(Debt(ref=attempt.ref, since=datetime.now(timezone.utc), why="an older version"),))
    assert asyncio.run(pay_debts(it.backend, owing, it.store, 1.0, it.said.append)).debts == ()
    assert "is left as it is" in it.said[-1]
    assert asyncio.run(let_go(it.backend, attempt.ref, 1.0, "cancelling")).startswith("not ours")
    assert training.poll() is None


def test_what_was_taken_over_is_stopped_and_followed_by_a_job_of_ours(start: Start, tmp_path: Path) -> None:
    training, log = start(STEPS.format(total=9) + "sleep 1000")
    again = LocalJob(command=["sh", "-c", STEPS.format(total=3)], root=str(tmp_path), workdir=str(tmp_path))  # type: ignore[call-arg]
    it = task(training, log, own=True, start_ticks=processes.start_ticks(training.pid), again=again)
    chain = it.run()
    first, second = it.attempts
    assert chain.concluded is End.SUCCEEDED, it.said
    assert first.ref is not None and first.ref.backend == "foreign"
    assert second.ref is not None and second.ref.backend == "local"
    assert training.poll() is not None
