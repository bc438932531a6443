"""Records of version 1, as they were written (LIF-07): what is deferred over an upgrade is neither lost nor stranded.

``tests/data/records_v1`` is frozen: never write it anew. A version that changes the records adds a folder of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.attempts.ports import Conclusion, WatchOrder
from airflow_ft.core.chain import Attempt, AttemptState, Chain, End, Incident
from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass, Retry
from airflow_ft.core.policy_record import read_policy
from airflow_ft.core.records import Record, UnreadableRecordError
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task

FOLDER = Path(__file__).parents[1] / "data" / "records_v1"
KINDS: dict[str, type[Record]] = {
    "chain": Chain,
    "attempt_0": Attempt,
    "attempt_1": Attempt,
    "event": Conclusion,
    "order": WatchOrder,
    "note": Incident,
}


def frozen(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def everywhere(value: Any, change: Any) -> Any:
    """Return JSON in which ``change`` was done to every object."""
    if isinstance(value, dict):
        return change({key: everywhere(item, change) for key, item in value.items()})
    return [everywhere(item, change) for item in value] if isinstance(value, list) else value


@pytest.mark.story("LIF-07")
@pytest.mark.parametrize("name", KINDS)
def test_what_version_1_wrote_is_read_and_nothing_of_it_is_lost(name: str) -> None:
    record = frozen(name)
    read = KINDS[name].from_record(record)
    again = read.to_record()
    assert KINDS[name].from_record(again) == read
    for key, value in record.items():
        assert again.get(key) == value, key


@pytest.mark.story("LIF-07")
@pytest.mark.parametrize("name", KINDS)
def test_what_a_newer_version_added_is_ignored(name: str) -> None:
    def added(found: dict[str, Any]) -> dict[str, Any]:
        plain = all(isinstance(value, str) for value in found.values()) and found
        return found if plain else {**found, "a_newer_key": {"deep": [1, None]}}

    record = everywhere(frozen(name), added)
    newer, ours = KINDS[name].from_record({**record, "version": 2}), KINDS[name].from_record(frozen(name))
    but = {"version": 1, "policy": {}}  # a policy travels as it is; ``read_policy`` makes of it what it can
    assert newer.to_record() | but == ours.to_record() | but


NEEDED = {
    "chain": {"chain_id", "dag_id", "run_id", "task_id", "created_at"},
    "attempt_0": {"number", "name", "created_at"},
    "attempt_1": {"number", "name", "created_at"},
    "event": {"chain_id", "attempt", "try_number", "outcome", "ended_at"},
    "order": {"info", "ref"},
    "note": {"attempt", "detected_at", "diagnosis", "decision"},
}


@pytest.mark.story("LIF-07")
@pytest.mark.parametrize("name", KINDS)
def test_a_key_that_another_version_does_not_write_has_its_default_or_the_record_says_which_is_missing(
    name: str,
) -> None:
    record = frozen(name)
    for key in record:
        less = {k: v for k, v in record.items() if k != key}
        if key in NEEDED[name]:
            with pytest.raises(UnreadableRecordError, match=key):
                KINDS[name].from_record(less)
        else:
            KINDS[name].from_record(less)


@pytest.mark.story("LIF-07")
def test_words_of_a_newer_version_mean_the_careful_thing() -> None:
    note = frozen("note")
    note["diagnosis"] |= {"fault_class": "QUANTUM_NOISE", "retry": "perhaps"}
    note["decision"]["action"] = "TELEPORT"
    read = Incident.from_record(note)
    assert read.diagnosis.fault_class is FaultClass.UNKNOWN
    assert read.diagnosis.retry is Retry.UNKNOWN
    assert read.decision.action is Action.RESUBMIT, "doubt restarts, certainty stops"
    assert Attempt.from_record({**frozen("attempt_0"), "state": "paused"}).state is AttemptState.SUBMITTED
    event = frozen("event")
    event["outcome"]["end"] = "evaporated"
    assert Conclusion.from_record(event).outcome.end is End.UNKNOWN


@pytest.mark.parametrize("value", [None, [], "text", 7, {"chain_id": 3}])
def test_what_is_no_record_at_all_is_unreadable_and_never_guessed(value: object) -> None:
    for kind in KINDS.values():
        with pytest.raises(UnreadableRecordError):
            kind.from_record(value)


def test_a_policy_that_another_version_deferred_with_is_read_field_by_field() -> None:
    policy = frozen("order")["policy"]
    ours = read_policy(policy)
    assert read_policy({**policy, "newer": 1, "max_in_place": "many"}) == ours.model_copy(update={"max_in_place": 3})
    assert read_policy(None).mode == "full"


@pytest.mark.story("LIF-07")
def test_a_chain_of_version_1_in_the_middle_of_a_training_goes_on() -> None:
    """The whole store of an older version; its open job is gone with the old cluster, and the next one follows."""
    task = Task([Run(first=31, last=60)], nodes=2)
    task.values = {
        "ft/chain": json.dumps(frozen("chain")),
        "ft/attempt/0000": json.dumps(frozen("attempt_0")),
        "ft/attempt/0001": json.dumps(frozen("attempt_1")),
    }
    task.try_number = frozen("chain")["try_number"]
    before = Chain.from_record(frozen("chain"))
    assert task.run_to_the_end() == "success"
    assert task.chain.chain_id == before.chain_id
    assert task.chain.attempts == before.attempts + 1
    assert [attempt.number for attempt in task.attempts] == [0, 1, 2]
    assert task.attempts[0] == Attempt.from_record(frozen("attempt_0"))
