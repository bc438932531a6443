"""The ledger, line by line of DESIGN §4, and its invariants over any history."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_ft.core.chain import PastFault
from airflow_ft.core.decide import Situation, decide, past_fault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Retry, Suspect, Trust
from airflow_ft.core.ledger import CHARGES, MAX_FREE_KEPT, Ledger, Run
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.switches import answered, followed

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
SPENT = Ledger(restarts=2, unconditional_streak=1, hang_streak=2, unprogressed=3, pod_restarts=1, highest_step=100)


@pytest.mark.parametrize(
    ("what", "grows"),
    [
        ("", {}),
        ("restart", {"restarts"}),
        ("unconditional", {"restarts", "unconditional_streak"}),
        ("hang", {"hang_streak", "unprogressed"}),
        ("in_place", {"unprogressed"}),
        ("pod", {"pod_restarts"}),
        ("disruption", {"disruptions"}),
    ],
)
@pytest.mark.row("S7")
def test_each_charge_grows_exactly_its_own_counts(what: str, grows: set[str]) -> None:
    before, after = SPENT.model_dump(), SPENT.charge(what, NOON).model_dump()
    counts = {name for name, value in before.items() if isinstance(value, int) and name != "highest_step"}
    assert {name: after[name] - before[name] for name in counts} == {name: int(name in grows) for name in counts}


def test_only_restarts_in_place_and_hang_restarts_are_in_the_window_of_free_ones() -> None:
    assert [what for what in CHARGES if Ledger().charge(what, NOON).free_at] == ["hang", "in_place"]


def test_an_unknown_charge_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"charge: 'resart' is not allowed\. Give one of .*'restart'"):
        Ledger().charge("resart", NOON)


def test_a_time_without_zone_is_an_error() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Ledger().charge("hang", NOON.replace(tzinfo=None))


@pytest.mark.row("P1")
@pytest.mark.parametrize(
    ("run", "resets"),
    [
        # beyond the highest step (100), and it lasts
        (Run(last_step=150, new_checkpoint=140), True),
        (Run(last_step=150, seconds_beyond=600.0), True),
        (Run(new_checkpoint=140), True),
        # beyond it, but it doesn't last
        (Run(last_step=150), False),
        (Run(last_step=150, seconds_beyond=599.0), False),
        (Run(last_step=150, new_checkpoint=90), False),  # a checkpoint of replayed steps
        (Run(last_step=150, new_checkpoint=100), False),  # exactly where the chain had been
        # replayed steps, however long
        (Run(last_step=100, new_checkpoint=100, seconds_beyond=0.0, healthy_seconds=9e9), False),
        (Run(last_step=60, new_checkpoint=60, healthy_seconds=9e9), False),
        # unknown progress resets nothing; an hour of healthy running stands in for it
        (Run(), False),
        (Run(healthy_seconds=3599.0), False),
        (Run(healthy_seconds=3600.0), True),
        (Run(seconds_beyond=9e9), False),
    ],
)
def test_consecutive_counts_begin_anew_only_after_progress_beyond_the_highest_step_that_lasts(
    run: Run, resets: bool
) -> None:
    after = SPENT.after_run(run)
    consecutive = (after.unconditional_streak, after.hang_streak, after.unprogressed)
    assert consecutive == ((0, 0, 0) if resets else (1, 2, 3))
    assert SPENT.lasting(run) is resets


@pytest.mark.row("P1")
def test_progress_gives_no_budget_back() -> None:
    spent = SPENT.charge("in_place", NOON)
    after = spent.after_run(Run(last_step=900, new_checkpoint=900))
    assert (after.restarts, after.pod_restarts, after.free_at) == (2, 1, spent.free_at)


def test_the_highest_step_is_kept_and_never_falls() -> None:
    ledger = Ledger()
    assert ledger.after_run(Run()).highest_step is None
    for run, highest in [(Run(last_step=7), 7), (Run(last_step=3), 7), (Run(), 7), (Run(new_checkpoint=9), 9)]:
        ledger = ledger.after_run(run)
        assert ledger.highest_step == highest


def test_the_same_run_counts_as_progress_once() -> None:
    run = Run(last_step=150, new_checkpoint=140)
    again = SPENT.after_run(run).charge("hang", NOON).after_run(run)
    assert again.hang_streak == 1


@pytest.mark.parametrize(
    ("run", "left"), [(Run(), 4), (Run(last_step=90), 4), (Run(last_step=101), 0), (Run(healthy_seconds=3600), 0)]
)
def test_disruptions_are_counted_without_a_new_step_in_between(run: Run, left: int) -> None:
    assert SPENT.but(disruptions=4).after_run(run).disruptions == left


def test_free_restarts_are_counted_within_the_window() -> None:
    ledger = Ledger()
    for hour in range(8):
        ledger = ledger.charge("in_place", NOON + timedelta(hours=hour))
    assert ledger.free_restarts(NOON + timedelta(hours=7), 6 * 3600) == 6


def test_a_clock_that_was_wrong_once_does_not_count_for_ever() -> None:
    ledger = Ledger().charge("in_place", NOON + timedelta(days=3650))
    assert ledger.free_restarts(NOON, 6 * 3600) == 0


def test_the_times_kept_are_bounded() -> None:
    ledger = Ledger()
    for second in range(200):
        ledger = ledger.charge("in_place", NOON + timedelta(seconds=second))
    assert len(ledger.free_at) == MAX_FREE_KEPT
    assert len(str(ledger.to_record()["free_at"])) < 1000


def test_a_ledger_does_not_depend_on_the_time_zone_of_the_clock() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    assert Ledger().charge("hang", NOON).to_record() == Ledger().charge("hang", elsewhere).to_record()


def test_a_ledger_comes_back_from_its_record() -> None:
    ledger = SPENT.charge("restart", NOON).charge("in_place", NOON)
    assert Ledger.from_record(ledger.to_record()) == ledger
    assert Ledger.from_record({"restarts": 1, "a_newer_key": 3}) == Ledger(restarts=1)


# --- any history ---------------------------------------------------------------------------------------------------

steps = st.none() | st.integers(0, 300)
runs = st.builds(
    Run,
    last_step=steps,
    new_checkpoint=steps,
    seconds_beyond=st.sampled_from([0.0, 599.0, 600.0]),
    healthy_seconds=st.sampled_from([0.0, 3600.0]),
    lost_seconds=st.sampled_from([0.0, 900.0]),
)
nodes = st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), unique=True, max_size=2)
diagnoses = st.builds(
    lambda fault_class, names, retry, disruption, trust, signature: Diagnosis(
        fault_class=fault_class,
        text="it broke",
        root=Evidence(source="node", trust=trust),
        suspects=tuple(Suspect(kind="node", name=name) for name in names),
        retry=retry,
        disruption=disruption,
        signature=signature,
    ),
    st.sampled_from(list(FaultClass)),
    nodes,
    st.sampled_from(list(Retry)),
    st.sampled_from([None, None, None, "drain"]),
    st.sampled_from(list(Trust)),
    st.sampled_from(["a", "b"]),
)
possible = st.sets(st.sampled_from(list(Action))).map(lambda found: tuple(sorted(found)))


def turned(value: Any) -> Any:
    """The same JSON value with every dictionary's keys in reverse."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


class AnyChain(RuleBasedStateMachine):
    """A chain under random faults: whatever happens, no budget is exceeded and each decision is charged once."""

    @initialize(
        mode=st.sampled_from(["off", "basic", "advanced", "full"]),
        max_restarts=st.integers(0, 6),
        unconditional=st.booleans(),
        pod_restarts=st.integers(0, 2),
        max_restarts_in_window=st.none() | st.integers(1, 3),
        on_fault=st.sampled_from(["act", "act", "notify", "ask"]),
        max_lost_gpu_hours=st.none() | st.just(20.0),
    )
    def start(self, **settings: Any) -> None:
        self.policy, self.ledger, self.now = FaultTolerancePolicy(**settings), Ledger(), NOON
        self.faults: tuple[PastFault, ...] = ()
        self.excluded: tuple[str, ...] = ()
        self.segments = 0
        self.made: list[tuple[Situation, datetime, Decision]] = []

    @rule()
    def person_clears(self) -> None:
        """Fresh budgets; who was suspected is not forgotten."""
        blames = self.ledger.blames
        self.ledger, self.faults = self.ledger.of_next_segment(self.ledger.highest_step), ()
        assert (self.ledger.restarts, self.ledger.free_at, self.ledger.blames) == (0, (), blames)
        self.segments += 1

    @rule()
    def worker_is_lost_between_decision_and_record(self) -> None:
        """The next try decides anew from the same inputs: the same decision, and its cost is counted once."""
        if self.made:
            situation, now, decision = self.made[-1]
            again = decide(FaultTolerancePolicy.from_dict(self.policy.to_dict()), situation, now)
            assert again == decision and again.digest() == decision.digest()
            zone = timezone(timedelta(hours=-9, minutes=-30))
            assert decide(self.policy, situation.compact(), now.astimezone(zone)).digest() == decision.digest()

    @rule()
    def everything_is_read_again_in_another_order(self) -> None:
        """A decision doesn't depend on the order in which a dictionary has its keys."""
        if self.made:
            situation, now, decision = self.made[-1]
            policy = FaultTolerancePolicy.from_dict(turned(self.policy.to_dict()))
            assert decide(policy, Situation.from_record(turned(situation.to_record())), now) == decision

    @rule(
        diagnosis=diagnoses,
        run=runs,
        step=steps,
        can=possible,
        hang=st.booleans(),
        pods=st.booleans(),
        minutes=st.integers(-5, 500),
        answer=st.sampled_from(["approve", "resubmit", "stop"]),
        held=st.booleans(),
        still_held=st.booleans(),
    )
    def fault(self, diagnosis, run, step, can, hang, pods, minutes, answer, held, still_held) -> None:  # type: ignore[no-untyped-def]
        self.now += timedelta(minutes=minutes)
        situation = Situation(
            diagnosis=diagnosis,
            ledger=self.ledger,
            faults=self.faults,
            step=step,
            run=run,
            can=can,
            hang=hang,
            replaces_pods=pods,
            nodes_needed=2,
            pool_nodes=("n1", "n2", "n3", "n4"),
            excluded_nodes=self.excluded,
            gpus=16,
        )
        decision = decide(self.policy, situation, self.now)
        self.made.append((situation, self.now, decision))
        assert decision == decide(self.policy, situation, self.now), "the same inputs, the same decision"
        charged = self.ledger.after_run(run, 16).charge(decision.charged, self.now)
        assert decision.ledger.but(blames=()) == charged.but(blames=()), "charged once"
        assert decision.action in (Action.RESUBMIT, Action.FAIL, Action.ASK, *can) or decision.level == "pod"
        if self.policy.on_fault == "notify":
            assert decision.action in (Action.RESUBMIT, Action.FAIL), "nothing beyond basic"
        if decision.action is Action.ASK:
            assert not decision.charged and decision.proposed is not None
            decision = answered(decision, answer, "a person", self.policy, self.now, held=held)
            if not decision.ends_attempt and decision.action is Action.ASK:
                assert decision.ledger.but(blames=()) == charged.but(blames=()), "not yet"
                decision = followed(decision, 1 if still_held else None, self.policy, self.now)
                assert (decision.action is Action.RESTART_IN_PLACE) == still_held or decision.action is Action.FAIL
            assert decision.ledger.but(blames=()) == charged.charge(decision.charged, self.now).but(blames=())
        window, most = self.policy.restart_window_seconds, self.policy.max_restarts_in_window
        if decision.charged in ("restart", "unconditional") and most is not None and not decision.answer:
            assert self.ledger.restarts_within(self.now, window) < most, "not beyond the budget of the window"
        if self.policy.max_lost_gpu_hours is not None and decision.charged not in ("", "disruption"):
            assert decision.ledger.lost_gpu_hours < self.policy.max_lost_gpu_hours
        assert len(decision.excluded_nodes) <= 2
        assert decision.reason.strip().endswith((".", "…"))
        assert len(decision.reason) < 1500
        if decision.action is Action.FAIL:
            assert not decision.charged
        if not self.policy.enabled:
            assert decision.action is Action.FAIL
        self.faults = (*self.faults, past_fault(situation, decision))[-64:]
        self.ledger, self.excluded = decision.ledger, decision.excluded_nodes

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, policy = self.ledger, self.policy
        assert ledger.restarts <= policy.max_restarts
        assert ledger.pod_restarts <= policy.pod_restarts
        assert ledger.unconditional_streak <= policy.max_unconditional_streak
        assert ledger.hang_streak <= policy.max_hang_streak
        assert ledger.unprogressed <= policy.max_in_place
        assert ledger.free_restarts(self.now, policy.free_window_seconds) <= policy.max_free_restarts


TestAnyChain = AnyChain.TestCase
TestAnyChain.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(CHARGES), runs), max_size=20))
def test_counts_never_fall_below_zero_and_budgets_never_fall(history: list[tuple[str, Run]]) -> None:
    ledger = Ledger()
    for what, run in history:
        after = ledger.after_run(run).charge(what, NOON)
        assert after.restarts >= ledger.restarts
        assert after.pod_restarts >= ledger.pod_restarts
        assert min(after.unprogressed, after.hang_streak, after.unconditional_streak, after.disruptions) >= 0
        ledger = after
