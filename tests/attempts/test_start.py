"""How a try begins: reconcile, fence, intent, submit. Exactly one job per attempt number, whatever the cluster says."""

from __future__ import annotations

import contextlib
import threading

import pytest

from airflow_ft.attempts.faults import TrainingFault, TryAgainLaterError
from airflow_ft.attempts.start import NAMES_TRIED
from airflow_ft.backends.base import Submission
from airflow_ft.core.chain import AttemptState, End
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.names import attempt_name, chain_id
from tests.attempts.fake_backend import FakeJob
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, Killer, ReplacedError, Task, at_point

GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
FOREVER = [Run(code=None, last=5)]


def chain_of(task: Task) -> str:
    """The chain's id, before it is stored: it is known from what Airflow says."""
    return chain_id("dag", "run", "train", -1, "ti-1")


@pytest.mark.story("SUB-01")
def test_a_look_up_that_lags_behind_creates_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task([Run(last=30)])
    task.cluster.lag_seconds = 10.0
    with at_point(monkeypatch, Killer("start.after_submit")), pytest.raises(Died):
        task.run_try()
    assert task.run_try() == "success"
    assert len(task.cluster.created) == 1
    task.check()


@pytest.mark.story("SUB-03")
def test_a_submission_that_worked_though_it_seemed_to_fail_is_not_repeated() -> None:
    task = Task([Run(last=30)])
    task.cluster.answers_lost = {"submit"}
    assert task.run_try() == "later"
    assert task.told("It may have worked; it is looked up.")
    task.cluster.answers_lost = set()
    assert task.run_try() == "success"
    assert len(task.cluster.created) == 1
    assert task.chain.attempts == 1


def test_a_try_that_asked_to_be_tried_later_is_not_called_lost() -> None:
    task = Task([Run(last=30)])
    with task.cluster.outage():
        assert [task.run_try() for _ in range(3)] == ["later"] * 3
    assert task.cluster.created == []
    assert task.run_try() == "success"
    assert [event.kind for event in task.chain.events] == ["succeeded"]


def test_a_try_that_airflow_lost_is_told_and_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task([Run(last=30)])
    with at_point(monkeypatch, Killer("start.after_id")), pytest.raises(Died):
        task.run_try()
    assert task.run_try() == "success"
    assert [event.kind for event in task.chain.events] == ["try_lost", "adopted", "succeeded"]
    assert task.chain.ledger.restarts == 0


@pytest.mark.story("SUB-04")
def test_a_job_made_anew_under_the_same_name_is_not_ours() -> None:
    task = Task([Run(code=None)], [Run(last=30)])
    task.begin_try()
    assert task.execute() == "deferred"
    name = task.attempts[0].name
    strange = task.cluster.jobs[name]
    task.cluster.jobs[name].ref = strange.ref.but(uid="somebody-else's")
    assert task.run_try() == "retry", "the old one counts as gone"
    assert task.run_try() == "success"
    assert not strange.closed_by, "the foreign one is left alone"
    assert task.attempts[1].name != name


@pytest.mark.story("SUB-04")
def test_a_foreign_job_under_the_next_name_is_not_touched_and_the_number_after_it_is_taken() -> None:
    task = Task([Run(last=30)])
    foreign = attempt_name(chain_of(task), 0)
    task.cluster.foreign.add(foreign)
    assert task.run_try() == "success"
    first, second = task.attempts
    assert first.outcome is not None
    assert (first.name, first.outcome.end) == (foreign, End.CANCELLED)
    assert task.cluster.created == [second.name]
    task.check()


def test_too_many_foreign_names_are_put_off_not_failed() -> None:
    task = Task([Run(last=30)])
    task.cluster.foreign |= {attempt_name(chain_of(task), number) for number in range(NAMES_TRIED)}
    assert task.run_try() == "later"
    assert task.run_try() == "success"


@pytest.mark.story("SUB-05")
def test_a_job_that_exists_and_has_ended_well_is_finished_and_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task([Run(last=30)])
    with at_point(monkeypatch, Killer("start.after_submit")), pytest.raises(Died):
        task.run_try()
    task.wait(3600)
    assert task.run_try() == "success"
    assert len(task.cluster.created) == 1


@pytest.mark.story("SUB-05")
def test_a_job_that_exists_and_has_failed_is_closed_with_its_evidence_and_the_next_number_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = Task([Run(last=30, code=1, words=GPU)], [Run(last=60)])
    with at_point(monkeypatch, Killer("start.after_submit")), pytest.raises(Died):
        task.run_try()
    task.wait(3600)
    assert task.run_to_the_end() == "success"
    assert [incident.diagnosis.fault_class for incident in task.attempts[0].incidents] == [FaultClass.HW_NODE]
    assert task.cluster.created == [attempt.name for attempt in task.attempts]


@pytest.mark.story("SUB-06")
def test_leftovers_of_failed_attempts_and_running_siblings_disturb_nobody() -> None:
    faults = [[Run(first=1 + 30 * n, last=30 + 30 * n, code=1, words=GPU)] for n in range(3)]
    task = Task([Run(code=None)], pool=8)
    siblings = [f"{chain_id('dag', 'run', 'train', map_index, 'ti')}" for map_index in (1, 2)]
    for chain in siblings:
        task.run(task.backend.submit(FakeJob(), Submission(name=f"{chain}-a0", chain_id=chain, attempt=0)))
    task.cluster.created.clear()
    task.cluster.scripts = [*faults, [Run(first=91, last=120)]]
    assert task.run_to_the_end() == "success"
    assert len(task.attempts) == 4
    assert {job.ref.chain_id for job in task.cluster.live()} == set(siblings)


@pytest.mark.story("SUB-07")
def test_attempts_differ_in_name_number_exclusions_and_hints_alone() -> None:
    task = Task(
        [Run(last=30, code=1, words=GPU)], [Run(first=31, last=60, code=1, words=GPU)], [Run(first=61, last=90)]
    )
    before = task.job.model_copy(deep=True)
    assert task.run_to_the_end() == "success"
    assert task.job == before
    sent = [job.submission.model_dump() for job in task.cluster.jobs.values()]
    assert [one["tags"].pop("restarts") for one in sent] == ["0/3", "1/3", "2/3"]  # for people who list jobs
    differing = {key for key in sent[0] if len({str(one[key]) for one in sent}) > 1}
    assert differing <= {"name", "attempt", "excluded_nodes", "resume_from"}
    assert [one["resume_from"] for one in sent] == ["", "/ckpt/30.pt", "/ckpt/60.pt"]


@pytest.mark.story("SUB-08")
@pytest.mark.parametrize("deferrable", [True, False])
def test_deferral_changes_nothing_of_what_is_created_and_recorded(deferrable: bool) -> None:
    def story(deferrable: bool) -> tuple[list[str], object, object]:
        task = Task([Run(last=30, code=1, words=GPU)], [Run(first=31, last=60)], deferrable=deferrable)
        assert task.run_to_the_end() == "success"
        task.check()
        return task.cluster.created, task.chain.ledger, [a.outcome for a in task.attempts]

    assert story(deferrable) == story(True)


def test_a_job_that_the_backend_refuses_fails_with_what_has_to_be_changed() -> None:
    task = Task([Run(last=30)])
    task.cluster.refusal = "nodes: 9 is not allowed. The pool has 4."
    assert task.run_try() == "failed"
    (attempt,) = task.attempts
    assert attempt.outcome is not None
    assert attempt.outcome.text == task.cluster.refusal
    assert task.cluster.created == []
    assert task.chain.ledger.restarts == 0
    task.cluster.refusal = ""
    assert task.run_try() == "failed", "it stays failed until a person clears it"
    task.clear()
    assert task.run_try() == "success"


@pytest.mark.story("RST-07")
def test_the_first_attempt_has_nothing_to_resume_and_the_next_one_what_was_saved_last() -> None:
    without_path = Run(last=35, saves=0, code=1, words=f"saved checkpoint step 35\n{GPU}")
    task = Task([without_path], [Run(first=36, last=60)])
    assert task.run_to_the_end() == "success"
    assert [attempt.resume_from for attempt in task.attempts] == ["", ""], "a number is no path"
    assert task.attempts[1].expected_checkpoint == 35


# --- two tries at once ---------------------------------------------------------------------------------------------

STEPS = "after_chain", "before_intent", "between_intents", "after_intent", "before_submit", "after_submit", "after_id"
STALE = [f"start.{step}" for step in STEPS]


@pytest.mark.story("LIF-02")
@pytest.mark.parametrize("point", STALE)
def test_a_try_that_was_frozen_and_replaced_writes_and_creates_nothing(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, fired = Task([Run(last=30)]), False

    def freeze(reached: str) -> None:
        nonlocal fired
        if reached == point and not fired:
            fired = True
            thread = threading.Thread(target=second_try)
            thread.start()
            thread.join()

    def second_try() -> None:
        task.begin_try()
        task.execute()

    task.begin_try()
    stale = task.starter()
    give_up = contextlib.suppress(ReplacedError, TryAgainLaterError)  # all it can do
    with at_point(monkeypatch, freeze), give_up:
        task.run(stale.start())
    assert fired
    values = dict(task.values)
    assert not task.cluster.violations
    assert len(task.cluster.live()) == 1
    task.check()
    assert task.settle(lambda: task.complete(task.watch())) == "success"
    assert len(task.cluster.created) == len(set(task.cluster.created))
    assert values["ft/chain"] != task.values["ft/chain"]


def test_a_process_that_was_told_to_end_submits_nothing_any_more() -> None:
    task = Task([Run(last=30)])
    task.begin_try()
    with pytest.raises(TryAgainLaterError, match="told to end"):
        task.run(task.starter(killed=lambda: True).start())
    assert task.cluster.created == []
    assert task.run_try() == "success"


def test_the_name_is_told_before_the_job_is_created() -> None:
    """``on_kill`` has to know what to fence even if the answer to the submission never comes."""
    task, told = Task([Run(last=30)]), []
    task.cluster.answers_lost = {"submit"}
    task.begin_try()
    with pytest.raises(TryAgainLaterError):
        task.run(task.starter(naming=lambda name, chain: told.append((name, chain))).start())
    assert told[0] == (task.cluster.created[0], task.chain.chain_id)


# --- after the end ---------------------------------------------------------------------------------------------------


@pytest.mark.story("LIF-04")
def test_a_success_whose_hand_over_fails_again_and_again_is_taken_from_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task([Run(last=30)])
    for _ in range(2):
        with at_point(monkeypatch, Killer("record.before_attempt")), pytest.raises(Died):
            task.run_try()
    task.begin_try()
    assert task.execute() == "success", "without deferring"
    assert len(task.cluster.created) == 1
    assert task.chain.ledger.restarts == 0


def test_a_result_that_airflow_lost_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Task([Run(last=30)]), Task([Run(last=30, code=1, words="KeyError: 'x'")])
    assert [good.run_try(), good.run_try()] == ["success", "success"]
    assert [bad.run_try(), bad.run_try()] == ["failed", "failed"]
    for task in (good, bad):
        assert len(task.cluster.created) == 1
        assert len(task.attempts) == 1


@pytest.mark.story("LIF-08")
def test_the_attempt_after_a_lost_node_adopts_nothing_and_avoids_the_node() -> None:
    task = Task([Run(last=1000)], [Run(first=21, last=40)], nodes=2)
    task.begin_try()
    assert task.execute() == "deferred"
    task.wait(20)
    task.cluster.lose("n2")
    task.cluster.cancel_fails = True
    assert task.settle(lambda: task.complete(task.watch())) == "retry"
    assert task.run_try() == "later", "the old one isn't gone yet: nothing is submitted"
    assert len(task.cluster.created) == 1
    task.cluster.cancel_fails = False
    task.cluster.lost.clear()  # it comes back: but it is suspected
    assert task.run_try() == "success"
    first, second = task.attempts
    assert (first.incidents[-1].diagnosis.suspect_nodes, second.excluded_nodes) == (("n2",), ("n2",))
    assert "n2" not in second.nodes
    assert task.chain.debts == ()
    task.check()


@pytest.mark.story("LIF-11")
def test_a_succeeded_task_that_is_cleared_really_runs_again_from_its_beginning() -> None:
    task = Task([Run(last=30)])
    assert task.run_try() == "success"
    task.clear()
    assert task.run_try() == "success"
    _, second = task.attempts
    assert (second.number, second.segment, second.resume_from, second.expected_checkpoint) == (1, 1, "", None)
    assert len(task.cluster.created) == 2
    assert (task.chain.segment_first, task.chain.highest_step) == (1, 30)


@pytest.mark.story("LIF-11")
def test_a_failed_task_that_is_cleared_goes_on_from_its_checkpoint_with_fresh_budgets() -> None:
    failing = Run(last=35, code=1, words=f"{GPU}\nprocess rank 0")
    task = Task([failing], [failing], [failing], [failing], [Run(first=31, last=60)])
    assert task.run_to_the_end() == "failed"
    spent = task.chain.ledger
    assert spent.restarts > 0
    attempts = task.chain.attempts
    task.cluster.scripts = [[Run(first=31, last=60)]]
    task.clear()
    assert task.run_try() == "success"
    last = task.attempts[-1]
    assert (last.number, last.segment, last.resume_from) == (attempts, 1, "/ckpt/30.pt")
    assert task.chain.ledger.restarts == 0
    assert task.told("begins with fresh budgets")


@pytest.mark.story("LIF-11")
def test_a_clear_while_it_runs_fences_the_old_job_before_the_new_one_is_made() -> None:
    task = Task([Run(code=None)], [Run(last=30)])
    task.begin_try()
    assert task.execute() == "deferred"
    task.clear()
    with task.cluster.outage("cancel"):
        assert task.run_try() == "later"
        assert len(task.cluster.created) == 1
    assert task.run_try() == "success"
    task.check()


# --- records that can't be read --------------------------------------------------------------------------------------


def test_an_attempt_whose_record_is_broken_is_fenced_by_its_name_and_the_next_number_is_used() -> None:
    task = Task([Run(code=None)], [Run(last=30)])
    task.begin_try()
    assert task.execute() == "deferred"
    task.values["ft/attempt/0000"] = '{"number": "none"}'
    assert task.run_try() == "success"
    assert task.cluster.jobs[task.cluster.created[0]].closed_by
    first, second = task.attempts
    assert first.outcome is not None
    assert first.outcome.text == "The record of this attempt can't be read."
    assert second.number == 1
    task.check()


def test_the_state_of_a_newer_version_means_look_at_the_job() -> None:
    assert AttemptState("a newer word") is AttemptState.SUBMITTED
    assert End("a newer word") is End.UNKNOWN


def test_training_fault_carries_the_decision() -> None:
    task = Task([Run(last=30, code=1, words="KeyError: 'x'")])
    task.begin_try()
    task.execute()
    with pytest.raises(TrainingFault) as raised:
        task.complete(task.watch())
    assert raised.value.stops
    assert str(raised.value) == task.chain.decision.reason  # type: ignore[union-attr]
