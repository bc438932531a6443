"""What people hear while an attempt goes on: a restart in place, a hang that is only noticed. Once, and at once."""

from __future__ import annotations

import pytest

from airflow_ft.core.chain import AttemptState
from airflow_ft.core.policy import FaultTolerancePolicy, HangSettings
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Died, Killer, Task, at_point

pytestmark = [pytest.mark.story("UIO-03")]

CRASH = "NCCL WARN NET/IB : Got completion with error 12"
CRASHES_ONCE = [Run(last=20, code=1, words=CRASH), Run(first=21, last=200)]
LONG = 150.0  # seconds that the second run takes at least


def task(*scripts: list[Run], policy: FaultTolerancePolicy | None = None) -> Task:
    made = Task(*scripts, nodes=2, policy=policy)
    made.tells = True
    return made


def kinds(made: Task) -> list[str]:
    return [kind for _, kind, _ in made.messages]


def test_a_restart_in_place_is_told_while_training_goes_on() -> None:
    made = task(CRASHES_ONCE)
    assert made.run_to_the_end() == "success"
    assert kinds(made) == ["fault", "succeeded"]
    (told, _, text), (end, _, _) = made.messages
    assert told < 60 < LONG < end, "it was told when it happened"
    assert "restart in place" in text
    assert made.cluster.created == [made.attempts[0].name]
    assert [event.kind for event in made.chain.events] == ["fault", "succeeded"]
    assert made.try_number == 1, "it costs no try"
    assert made.attempts[0].recovery is None
    assert made.attempts[0].incidents[0].recovery is not None
    assert made.attempts[0].incidents[0].recovery.state == "recovered"
    made.check()


def test_two_restarts_in_place_are_told_one_by_one() -> None:
    made = task([Run(last=20, code=1, words=CRASH), Run(first=21, last=90, code=1, words=CRASH), Run(91, 200)])
    assert made.run_to_the_end() == "success"
    assert kinds(made).count("fault") == 2
    assert made.attempts[0].incidents[0].decision.ledger != made.attempts[0].incidents[1].decision.ledger
    made.check()


def test_a_hang_that_is_only_noticed_is_told_at_once() -> None:
    hang = HangSettings(action="notify", floor_seconds=20, ceiling_seconds=60)
    made = task([Run(last=30, code=None)], policy=FaultTolerancePolicy.full(hang=hang))
    made.timeout = 600.0
    assert made.run_to_the_end() == "failed"
    assert kinds(made) == ["hang_notice", "stopped"]
    assert made.messages[0][0] < 200 < 600 <= made.messages[1][0]


def test_whoever_tells_nobody_is_not_interrupted() -> None:
    made = task(CRASHES_ONCE)
    made.tells = False
    assert made.run_to_the_end() == "success"
    assert len(made.desks) == 1, "one watch from beginning to end"


def test_a_job_that_ends_within_the_quiet_time_is_told_at_its_end() -> None:
    made = task([Run(last=3, code=1, words=CRASH), Run(first=1, last=4)])
    assert made.run_to_the_end() == "success"
    assert kinds(made) == ["fault", "succeeded"]
    assert len(made.desks) == 1


@pytest.mark.story("SUB-02")
@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("interim.before_attempt", 1),
        ("interim.between", 1),
        ("notify.before_send", 1),
        ("notify.after_send", 1),
        ("conclude.written", 1),
        ("conclude.ordered", 1),
    ],
)
def test_whatever_dies_in_between_it_is_told_once(monkeypatch: pytest.MonkeyPatch, point: str, told: int) -> None:
    made, killer = task(CRASHES_ONCE), Killer(point)
    with at_point(monkeypatch, killer), pytest.raises(Died):
        made.run_try()
    assert made.run_to_the_end() == "success"
    assert killer.struck
    assert kinds(made).count("fault") == told
    assert kinds(made)[-1] == "succeeded"
    assert len(made.cluster.created) == 1
    assert made.chain.ledger.restarts == 0
    assert made.attempts[0].state is AttemptState.CONCLUDED
    made.check()


def test_a_restart_that_is_not_verified_yet_is_told_after_half_a_minute() -> None:
    made = task([Run(last=20, code=1, words=CRASH), Run(first=21, last=200, startup=90)])
    assert made.run_to_the_end() == "success"
    assert 22 + 30 <= made.messages[0][0] < 22 + 40
