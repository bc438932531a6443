"""What an attempt records is enough to make each decision again, and to rehearse another policy on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_ft.cli import replay
from airflow_ft.cli.explain import as_record, explanations, rendered
from airflow_ft.cli.standalone import main
from airflow_ft.core.chain import Attempt
from airflow_ft.core.decisions import Action
from airflow_ft.core.explain import Explanation, NotExplainableError, explained, situation_of
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import MAX_RECORDED_BYTES, recorded_policy
from airflow_ft.simulation.rehearse import ChainRehearsal, Recorded, rehearse
from airflow_ft.views.chain_table import to_json
from airflow_ft.views.records import StoredChain
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
KILLED = Run(first=1, last=20, code=-9)
BUG = Run(first=1, last=20, code=1, words="KeyError: 'x'")
DONE = Run(first=1, last=40, code=0)
RULES = [{"match": "KeyError: 'x'", "action": "resubmit", "times": 1, "then": "stop", "name": "known"}]


def lived(*scripts: list[Run], policy: FaultTolerancePolicy | None = None) -> Task:
    task = Task(*scripts, policy=policy or FaultTolerancePolicy.full())
    task.run_to_the_end()
    return task


def recorded(task: Task) -> Recorded:
    return Recorded(task.chain, tuple(task.attempts))


def all_explained(task: Task) -> list[Explanation]:
    found = [answer for _, _, answer in explanations(task.attempts)]
    assert not [answer for answer in found if isinstance(answer, str)]
    return [answer for answer in found if isinstance(answer, Explanation)]


LIVES = {
    "a rank is killed, and the next one too": lambda: lived([KILLED, KILLED, DONE]),
    "a bug": lambda: lived([BUG]),
    "hardware, then a bug": lambda: lived([Run(first=1, last=20, code=1, words=ECC)], [BUG], [DONE]),
    "a preemption": lambda: lived([Run(first=1, last=20, code=0, term=True)], [DONE]),
    "a rule of the user": lambda: lived([BUG], [BUG], policy=FaultTolerancePolicy.full(rules=RULES)),
    "a rehearsal": lambda: lived([BUG], [KILLED], [DONE], policy=FaultTolerancePolicy.full(on_fault="notify")),
    "basic": lambda: lived([BUG], [BUG], [BUG], [BUG], policy=FaultTolerancePolicy.basic()),
    "off": lambda: lived([BUG], policy=FaultTolerancePolicy.off()),
}


@pytest.mark.row("S11")
@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_each_decision_is_made_again_from_its_record_and_is_the_same(life: Any) -> None:
    task = life()
    found = all_explained(task)
    assert found
    assert [one.differs for one in found] == [()] * len(found)
    assert [one.again.reason for one in found] == [one.incident.decision.reason for one in found]
    assert [one.again.considered for one in found] == [one.incident.decision.considered for one in found]


runs = st.builds(
    lambda last, end: Run(first=1, last=last, **end),
    st.integers(2, 40),
    st.sampled_from([{"code": -9}, {"code": 1, "words": ECC}, {"code": 1, "words": "KeyError: 'x'"}, {"code": 3}]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(runs, min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_same_policy_replayed_decides_the_same_and_saves_nothing(scripts: list[list[Run]]) -> None:
    task = lived(*scripts, [DONE])
    assert all(one.same for one in all_explained(task))
    again = rehearse(FaultTolerancePolicy.full(), recorded(task))
    assert [one.differs for one in again.decisions] == [False] * len(again.decisions)
    assert again.restarts[0] == again.restarts[1]
    assert (again.lost_recoveries, again.open_ends) == (0, 0)


def test_a_record_that_was_made_smaller_says_so_and_claims_nothing() -> None:
    task = lived([KILLED, DONE])
    (attempt,) = task.attempts
    incident = attempt.incidents[0]
    with pytest.raises(NotExplainableError, match="is not in the record"):
        situation_of(incident.but(inputs=None), [])
    with pytest.raises(NotExplainableError, match="of 2 earlier faults only 0"):
        situation_of(incident.but(inputs=incident.inputs.but(faults=2)), [])  # type: ignore[union-attr]
    with pytest.raises(NotExplainableError, match="the policy is not in the record"):
        explained(attempt.but(policy={}), incident, [])
    with pytest.raises(NotExplainableError, match="it was changed meanwhile"):
        explained(attempt.but(policy=FaultTolerancePolicy.basic().to_dict()), incident, [])


def test_a_record_that_was_tampered_with_is_found() -> None:
    task = lived([KILLED, DONE])
    (attempt,) = task.attempts
    incident = attempt.incidents[0]
    forged = incident.but(decision=incident.decision.but(delay=9.0))
    assert explained(attempt, forged, []).differs == ("delay: 9.0, now 0.0",)


def test_a_policy_that_is_too_large_for_the_record_is_left_out_not_cut() -> None:
    rules = [{"match": f"{'x' * 100}{number}", "action": "stop"} for number in range(60)]
    assert recorded_policy(FaultTolerancePolicy.full(rules=rules)) == {}
    assert recorded_policy(FaultTolerancePolicy.long_running()) == FaultTolerancePolicy.long_running().to_dict()
    assert MAX_RECORDED_BYTES < 16_000 / 4


def test_the_explanation_can_be_shown() -> None:
    task = lived([BUG], policy=FaultTolerancePolicy.full(on_stop="notify", max_restarts=1))
    for answer in explanations(task.attempts):
        assert rendered(answer) is not None
        assert as_record(answer)["same"] is True


# --- replay --------------------------------------------------------------------------------------------------------


def test_a_policy_that_stops_earlier_saves_restarts_and_says_what_they_would_have_cost() -> None:
    task = lived(
        [BUG],
        [Run(first=1, last=30, code=1, words="KeyError: 'x'")],
        [DONE],
        policy=FaultTolerancePolicy.basic(),
    )
    found = rehearse(FaultTolerancePolicy.full(), recorded(task))
    assert [one.now.action if one.now else None for one in found.decisions] == [Action.FAIL, None]
    assert found.restarts == (2, 0)
    assert found.lost_recoveries == 1, "training in fact came to its end"


def test_a_policy_that_goes_on_where_the_chain_stopped_leaves_an_open_end() -> None:
    found = rehearse(FaultTolerancePolicy.basic(), recorded(lived([BUG])))
    assert (found.restarts, found.open_ends, found.lost_recoveries) == ((0, 1), 1, 0)


def test_a_new_rule_is_looked_for_in_the_lines_that_were_recorded() -> None:
    found = rehearse(FaultTolerancePolicy.full(rules=RULES), recorded(lived([BUG])))
    assert [one.now.rule for one in found.decisions if one.now] == ["known"]


def test_chains_of_older_versions_are_put_together_as_well_as_that_goes() -> None:
    task = lived([KILLED, DONE])
    old = tuple(
        one.but(policy={}, incidents=tuple(incident.but(inputs=None) for incident in one.incidents))
        for one in task.attempts
    )
    found = rehearse(FaultTolerancePolicy.full(), Recorded(task.chain, old))
    assert [(one.exact, one.differs) for one in found.decisions] == [(False, False)]


def export(folder: Path, task: Task, name: str = "chain.json") -> str:
    path = folder / name
    path.write_text(json.dumps(to_json(StoredChain(chain=task.chain, attempts=tuple(task.attempts)))))
    return str(path)


@pytest.mark.row("P15")
def test_exported_chains_are_replayed_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, lived([BUG]), "one.json")
    export(tmp_path, lived([KILLED, DONE]), "two.json")
    assert main(["replay", "--policy", "basic", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["totals"]["chains"] == 2
    assert told["totals"]["restarts"] == {"recorded": 0, "new": 2}
    assert [one["differs"] for chain in told["chains"] for one in chain["decisions"]] == [True, True]
    assert main(["replay", "--policy", "basic", str(tmp_path)]) == 0
    assert "Resubmissions: 0 recorded, 2 under this policy (2 added)." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "can't be read"),
        ("[]x", "can't be read"),
        ("{}", "no exported chain"),
        ('{"chain": 3, "attempts": []}', "Chain"),
    ],
)
def test_a_file_that_is_no_chain_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert main(["replay", "--policy", "full", str(tmp_path / "x.json")]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("7d", 7 * 86400), ("36h", 36 * 3600), ("2026-02-28T12:00:00Z", 86400)])
def test_since_is_a_span_or_a_date(text: str, seconds: int) -> None:
    now = replay.datetime(2026, 3, 1, 12, tzinfo=replay.timezone.utc)
    assert (now - replay.moment(text, now)).total_seconds() == seconds
    with pytest.raises(ValueError, match="Give a date"):
        replay.moment("yesterday", now)


def test_an_empty_chain_has_nothing_to_rehearse() -> None:
    task = lived([DONE])
    found = rehearse(FaultTolerancePolicy.basic(), recorded(task))
    assert isinstance(found, ChainRehearsal) and found.decisions == ()
    assert Attempt.from_record(task.attempts[0].to_record()).policy == FaultTolerancePolicy.full().to_dict()
