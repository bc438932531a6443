"""The sentences that people come for: each is asked of a chain where its answer is known."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.core.policy import HangSettings
from airflow_ft.core.progress import Progress
from airflow_ft.views import answers
from airflow_ft.views.chain_view import chain_view
from airflow_ft.views.markdown import as_markdown
from airflow_ft.views.models import ChainView
from airflow_ft.views.reckoning import lost_time
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import runs
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task
from tests.views.chains import BUG, ECC, NO_DNS, NO_MEMORY, ended, stored


def view(task: Task, state: str | None = None, **more: Any) -> ChainView:
    return chain_view(stored(task, state, **more), task.now())


def answer(shown: ChainView, key: str) -> Any:
    return next(one for one in shown.text.answers if one.key == key)


@pytest.fixture(scope="module")
def two_faults() -> Task:
    """A crash that is restarted in place, then an ECC error that is resubmitted; then it ends well."""
    return ended([Run(last=30, code=-9), Run(first=31, last=40, code=1, words=ECC)], [Run(first=41, last=60)], nodes=2)


@pytest.mark.row("S12")
def test_where_it_began_to_fail_is_the_first_fault_of_the_chain(two_faults: Task) -> None:
    began = answer(view(two_faults, "success"), "began")
    assert began.value.startswith("Attempt 0, 00:00, at step 30")
    assert began.fault_class == "UNKNOWN"
    assert "0 / 1 failed too" in began.detail


@pytest.mark.row("S12")
def test_faults_that_gather_are_told_only_from_two_and_half_of_all() -> None:
    once = view(ended([Run(last=30, code=1, words=BUG)]), "failed")
    assert answer(once, "gather").value == "One fault only"
    assert answer(once, "gather").tone is None
    twice = view(ended([Run(code=1, words=NO_DNS)], [Run(code=1, words=NO_DNS)], [Run()]), "success")
    gather = answer(twice, "gather")
    assert gather.tone == "warn"
    assert "2 of 2 faults" in gather.value


@pytest.mark.row("S12")
@pytest.mark.row("M12")
def test_a_budget_that_is_used_up_is_said_in_the_headline_and_in_the_restarts() -> None:
    crashes = [[Run(first=1 + 10 * n, last=10 + 10 * n, code=1, words=NO_DNS)] for n in range(4)]
    shown = view(ended(*crashes, max_restarts=2), "failed")
    assert shown.state == "stopped by fault tolerance"
    assert shown.text.headline.startswith("The budget is used up: 2 of 2 restarts, the last fault: ENV_ERROR")
    restarts = answer(shown, "restarts")
    assert (restarts.value, restarts.used, restarts.tone) == ("2 of 2 used, 0 left", (2, 2), "bad")
    assert shown.text.todo.tone == "bad"


@pytest.mark.row("S12")
def test_stopped_by_a_rule_leaves_restarts_and_says_so() -> None:
    shown = view(ended([Run(code=1, words=NO_MEMORY)]), "failed")
    assert shown.state == "stopped by fault tolerance"
    assert answer(shown, "restarts").value == "0 of 3 used, 3 left unspent"
    assert "stopped by a rule, not by the budget" in answer(shown, "restarts").detail


@pytest.mark.row("S12")
def test_failed_is_not_stopped_by_fault_tolerance() -> None:
    task = Task([Run(last=1000)])
    task.begin_try()
    task.execute()
    shown = view(task, "failed")
    assert shown.state == "failed"
    assert "Fault tolerance did not decide this" in shown.text.headline
    assert not shown.live


@pytest.mark.row("S12")
def test_the_last_retry_says_action_nodes_and_config(two_faults: Task) -> None:
    retry = answer(view(two_faults, "success"), "retry")
    assert retry.label == "Last retry (1)"
    assert retry.value == "Resubmit"
    assert "no new nodes" in retry.detail
    assert "same config" in retry.detail


@pytest.mark.row("S15")
def test_resubmitted_is_not_recovered_and_four_signs_say_whether_it_is(two_faults: Task) -> None:
    recovered = answer(view(two_faults, "success"), "recovered")
    assert recovered.value.startswith("Yes")
    assert {check.name: check.ok for check in recovered.checks} == dict.fromkeys(
        ("loaded", "step", "loss", "saved"), True
    )


@pytest.mark.row("S15")
def test_a_recovery_that_is_not_seen_yet_says_which_step_it_waits_for() -> None:
    task = Task([Run(last=30, code=1, words=ECC)], [Run(first=31, last=900)], nodes=1)
    task.settle(task.run_try)
    task.begin_try()
    task.execute()
    live = {"attempt": 1, "generation": 0, "recovery": "pending", "progress": {}, "nodes": ["n2"]}
    shown = view(task, "deferred", ft_progress=live)
    assert shown.state == "recovering"
    assert answer(shown, "recovered").value == "Not known yet: waits for step 31"
    assert "starting up from checkpoint 30" in shown.text.headline
    began = task.now()
    steps = Progress(
        step=200, first_step=31, first_step_at=began, at=began + timedelta(seconds=169), loaded=30, every=1
    )
    later = chain_view(
        stored(task, "deferred", ft_progress=live | {"recovery": "recovered", "progress": steps.to_record()}),
        began + timedelta(seconds=170),
    )
    assert later.state == "recovered"
    assert later.text.headline == "Attempt 1 is training again, past step 30 where attempt 0 died."
    passed = later.runs[0].passed
    assert passed is not None
    assert abs(passed.at - began.timestamp()) < 2, "when it passed, not when somebody looked"


@pytest.mark.row("S12")
def test_the_cost_counts_what_stood_still_once_and_steps_done_twice() -> None:
    task = ended([Run(last=35, code=-9), Run(first=31, last=60)])
    shown = view(task, "success")
    lost, twice = lost_time(stored(task, "success"), runs(stored(task, "success")), task.now())
    assert twice == 5
    assert 0 < lost < 60
    assert "5 steps done twice" in answer(shown, "cost").detail


@pytest.mark.row("S11")
def test_each_run_is_a_lane_whose_phases_follow_each_other(two_faults: Task) -> None:
    shown = view(two_faults, "success")
    assert [run.label for run in shown.runs] == ["0", "0 / 1", "1"]
    for run in shown.runs:
        assert {"startup", "train"} <= {phase.kind for phase in run.phases}
        edges = [(phase.start, phase.end) for phase in run.phases]
        assert edges == sorted(edges)
        assert all(before[1] <= after[0] + 1e-6 for before, after in itertools.pairwise(edges))
    assert [run.how for run in shown.runs] == ["", "restart in place", "resubmit"]
    assert [run.passed.by if run.passed else None for run in shown.runs] == ["0 / 1", "1", None]


def test_silence_of_a_hang_is_a_phase_of_its_own() -> None:
    hang = HangSettings(floor_seconds=60, check_interval_seconds=15)
    shown = view(ended([Run(last=30, code=None), Run(first=31, last=60)], hang=hang), "success")
    assert shown.runs[0].fault is not None
    assert shown.runs[0].fault.fault_class == "COMM_HANG"
    assert [phase.kind for phase in shown.runs[0].phases][-1] == "silence"


@pytest.mark.story("LIF-11")
def test_a_clear_begins_a_segment_with_fresh_budgets_and_goes_on_counting_attempts() -> None:
    task = ended([Run(code=1, words=BUG)], [Run()])
    task.clear()
    assert task.run_to_the_end() == "success"
    shown = view(task, "success")
    assert [segment.first_attempt for segment in shown.segments] == [0, 1]
    assert shown.runs[-1].how == "cleared by a person"
    assert answer(shown, "restarts").value == "0 of 3 used, 3 left"


def test_markdown_says_the_same_and_nothing_of_a_log_is_rendered() -> None:
    words = "KeyError: '[click](http://evil) `x` | <img src=x> @channel'"
    text = as_markdown(view(ended([Run(code=1, words=words)]), "failed"), "http://airflow/plugin/x")
    assert text.startswith("**Stopped by fault tolerance: ")
    assert "A class is a help for the decision, not a confirmed root cause." in text
    outside = "".join(part for number, part in enumerate(text.split("`")) if number % 2 == 0)
    for sign in ("[click]", "<img", " @channel"):
        assert sign not in outside.replace("\\[click\\]", "").replace("\\<img", "").replace("\\@channel", "")


@pytest.mark.story("UIO-04")
def test_no_run_that_ended_is_without_words() -> None:
    for task in (ended([Run(code=3)]), ended([Run(code=-9)] * 9), ended([Run(last=30, code=1, words=ECC)] * 9)):
        shown = view(task, "failed")
        assert all((run.fault and run.fault.text) or run.outcome for run in shown.runs)


def test_a_chain_that_only_its_head_is_known_of_has_a_headline(two_faults: Task) -> None:
    whole = stored(two_faults, "success")
    head = StoredChain(chain=whole.chain, attempts=(), task_state="success")
    assert answers.headline(head) == "Done at step 60 after 2 attempts; 1 of 3 restarts used."
    now = datetime.now(timezone.utc)
    assert chain_view(head, now).runs == ()
