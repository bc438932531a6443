"""Which book a stage goes on in, when a clear begins a new segment, and what is skipped: without Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import DownstreamTasksSkipped, TaskDeferred

from airflow_ft.attempts.faults import TryAgainLaterError
from airflow_ft.attempts.handing_on import OWN_BOOK, SETTINGS, Book, StageSettings
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import Attempt, AttemptState, Chain, End, Outcome
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.retry_policy import FaultToleranceRetryPolicy
from airflow_ft.operators.settings import TrainingSettingsError
from airflow_ft.operators.stages.base import BOOK_KEY, RETRIES, Group
from airflow_ft.operators.stages.submit import SEEN_KEY
from airflow_ft.taskgroups.training import fault_tolerant_training
from airflow_ft.triggers.answers import NOT_ANSWERED, AnswerTrigger

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
GROUP = "training"
JOB = LocalJob(command="train.py")
ORDER = ("submit", "attempt_0.watch", "attempt_0.classify", "attempt_0.decide", "attempt_0.resubmit")


class Instance:
    """A task instance as a stage sees it: XComs of the whole run, and the states of its tasks."""

    def __init__(self, xcoms: dict[tuple[str, str], Any], states: dict[str, str], task_id: str, **more: Any) -> None:
        self.xcoms, self.states, self.task_id, self.pulled = xcoms, states, task_id, []  # type: ignore[var-annotated]
        self.dag_id, self.run_id, self.map_index, self.id = "explicit", "run", more.pop("map_index", -1), "ti-1"
        self.try_number, self.max_tries = more.pop("try_number", 1), more.pop("max_tries", RETRIES)

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int) -> Any:
        self.pulled.append(task_ids)
        return self.xcoms.get((task_ids, key))

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[self.task_id, key] = value

    def get_task_states(self, **asked: Any) -> dict[str, Any]:
        index = "" if self.map_index < 0 else f"_{self.map_index}"
        return {"run": {f"{one}{index}": self.states.get(one) for one in asked["task_ids"] if one in self.states}}


class Accessor:
    """Airflow's task state store of one task instance."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any, retention: Any = None) -> None:
        self.values[key] = value


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("explicit", schedule=None, start_date=NOON) as made:
        fault_tolerant_training(job=JOB, attempts=2)
        yield made


def full(name: str) -> str:
    return f"{GROUP}.{name}"


def book(serial: int, **changes: Any) -> dict[str, Any]:
    """A book with a chain of one attempt, written so many times."""
    written: list[Any] = []
    made = Book(None, written.append)
    chain = Chain(
        chain_id="c", dag_id="explicit", run_id="run", task_id=full("result"), created_at=NOON, max_tries=1000
    )
    made.chain.save(chain.but(attempts=1, **changes))
    outcome = Outcome(end=End.FAULT, text="It failed.")
    state = AttemptState.CONCLUDED
    made.chain.save_attempt(
        Attempt(number=0, name="c-a0", state=state, created_at=NOON, ended_at=NOON, outcome=outcome)
    )
    return {**written[-1], "serial": serial}


def context(ti: Instance, store: Accessor | None = None) -> dict[str, Any]:
    return {"ti": ti, "task_state_store": store or Accessor()}


def test_a_stage_goes_on_in_the_book_of_the_last_stage_that_ran(dag: DAG) -> None:
    """Not in that of the stage that handed the attempt on: others may have written since."""
    xcoms = {(full(name), BOOK_KEY): book(serial) for serial, name in enumerate(ORDER[:4])}
    states = {full(name): "success" for name in ORDER[:4]} | {full("attempt_1.watch"): "skipped"}
    stage: Any = dag.get_task(full("attempt_0.resubmit"))
    stage.attempt = {"stage": full("submit"), "chain_id": "c"}
    ti = Instance(xcoms, states, stage.task_id)
    assert stage._opened(context(ti)).serial == 3
    assert ti.pulled == [full("attempt_0.decide")], "one request is enough"
    mapped = Instance(xcoms, states, stage.task_id, map_index=7)
    assert stage._opened(context(mapped)).serial == 3


def test_a_stage_that_is_run_again_finds_what_it_has_written_itself(dag: DAG) -> None:
    stage: Any = dag.get_task(full("attempt_0.classify"))
    store = Accessor()
    store.values[OWN_BOOK] = book(9)
    xcoms = {(full("attempt_0.watch"), BOOK_KEY): book(5)}
    ti = Instance(xcoms, {full("attempt_0.watch"): "success"}, stage.task_id, try_number=2)
    opened = stage._opened(context(ti, store))
    assert opened.serial == 9
    opened.set("stage/x", 1)
    assert store.values[OWN_BOOK]["serial"] == 10, "its own store keeps it over its tries"
    assert xcoms[stage.task_id, BOOK_KEY]["serial"] == 10, "and its XCom has it for the others"


def test_a_stage_that_a_person_has_cleared_finds_what_came_after_it(dag: DAG) -> None:
    """The tasks after it have no state any more, but what they have written is still there."""
    stage: Any = dag.get_task(full("submit"))
    xcoms = {(full(name), BOOK_KEY): book(serial) for serial, name in enumerate(ORDER)}
    states = dict.fromkeys(map(full, ORDER), None)
    ti = Instance(xcoms, states, stage.task_id, try_number=2, max_tries=RETRIES + 1)  # type: ignore[arg-type]
    assert stage._opened(context(ti)).serial == 4


@pytest.mark.parametrize(
    ("seen", "max_tries", "segment", "cleared"),
    [
        (None, RETRIES, 0, False),
        (None, RETRIES + 1, 0, True),
        ({"max_tries": RETRIES, "segment": 0}, RETRIES + 1, 0, True),
        ({"max_tries": RETRIES, "segment": 0}, RETRIES + 1, 1, False),  # a stage before it has begun the segment
        ({"max_tries": RETRIES + 1, "segment": 1}, RETRIES + 1, 1, False),
    ],
)
def test_one_clear_is_one_segment(dag: DAG, seen: Any, max_tries: int, segment: int, cleared: bool) -> None:
    """However many stages were cleared at once."""
    stage: Any = dag.get_task(full("attempt_0.resubmit"))
    store = Accessor()
    if seen is not None:
        store.values[SEEN_KEY] = seen
    xcoms = {(full("submit"), BOOK_KEY): book(1, segment=segment)}
    ti = Instance(xcoms, {full("submit"): "success"}, stage.task_id, try_number=2, max_tries=max_tries)
    ctx = context(ti, store)
    stage._book = stage._opened(ctx)
    assert stage._is_cleared(ctx) is cleared
    info = stage._chain_info(ctx)
    assert (info.task_id, info.max_tries) == (full("result"), 1000 + cleared)


def test_every_stage_of_a_chain_that_is_over_skips_to_the_end(dag: DAG) -> None:
    """It replays the decision: nothing is looked at, nothing is submitted."""
    stop = Decision(action=Action.FAIL, reason="Enough.")
    for over in ({"concluded": End.SUCCEEDED}, {"concluded": End.FAULT, "decision": stop}):
        for name in ("attempt_1.verify_recovery", "attempt_0.classify", "attempt_0.decide", "attempt_0.resubmit"):
            stage: Any = dag.get_task(full(name))
            xcoms = {(full("submit"), BOOK_KEY): book(1, **over)}
            ti = Instance(xcoms, {full("submit"): "success"}, stage.task_id)
            with pytest.raises(DownstreamTasksSkipped) as raised:
                stage._guarded(context(ti), lambda one=stage, ti=ti: one.stage(context(ti)))
            assert set(raised.value.tasks) == set(stage.group.later(stage.task_id))
            assert full("result") not in raised.value.tasks
            handed = xcoms[stage.task_id, "return_value"]
            assert handed["state"] == ("succeeded" if over["concluded"] is End.SUCCEEDED else "stopped")


def test_a_bisect_has_a_task_of_its_own_where_there_is_one() -> None:
    """The job is stopped by then: its nodes are free. ``resubmit`` comes after it; all else is skipped."""
    with DAG("explicit", schedule=None, start_date=NOON) as dag:
        fault_tolerant_training(job=JOB, attempts=2, stages={"bisect": searched})
    decide: Any = dag.get_task(full("attempt_0.decide"))
    due = Decision(action=Action.BISECT, reason="Who is it?")
    written = book(1, concluded=End.FAULT, decision=due)
    ti = Instance({(full("submit"), BOOK_KEY): written}, {full("submit"): "success"}, decide.task_id)
    with pytest.raises(DownstreamTasksSkipped) as raised:
        decide._guarded(context(ti), lambda: decide.stage(context(ti)))
    skipped = {one.rpartition(".")[2] for one in raised.value.tasks}
    assert skipped == {"restart_in_place", "give_up"}


def searched(attempt: Any) -> BisectOperator:
    return BisectOperator(task_id="bisect", job=JOB, attempt=attempt)


@pytest.mark.parametrize(
    ("about", "known"),
    [({}, True), ({"number": 1}, False), ({"chain_id": "other"}, False), ({"faulty_nodes": None}, True)],
)
def test_what_a_bisect_has_found_counts_if_it_is_about_the_attempt_that_failed(
    dag: DAG, about: dict[str, Any], known: bool
) -> None:
    stage: Any = dag.get_task(full("attempt_0.resubmit"))
    ti = Instance({(full("submit"), BOOK_KEY): book(1)}, {full("submit"): "success"}, stage.task_id)
    stage.attempt = [None, {"chain_id": "c", "number": 0, "faulty_nodes": ["n3"], **about}]
    stage._book = stage._opened(context(ti))
    found = stage._bisected()
    assert (found is not None) is known
    if found is not None:
        assert found.faulty_nodes == tuple(stage.attempt[1]["faulty_nodes"] or ())
        assert str(found), "one without a confidence, too"


def test_the_first_attempt_avoids_what_a_preflight_has_found(dag: DAG) -> None:
    stage: Any = dag.get_task(full("submit"))
    stage.attempt = {"excluded_nodes": ["n2", "n5"], "text": "The preflight failed on n2."}
    assert stage._avoided() == ("n2", "n5")
    stage.attempt = {"chain_id": "c", "number": 0, "excluded_nodes": ["n9"]}
    assert stage._avoided() == (), "the chain knows what an attempt has avoided"
    stage.attempt = {"excluded_nodes": "n2"}
    with pytest.raises(TrainingSettingsError, match=r"excluded_nodes: 'n2' is not allowed\. Give a list of names\."):
        stage._avoided()


def test_a_delay_is_waited_without_a_worker(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage is tried again when it is due; short ones are sat out."""
    stage: Any = dag.get_task(full("attempt_0.resubmit"))
    wait = Decision(action=Action.RESUBMIT, reason="Again.", delay=60.0)
    ti = Instance({(full("submit"), BOOK_KEY): book(1, decision=wait)}, {full("submit"): "success"}, stage.task_id)
    stage._book = stage._opened(context(ti))
    monkeypatch.setattr("airflow_ft.operators.stages.submit.now", lambda: NOON.replace(second=20))
    with pytest.raises(TryAgainLaterError) as raised:
        stage._wait()
    assert raised.value.delay == 40.0
    slept: list[float] = []
    monkeypatch.setattr("airflow_ft.operators.stages.submit.time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("airflow_ft.operators.stages.submit.now", lambda: NOON.replace(second=57))
    stage._wait()
    assert slept == [3.0]


@pytest.mark.parametrize(("try_number", "deferrable", "looks"), [(1, True, False), (2, True, True), (2, False, False)])
def test_an_answer_that_a_lost_try_did_not_take_is_looked_for_before_it_is_asked_again(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, try_number: int, deferrable: bool, looks: bool
) -> None:
    """Airflow keeps it with the question. Without a triggerer nobody can read it."""
    stage: Any = dag.get_task(full("attempt_0.decide"))
    question = Decision(action=Action.ASK, reason="What now?")
    written = book(1, concluded=End.FAULT, decision=question)
    written["values"][SETTINGS] = StageSettings(deferrable=deferrable).to_record()
    ti = Instance({(full("submit"), BOOK_KEY): written}, {full("submit"): "success"}, stage.task_id)
    ti.try_number = try_number
    monkeypatch.setattr("airflow_ft.operators.stages.faults.ask_person", parked)
    with pytest.raises(TaskDeferred if looks else ParkedError) as raised:
        stage._guarded(context(ti), lambda: stage.stage(context(ti)))
    if looks:
        assert isinstance(raised.value, TaskDeferred) and isinstance(raised.value.trigger, AnswerTrigger)
        assert raised.value.method_name == "person_answered"
        with pytest.raises(ParkedError):
            stage.person_answered(context(ti), {NOT_ANSWERED: True})


class ParkedError(Exception):
    """A person is asked."""


def parked(*_: Any) -> None:
    raise ParkedError


@pytest.mark.story("LIF-12")
def test_an_error_of_ours_never_gives_up_on_a_job_that_runs(dag: DAG) -> None:
    """A stage that fails again and again would end the group, and its clean-up the training."""
    stage: Any = dag.get_task(full("attempt_0.classify"))
    store = Accessor()
    ctx = {**context(Instance({}, {}, stage.task_id), store), "task": stage}
    ask = lambda: FaultToleranceRetryPolicy().evaluate(ValueError("a bug"), 1, RETRIES, ctx).action  # noqa: E731
    assert {ask() for _ in range(9)} == {RetryAction.RETRY}, "it is not known whether something runs"
    for open_attempt, last in ((0, RetryAction.RETRY), (None, RetryAction.FAIL)):
        store.values.clear()
        ti = Instance({(full("submit"), BOOK_KEY): book(1, open=open_attempt)}, {full("submit"): "success"}, "x")
        stage._book = stage._opened(context(ti))
        assert [ask() for _ in range(9)][-1] is last


def test_time_limits_of_a_watch_are_kept_by_the_watch() -> None:
    """Airflow's own would end the task, and leave the job. What default_args say of rules is not for the stages."""
    limits = {"execution_timeout": timedelta(hours=2), "trigger_rule": "all_done"}
    with DAG("explicit", schedule=None, start_date=NOON, default_args=limits) as dag:
        fault_tolerant_training(job=JOB, attempts=2)
    watch: Any = dag.get_task(full("attempt_0.watch"))
    assert watch.execution_timeout is None
    assert watch._own_limits(SimpleNamespace(start_date=NOON)) == [(NOON + timedelta(hours=2), "execution_timeout")]
    assert dag.get_task(full("attempt_0.classify")).execution_timeout == timedelta(hours=2), "it only does one thing"
    rules = {one.task_id.rpartition(".")[2]: str(one.trigger_rule.value) for one in dag.tasks}
    assert rules["clean_up"] == "all_done_setup_success"
    assert rules["result"] == rules["verify_recovery"] == "none_failed_min_one_success"
    assert rules["watch"] == rules["decide"] == rules["give_up"] == "all_success"


def test_a_group_knows_what_comes_after_each_of_its_tasks() -> None:
    group = Group(end="result", rounds=[["a", "b", "c"], ["d", "e"]])
    assert group.later("submit") == ["a", "b", "c", "d", "e"]
    assert group.later("b") == ["c", "d", "e"]
    assert group.later("e") == []
