"""The watch over one attempt: what it does about ends, outages, hangs and time limits, and what it leaves alone."""

from __future__ import annotations

import asyncio

import pytest

from airflow_ft.attempts import conclude
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.watch import Watch
from airflow_ft.backends.base import StackGroup
from airflow_ft.core.chain import End
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import FakeDesk, Task

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
BUG = "KeyError: 'x'"


def deferred(task: Task) -> Task:
    task.begin_try()
    assert task.execute() == "deferred"
    return task


def concluded(task: Task) -> Conclusion:
    return Conclusion.from_record(task.watch())


def watched_while(task: Task, *doings: tuple[float, object]) -> Conclusion:
    """Watch, and meanwhile do each of ``doings`` so many seconds after the beginning."""

    async def story() -> Conclusion:
        begin = task.seconds()

        async def do() -> None:
            for at, act in doings:
                await asyncio.sleep(begin + at - task.seconds())
                act()  # type: ignore[operator]

        doing = asyncio.ensure_future(do())
        try:
            return await task.make_watch().watch()
        finally:
            doing.cancel()

    return task.run(story())


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.story("WAT-01")
@pytest.mark.parametrize("slow", [0.5, 3.0, 5.0])
def test_a_job_that_fails_while_its_log_is_fetched_has_failed(slow: float) -> None:
    task = deferred(Task([Run(last=20, code=1, words=BUG)]))
    read = task.backend.read_logs

    async def slowly(*arguments: object) -> object:
        found = await read(*arguments)  # type: ignore[arg-type]
        await asyncio.sleep(slow)
        return found

    task.backend.read_logs = slowly  # type: ignore[method-assign, assignment]
    conclusion = concluded(task)
    assert conclusion.outcome.end is End.FAULT
    assert conclusion.incidents[-1].diagnosis.fault_class is FaultClass.APP_ERROR, "the last lines were read as well"


@pytest.mark.story("WAT-06")
def test_broken_bytes_in_the_output_end_nothing() -> None:
    task = deferred(Task([Run(last=200)]))
    text = task.cluster.text
    task.backend.read_logs = _with_garbage(task, text)  # type: ignore[method-assign, assignment]
    assert concluded(task).outcome.end is End.SUCCEEDED
    assert not task.told("supervisor itself failed")


def _with_garbage(task: Task, text: object) -> object:
    async def read(ref: object, cursors: dict[str, int], limit: int) -> object:
        from airflow_ft.backends.base import LogChunk

        data = bytes(range(256)) * 20 + task.cluster.text(task.cluster.jobs[ref.name]).encode() + b"\xe8\xae"  # type: ignore[attr-defined]
        begin = cursors.get("n1/output", 0)
        return [LogChunk(source="n1/output", node="n1", data=data[begin : begin + 97])], {"n1/output": begin + 97}

    return read


@pytest.mark.story("WAT-03")
@pytest.mark.parametrize(
    ("run", "end"),
    [
        (Run(last=30, total=30), End.SUCCEEDED),
        (Run(last=30, words="Training completed"), End.SUCCEEDED),
        (Run(last=30), End.FAULT),
        (Run(last=30, total=300, code=None), End.FAULT),
    ],
)
def test_a_job_that_is_gone_after_an_outage_has_succeeded_only_if_its_log_shows_that_it_had_finished(
    run: Run, end: End
) -> None:
    task = deferred(Task([run]))
    job = task.cluster.jobs[task.attempts[0].name]

    def vanish() -> None:
        task.cluster.unreachable.clear()
        job.forgotten = True

    conclusion = watched_while(task, (25, lambda: task.cluster.unreachable.add("observe")), (600, vanish))
    assert conclusion.outcome.end is end
    if end is End.SUCCEEDED:
        assert "it had finished by then" in conclusion.outcome.warnings[0]
    else:
        decision = conclusion.incidents[-1].decision
        assert decision.action is Action.RESUBMIT
        assert conclusion.incidents[-1].diagnosis.suspects == ()


@pytest.mark.story("RST-12")
def test_a_job_that_was_told_to_stop_and_ended_with_zero_is_continued_and_not_charged() -> None:
    task = Task([Run(last=30, code=0, term=True, total=5000)], [Run(first=31, last=60)])
    assert task.run_to_the_end() == "success"
    assert task.attempts[0].outcome is not None
    assert task.attempts[0].outcome.end is End.DISRUPTED
    assert task.chain.ledger.restarts == 0


def test_short_of_its_total_is_a_success_with_a_warning() -> None:
    conclusion = concluded(deferred(Task([Run(last=30, total=50)])))
    assert conclusion.outcome.end is End.SUCCEEDED
    assert conclusion.outcome.warnings == ("ended with code 0 at step 30 of 50",)


@pytest.mark.story("LIF-10")
@pytest.mark.parametrize("how", ["fails", "unreachable", "never answers"])
def test_a_clean_up_that_fails_leaves_a_success_a_success_and_a_debt(how: str) -> None:
    task = deferred(Task([Run(last=30)]))
    task.cluster.cancel_fails = how == "fails"
    task.cluster.unreachable |= {"cancel"} if how == "unreachable" else set()
    task.cluster.silent |= {"cancel"} if how == "never answers" else set()
    assert task.settle(lambda: task.complete(task.watch())) == "success"
    (debt,) = task.chain.debts
    assert debt.ref.name == task.attempts[0].name
    assert "could be cleaned up" in task.attempts[0].outcome.warnings[0]  # type: ignore[union-attr]
    assert [event.kind for event in task.chain.events] == ["succeeded", "cancel_owed"]
    assert task.run_try() == "success", "replayed; the debt is still owed, and changes nothing"
    task.cluster.cancel_fails = False
    task.cluster.unreachable.clear()
    task.cluster.silent.clear()
    assert task.run_try() == "success"
    assert task.chain.debts == (), "the next try that can has paid it"


def test_a_person_who_cancels_with_the_clusters_own_tools_is_obeyed() -> None:
    task = deferred(Task([Run(code=None)]))
    name = task.attempts[0].name
    conclusion = watched_while(task, (10, lambda: task.cluster.person_cancels(name)))
    assert conclusion.outcome.end is End.CANCELLED
    assert task.settle(lambda: task.complete(conclusion.to_record())) == "failed"
    assert task.chain.ledger.restarts == 0


# --- not being able to see -------------------------------------------------------------------------------------------


@pytest.mark.story("WAT-02")
@pytest.mark.parametrize("how", ["no answer", "never answers"])
def test_three_outages_cancel_submit_and_charge_nothing(how: str) -> None:
    task = deferred(Task([Run(last=4000)]))
    broken = task.cluster.unreachable if how == "no answer" else task.cluster.silent

    def begin() -> None:
        broken.add("*")

    doings = [
        (at, doing) for n in range(3) for at, doing in ((1000.0 * n + 100, begin), (1000.0 * n + 700, broken.clear))
    ]
    conclusion = watched_while(task, *doings)
    assert conclusion.outcome.end is End.SUCCEEDED
    assert conclusion.incidents == ()
    assert task.cluster.cancels == [task.attempts[0].name], "only the tidying up after the success"
    assert len(task.cluster.created) == 1
    assert [notice.kind for notice in conclusion.notices] == ["unreachable", "reachable"] * 3
    starts = [line for line in task.log if "Can't be reached since" in line]
    since = {line.split("since ")[1][:8] for line in starts}
    assert len(since) == 3, "each outage has its own clock"
    assert any(word.rstrip(".").isdigit() for word in starts[-1].split()[-1:]), "the last step is told"


def test_an_outage_in_the_middle_of_a_conclusion_leads_to_another_look() -> None:
    task = deferred(Task([Run(last=30, code=1, words=GPU)]))
    task.cluster.unreachable |= {"log_tails", "evidence"}
    conclusion = watched_while(task, (60, task.cluster.unreachable.clear))
    assert conclusion.incidents[-1].diagnosis.fault_class is FaultClass.HW_NODE
    assert len(conclusion.incidents) == 1


def test_our_own_bug_ends_no_live_job(monkeypatch: pytest.MonkeyPatch) -> None:
    task = deferred(Task([Run(last=60)]))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "_is_ending", broken)
        conclusion = concluded(task)
    assert conclusion.outcome.end is End.SUCCEEDED
    assert [notice.kind for notice in conclusion.notices] == ["supervisor_error"]
    assert "the job is not touched" in conclusion.notices[0].text


def test_a_rule_that_breaks_leaves_the_job_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("a rule of ours")

    monkeypatch.setattr(conclude, "classify", broken)
    conclusion = concluded(deferred(Task([Run(last=30, code=1, words=GPU), Run(code=0)])))
    assert conclusion.outcome.end is End.SUCCEEDED
    assert conclusion.incidents[0].diagnosis.text == "The fault could not be classified (RecursionError)."


# --- hangs -----------------------------------------------------------------------------------------------------------

QUICK = HangSettings(floor_seconds=60.0, ceiling_seconds=120.0, check_interval_seconds=5.0)


@pytest.mark.row("P9")
def test_a_hang_dumps_stacks_names_the_stopped_rank_and_is_restarted_in_place() -> None:
    task = Task(
        [Run(last=30, code=None), Run(first=31, last=60)], policy=FaultTolerancePolicy.full(hang=QUICK), nodes=2
    )
    task.backend.stacks = (
        StackGroup(node="n1", ranks=(0, 1), stack="all_reduce"),
        StackGroup(node="n2", ranks=(2,), stack="all_reduce"),
        StackGroup(node="n2", ranks=(3,), stack="", stopped=True),
    )
    assert task.run_to_the_end() == "success"
    (incident,) = task.attempts[0].incidents
    assert incident.diagnosis.fault_class is FaultClass.COMM_HANG
    assert incident.diagnosis.text.endswith("Rank 3 on n2 is stopped (SIGSTOP).")
    stood = [(place.who, place.odd, place.stopped) for place in incident.diagnosis.stacks]
    assert stood == [("Rank 3 on n2", True, True), ("3 ranks: 0-2 on 2 nodes", False, False)], (
        "for people, in the record"
    )
    assert incident.decision.charged == "hang"
    assert (task.chain.ledger.restarts, task.chain.ledger.hang_streak) == (0, 1)


def test_in_notice_mode_a_hang_is_told_once_and_nothing_is_done() -> None:
    hang = HangSettings(action="notify", floor_seconds=60.0, ceiling_seconds=120.0, check_interval_seconds=5.0)
    task = deferred(Task([Run(last=30, code=None)], policy=FaultTolerancePolicy.full(hang=hang), timeout=1000.0))
    conclusion = concluded(task)
    assert conclusion.outcome.end is End.TIMED_OUT
    assert [notice.kind for notice in conclusion.notices] == ["hang_notice"]
    assert "dump_stacks" not in task.cluster.calls, "a run that is only watched isn't changed"
    assert task.cluster.orders == []


def test_without_hang_detection_silence_is_nothing() -> None:
    task = deferred(Task([Run(last=30, code=None)], policy=FaultTolerancePolicy.advanced(), timeout=3000.0))
    assert concluded(task).outcome.end is End.TIMED_OUT


@pytest.mark.story("LIF-06")
def test_a_time_limit_stops_the_job_fails_the_task_and_is_not_charged() -> None:
    task = deferred(Task([Run(code=None)], timeout=90.0))
    assert task.settle(lambda: task.complete(task.watch())) == "failed"
    assert task.seconds() == pytest.approx(90, abs=3)
    task.check()
    assert task.cluster.live() == []
    assert task.attempts[0].outcome is not None
    assert "attempt_timeout" in task.attempts[0].outcome.text
    assert task.chain.ledger.restarts == 0


def test_the_desk_is_a_desk() -> None:
    """The fake has what the port asks for."""
    from airflow_ft.attempts.ports import Desk

    names = {name for name in vars(Desk) if not name.startswith("_")}
    assert all(hasattr(FakeDesk, name) for name in names)
