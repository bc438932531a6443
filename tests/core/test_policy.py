"""The policy as an object: presets, what is refused and how it is said, what is stored."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_ft.core.decisions import Action
from airflow_ft.core.faults import FaultClass
from airflow_ft.core.hang import HangConfig
from airflow_ft.core.ladder import CONDITIONS, DEFAULT_LADDER, Rung
from airflow_ft.core.policy import BackoffSettings, FaultTolerancePolicy, HangSettings
from airflow_ft.core.policy_record import read_policy
from airflow_ft.core.settings import SettingsError
from airflow_ft.core.situation import HOLDS

PRESETS = ["off", "basic", "advanced", "full", "single_node", "multi_node", "long_running"]
RANGE = "Give a number from 1 to 128, or 0 to switch fault tolerance off."


def refused(**given: Any) -> list[str]:
    with pytest.raises(SettingsError) as error:
        FaultTolerancePolicy(**given)
    assert str(error.value) == "\n".join(error.value.problems)
    return sorted(error.value.problems)


@pytest.mark.row("M2")
@pytest.mark.parametrize("given", [129, -1, 200, "3", True, 3.0, None, float("nan")])
def test_max_restarts_outside_its_range_or_type_is_refused(given: object) -> None:
    assert refused(max_restarts=given) == [f"max_restarts: {given!r} is not allowed. {RANGE}"]


@pytest.mark.row("M2")
@pytest.mark.parametrize("given", [0, 1, 128])
def test_max_restarts_within_its_range_is_taken(given: int) -> None:
    policy = FaultTolerancePolicy(max_restarts=given)
    assert policy.max_restarts == given
    assert policy.enabled is (given > 0)


@pytest.mark.row("M2")
def test_three_restarts_are_the_default_when_it_is_switched_on() -> None:
    assert {FaultTolerancePolicy().max_restarts, FaultTolerancePolicy.basic().max_restarts} == {3}


@pytest.mark.row("S6")
def test_only_full_mode_detects_hangs() -> None:
    assert [preset for preset in PRESETS if getattr(FaultTolerancePolicy, preset)().detects_hangs] == [
        "full",
        "multi_node",
        "long_running",
    ]


@pytest.mark.row("S7")
@pytest.mark.parametrize("mode", ["off", "basic", "advanced"])
def test_hang_settings_in_another_mode_are_refused_and_it_is_said_why(mode: str) -> None:
    (problem,) = refused(mode=mode, hang=HangSettings())
    assert problem.startswith(f"hang: hang detection is not available in mode '{mode}'")
    assert "FaultTolerancePolicy.full()" in problem


@pytest.mark.row("S7")
def test_off_means_off_by_either_switch() -> None:
    assert not FaultTolerancePolicy.off().enabled
    assert not FaultTolerancePolicy(mode="off").enabled
    assert not FaultTolerancePolicy.full(max_restarts=0).detects_hangs


def test_all_problems_are_said_at_once_with_the_names_that_were_meant() -> None:
    assert refused(max_restarts=129, moode="full", hang={"floor": 5, "multiple": 0.5}, backoff={"factor": "x"}) == [
        "backoff.factor: 'x' is not allowed. Give a number from 1 to 100.",
        "hang.floor: there is no such setting. Did you mean floor_seconds?",
        "hang.multiple: 0.5 is not allowed. Give a number above 1: how many step intervals of silence.",
        f"max_restarts: 129 is not allowed. {RANGE}",
        "moode: there is no such setting. Did you mean mode?",
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"mode": "ful"}, "mode: 'ful' is not allowed. Give off, basic, advanced or full."),
        ({"unconditional": "yes"}, "unconditional: 'yes' is not allowed. Give true or false."),
        ({"unconditional": 1}, "unconditional: 1 is not allowed. Give true or false."),
        ({"hold_seconds": float("inf")}, "hold_seconds: inf is not allowed. Give seconds from 0 to 3600."),
        ({"hang": 3}, "hang: 3 is not allowed. Give settings by name: action, "),
        ({"ladder": 3}, "ladder: 3 is not allowed. Give a list of rungs for a fault class."),
        ({"ladder": {"HW_NOD": ["FAIL"]}}, "ladder.HW_NOD: there is no such fault class. Did you mean HW_NODE?"),
        ({"ladder": {"UNKNOWN": []}}, "ladder.UNKNOWN: [] is not allowed. Give a list of at least one rung."),
        ({"ladder": {"UNKNOWN": ["RESTART"]}}, "ladder.UNKNOWN.0.action: 'RESTART' is not allowed. Did you mean"),
        (
            {"ladder": {"UNKNOWN": [{"action": "FAIL", "when": ["retry_usefull"]}]}},
            "ladder.UNKNOWN.0.when: 'retry_usefull' is not allowed. Did you mean retry_useful?",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(given: dict[str, Any], problem: str) -> None:
    (said,) = refused(**given)
    assert said.startswith(problem)


@pytest.mark.row("S8")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"floor_seconds": 7200}, "ceiling_seconds: 1800 is not allowed. Give at least floor_seconds (7200)."),
        ({"floor_seconds": 5}, "floor_seconds: 5 is not allowed. Give at least check_interval_seconds (15)."),
        ({"startup_seconds": 5}, "startup_seconds: 5 is not allowed. Give at least check_interval_seconds (15)."),
        ({"judgement_seconds": 5}, "judgement_seconds: 5 is not allowed. Give at least check_interval_seconds (15)."),
        ({"action": "kill"}, "action: 'kill' is not allowed. Give act or notify."),
    ],
)
def test_hang_settings_are_checked_against_each_other(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        HangSettings(**given)
    assert problem in error.value.problems


@pytest.mark.row("S8")
def test_the_detector_and_the_policy_have_the_same_defaults() -> None:
    shared = HangConfig.model_fields.keys() & HangSettings.model_fields.keys()
    assert len(shared) >= 5
    assert {name: getattr(HangConfig(), name) for name in shared} == {
        name: getattr(HangSettings(), name) for name in shared
    }


def test_a_policy_can_not_be_changed() -> None:
    with pytest.raises(ValidationError):
        FaultTolerancePolicy().max_restarts = 5  # type: ignore[misc]


# --- presets and annotations ---------------------------------------------------------------------------------------


@pytest.mark.row("M10")
@pytest.mark.parametrize(
    ("preset", "restarts", "unconditional", "hang", "pods"),
    [("single_node", 2, False, False, 0), ("multi_node", 3, True, True, 0), ("long_running", 5, True, True, 3)],
)
def test_presets(preset: str, restarts: int, unconditional: bool, hang: bool, pods: int) -> None:
    policy = getattr(FaultTolerancePolicy, preset)()
    have = (policy.max_restarts, policy.unconditional, policy.detects_hangs, policy.pod_restarts)
    assert have == (restarts, unconditional, hang, pods)


@pytest.mark.row("M10")
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_take_changes(preset: str) -> None:
    changed = getattr(FaultTolerancePolicy, preset)(max_restarts=7, grace_seconds=5)
    assert (changed.max_restarts, changed.grace_seconds) == (7, 5)


def annotated(**values: object) -> FaultTolerancePolicy:
    names = {f"fault-tolerance/{name.replace('_', '-')}": value for name, value in values.items()}
    return FaultTolerancePolicy.from_annotations({"name": "job", "annotations": {"other/key": 3, **names}})


@pytest.mark.row("M7")
def test_annotations_are_read_from_strings() -> None:
    assert annotated(job_retry_num="128") == FaultTolerancePolicy.advanced(max_restarts=128)
    assert annotated(job_retry_num="2", hang_retry="true") == FaultTolerancePolicy.full(max_restarts=2)
    every = annotated(job_retry_num="5", job_unconditional_retry="true", hang_retry="true", pod_retry_num="3")
    assert every == FaultTolerancePolicy.long_running()
    assert FaultTolerancePolicy.from_annotations({"fault-tolerance/job-retry-num": "4"}).max_restarts == 4


@pytest.mark.row("M2")
@pytest.mark.parametrize("metadata", [{}, {"annotations": {}}, {"annotations": None}, {"name": "job"}])
def test_no_annotation_means_off(metadata: dict[str, Any]) -> None:
    assert FaultTolerancePolicy.from_annotations(metadata) == FaultTolerancePolicy.off()


@pytest.mark.row("M2")
def test_without_job_retry_num_the_other_annotations_switch_nothing_on() -> None:
    assert not annotated(hang_retry="true", job_unconditional_retry="true", pod_retry_num="3").enabled


@pytest.mark.row("M7")
@pytest.mark.parametrize("given", ["129", "-1", "+3", "3.0", "", " 3", "three", "٣", 3, True, None])
def test_annotations_of_another_form_are_refused(given: object) -> None:
    with pytest.raises(SettingsError, match='Give a string from "1" to "128"'):
        annotated(job_retry_num=given)


@pytest.mark.row("M7")
def test_annotations_report_all_problems_and_the_names_that_were_meant() -> None:
    with pytest.raises(SettingsError) as error:
        annotated(job_retry_nun="3", hang_retry="yes", pod_retry_num="1000")
    assert error.value.problems == (
        "fault-tolerance/job-retry-nun: there is no such annotation. Did you mean fault-tolerance/job-retry-num?",
        'fault-tolerance/hang-retry: \'yes\' is not allowed. Give the string "true" or "false".',
        "fault-tolerance/pod-retry-num: '1000' is not allowed. "
        'Give a string from "1" to "128", or "0" to switch it off.',
    )


# --- storing -------------------------------------------------------------------------------------------------------

OVERRIDES = {"UNKNOWN": ["RESUBMIT", {"action": "FAIL"}], FaultClass.HW_NODE: [Rung(action=Action.ASK, times=2)]}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_comes_back_from_its_dictionary(preset: str) -> None:
    policy = getattr(FaultTolerancePolicy, preset)(ladder=OVERRIDES, backoff=BackoffSettings(base_seconds=1))
    assert FaultTolerancePolicy.from_dict(policy.to_dict()) == policy
    assert read_policy(policy.to_dict()) == policy
    assert read_policy(policy.model_dump(mode="json")) == policy, "a full dump has hang settings in every mode"
    assert pickle.loads(pickle.dumps(policy)) == policy == copy.deepcopy(policy)


def test_a_stored_policy_of_another_version_is_read_a_written_one_is_not() -> None:
    newer = {"mode": "full", "max_restarts": 5, "a_newer_key": 1, "hang": {"multiple": 20, "newer_too": 2}}
    assert read_policy(newer) == FaultTolerancePolicy.full(max_restarts=5, hang=HangSettings(multiple=20))
    with pytest.raises(SettingsError):
        FaultTolerancePolicy.from_dict(newer)


@pytest.mark.parametrize("data", [None, [1], "full", {1: 2}])
def test_a_policy_that_is_no_dictionary_is_refused(data: object) -> None:
    with pytest.raises(SettingsError, match="Give settings by name"):
        FaultTolerancePolicy.from_dict(data)


# --- the ladder as data --------------------------------------------------------------------------------------------


@pytest.mark.row("S13")
def test_every_class_has_a_ladder_that_ends_with_fail() -> None:
    assert DEFAULT_LADDER.keys() == set(FaultClass)
    assert {rungs[-1].action for rungs in DEFAULT_LADDER.values()} == {Action.FAIL}


@pytest.mark.row("S10")
def test_classes_that_running_again_does_not_cure_only_fail_unless_the_diagnosis_says_otherwise() -> None:
    assert [rung.action for rung in DEFAULT_LADDER[FaultClass.APP_ERROR]] == [Action.FAIL]
    for fault_class in (FaultClass.OOM_GPU, FaultClass.ENV_ERROR):
        assert all("retry_useful" in rung.when for rung in DEFAULT_LADDER[fault_class][:-1])


def test_every_condition_is_computed() -> None:
    assert CONDITIONS.keys() == HOLDS.keys()


def test_a_ladder_can_be_overridden_for_one_class() -> None:
    policy = FaultTolerancePolicy(ladder=OVERRIDES)
    assert [rung.action for rung in policy.rungs(FaultClass.UNKNOWN)] == [Action.RESUBMIT, Action.FAIL]
    assert policy.rungs(FaultClass.NET_FABRIC) == DEFAULT_LADDER[FaultClass.NET_FABRIC]


def test_backoff_begins_with_nothing_grows_and_is_capped() -> None:
    backoff = BackoffSettings(base_seconds=10, factor=3, max_seconds=100)
    assert [backoff.delay(times) for times in (-1, 0, 1, 2, 3, 4, 10**9)] == [0, 0, 10, 30, 90, 100, 100]
