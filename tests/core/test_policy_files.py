"""A policy as a file: what is read, what is refused, and the schema that editors use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_ft.core.faults import FaultClass
from airflow_ft.core.policy import PRESETS, FaultTolerancePolicy
from airflow_ft.core.policy_schema import policy_schema
from airflow_ft.core.policy_yaml import parse_document, write_document
from airflow_ft.core.settings import SettingsError

EVERYTHING = """
preset: long_running
max_restarts: 20
max_restarts_in_window: 4
restart_window_seconds: 6e3
max_lost_gpu_hours: 500
on_exclude: notify
on_stop: ask
ask: {timeout_seconds: 600, default: stop, job: hold}
exclusion: {kind: soft, max_nodes: 2, expiry_seconds: null}
backoff: {jitter: 0.5}
ladder:
  UNKNOWN: [RESTART_IN_PLACE, {action: RESUBMIT, times: 2}, FAIL]
signature_ladders:
  nccl.remote_error: [RESUBMIT_EXCLUDING, FAIL]
rules:
  - {match: 'shard \\S+ is corrupt', action: stop, name: shards}
  - {match: 'link retrained on (?P<node>\\S+)', action: exclude_node, times: 1, then: bisect}
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> list[str]:
    path = file(folder, text)
    with pytest.raises(SettingsError) as error:
        FaultTolerancePolicy.from_yaml(path)
    assert all(problem.startswith(f"{path}: ") for problem in error.value.problems), error.value.problems
    return [problem.removeprefix(f"{path}: ") for problem in error.value.problems]


def test_a_file_with_every_kind_of_setting_is_read_and_comes_back(tmp_path: Path) -> None:
    policy = FaultTolerancePolicy.from_yaml(file(tmp_path, EVERYTHING))
    assert (policy.max_restarts, policy.unconditional, policy.restart_window_seconds) == (20, True, 6000.0)
    assert [rung.action.value for rung in policy.rungs(FaultClass.NET_FABRIC, "nccl.remote_error")] == [
        "RESUBMIT_EXCLUDING",
        "FAIL",
    ]
    assert FaultTolerancePolicy.from_yaml(file(tmp_path, policy.to_yaml())) == policy


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_come_back_from_yaml_and_by_their_name(tmp_path: Path, preset: str) -> None:
    policy = getattr(FaultTolerancePolicy, preset)()
    assert FaultTolerancePolicy.from_yaml(file(tmp_path, policy.to_yaml())) == policy
    assert FaultTolerancePolicy.from_yaml(file(tmp_path, f"preset: {preset}")) == policy
    assert FaultTolerancePolicy.named(preset) == policy


def test_off_is_a_word_and_no_truth_value(tmp_path: Path) -> None:
    """YAML 1.1 would read ``mode: off`` as false."""
    assert FaultTolerancePolicy.from_yaml(file(tmp_path, "mode: off")).mode == "off"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_restart: 3", "max_restart: there is no such setting. Did you mean max_restarts?"),
        ("unconditional: yes", "unconditional: 'yes' is not allowed. Give true or false."),
        ("preset: ful", "preset: 'ful' is not allowed. Did you mean full?"),
        ("preset: full\nmoode: full", "moode: there is no such setting. Did you mean mode?"),
        ("mode: full\nmode: basic", "mode: given twice, in lines 1 and 2. Keep one of them."),
        ("hang:\n  floor_seconds: 9\n  floor_seconds: 8", "floor_seconds: given twice, in lines 2 and 3. Keep one"),
        ("", "None is not a policy. Give settings by name, one a line."),
        ("[1]", "[1] is not a policy."),
        ("3: 4", "FaultTolerancePolicy: {3: 4} is not allowed. Give settings by name."),
        ("a: [1", "line 1: no YAML: "),
        ("a: !!python/object:os.system x", "line 1: no YAML: "),
        ("rules: 3", "rules: 3 is not allowed. Give a list of rules: match, action."),
        ("rules: [{action: stop}]", "rules.0.match: nothing is given, and it is needed. Give an RE2 pattern."),
        ("rules: [{match: x, action: halt}]", "rules.0.action: 'halt' is not allowed. "),
        ("rules: [{match: '(', action: stop}]", "rules.0.match: '(' is no RE2 pattern: "),
        ("rules: [{match: 'a*', action: stop}]", "rules.0.match: 'a*' is not allowed. It matches an empty line"),
        ("rules: [{match: '(?=x)x', action: stop}]", "rules.0.match: '(?=x)x' is no RE2 pattern: "),
        ("signature_ladders: {a.b: [RESUBMI]}", "signature_ladders.a.b.0.action: 'RESUBMI' is not allowed. Did you"),
        ("signature_ladders: {a.b: []}", "signature_ladders.a.b: [] is not allowed. Give a list of at least one rung."),
        ("backoff: 5", "backoff: 5 is not allowed. Give settings by name: base_seconds, factor, max_seconds, jitter."),
        ("preset: [full]", "preset: ['full'] is not allowed. "),
        ("exclusion: {kind: had}", "exclusion.kind: 'had' is not allowed. Give hard or soft."),
        ("on_fault: notifi", "on_fault: 'notifi' is not allowed. Give act, notify or ask."),
        ("max_restarts_in_window: 17", "max_restarts_in_window: 17 is not allowed. Give a number from 1 to 16"),
        ("max_lost_gpu_hours: .nan", "max_lost_gpu_hours: nan is not allowed. Give GPU-hours above 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (said,) = refused(tmp_path, text)
    assert said.startswith(problem)


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = "max_restarts: 200\nmoode: full\nrules: [{match: x, action: stop, tims: 1}]\nask: {default: maybe}"
    assert len(refused(tmp_path, text)) == 4


def test_a_preset_that_is_none_hides_no_other_mistake(tmp_path: Path) -> None:
    said = refused(
        tmp_path, "preset: multinode\nmax_restart: 3\nhang: {floor_seconds: -1}\nrules: [{match: '(', action: stop}]"
    )
    assert [one.partition(":")[0] for one in said] == ["preset", "hang.floor_seconds", "rules.0.match", "max_restart"]
    assert "missing ): (" in said[2]
    assert "b'" not in said[2]


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.yaml: can't be read: No such file or directory\."):
        FaultTolerancePolicy.from_yaml(tmp_path / "nothing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="no UTF-8 text"):
        FaultTolerancePolicy.from_yaml(binary)


def test_a_name_that_is_neither_a_preset_nor_a_file_names_the_likely_preset() -> None:
    with pytest.raises(SettingsError, match=r"'multi_nod' is no preset\. Did you mean multi_node\?"):
        FaultTolerancePolicy.named("multi_nod")


plain = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029", exclude_categories=["Cc", "Cs"]))


@settings(max_examples=60, deadline=None)
@given(st.recursive(plain | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
@example({"0E0": None, "1e3": "1e3", ".5e1": ["-1E5"]})
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse_document(write_document({"it": value})) == {"it": value}


# --- the schema ----------------------------------------------------------------------------------------------------


def test_the_published_schema_is_current() -> None:
    """``airflow-ft policy schema > docs/policy.schema.json`` makes it anew."""
    published = Path(__file__).resolve().parents[2] / "docs" / "policy.schema.json"
    assert json.loads(published.read_text()) == policy_schema()


def test_the_schema_takes_what_the_policy_takes_and_refuses_typos() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = policy_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    assert list(check.iter_errors(parse_document(EVERYTHING))) == []
    for preset in PRESETS:
        assert list(check.iter_errors(getattr(FaultTolerancePolicy, preset)().to_dict())) == []
    for wrong in (
        {"max_restart": 3},
        {"ladder": {"HW_NOD": ["FAIL"]}},
        {"ladder": {"HW_NODE": ["FAIl"]}},
        {"rules": [{"match": "x", "action": "ladder"}]},
        {"preset": "ful"},
        {"max_restarts": 129},
    ):
        assert list(check.iter_errors(wrong)), wrong


def test_every_setting_of_the_schema_says_what_is_allowed() -> None:
    schema = policy_schema()
    models = [schema, *(model for model in schema["$defs"].values() if "properties" in model)]
    silent = [name for model in models for name, field in model["properties"].items() if not field.get("description")]
    assert silent == []
