"""Names of chains and attempts: story SUB-06, and what else a name must not do."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest

from airflow_ft.core.names import attempt_name, chain_id

RUN = "scheduled__2026-09-01T00:00:00+00:00"
LONG = "a" * 200
# Content of the story's case: every pair of these has to get another name.
INPUTS: list[tuple[str, str, str, int]] = [
    ("ml.train/llm", RUN, "train", -1),
    ("ml.train/llm", RUN, "train", 0),
    ("ml.train/llm", RUN, "train", 10),
    ("ml-train-llm", RUN, "train", 0),
    ("ml_train_llm", RUN, "train", 0),
    (LONG, "manual__2026-09-01T00:00:00.123456+00:00_AbCd", "group.sub.train_model", 3),
    (LONG, "manual__2026-09-01T00:00:00.123457+00:00_AbCd", "group.sub.train_model", 3),
    ("训练", "run 1", "шаг", -1),
    ("--help", "-rf", ".", -1),
    ("X", "y", "TRAIN", -1),
    ("x", "y", "train", -1),
]
NAMES = {(one, number): attempt_name(chain_id(*one), number) for one in INPUTS for number in (0, 7)}


@pytest.mark.story("SUB-06")
def test_every_pair_of_inputs_gives_another_name() -> None:
    assert len(set(NAMES.values())) == len(NAMES)


@pytest.mark.story("SUB-06")
@pytest.mark.parametrize("name", NAMES.values())
def test_a_name_is_legal_everywhere(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), "a Kubernetes object"
    assert name[0].isalpha(), "and a service made from it"
    assert len(name) <= 50, "-worker-127 and a pod's hash still fit into 63"
    assert not name.startswith("-") and " " not in name and "," not in name, "Slurm"


@pytest.mark.story("SUB-06")
@pytest.mark.parametrize(("key", "name"), NAMES.items())
def test_the_attempt_can_be_read_off_and_the_chain_as_well(key: tuple[Any, int], name: str) -> None:
    one, number = key
    chain, _, told = name.rpartition("-a")
    assert (chain, int(told)) == (chain_id(*one), number)


@pytest.mark.story("SUB-06")
def test_another_process_gives_the_same_names() -> None:
    program = (
        "import json, sys; from airflow_ft.core.names import chain_id;"
        "print(json.dumps([chain_id(*one) for one in json.load(sys.stdin)]))"
    )
    import json

    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(INPUTS),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == [chain_id(*one) for one in INPUTS]


def test_a_run_that_was_deleted_and_made_anew_under_its_id_is_another_chain() -> None:
    assert chain_id("d", "r", "t", -1, "ti-1") != chain_id("d", "r", "t", -1, "ti-2")


def test_no_part_can_be_moved_over_to_the_next_one() -> None:
    ids = [chain_id("a", "b", "c"), chain_id("a\x00b", "", "c"), chain_id("ab", "", "c"), chain_id("a", "bc", "c")]
    assert all(one != other for one, other in combinations(ids, 2))


@pytest.mark.parametrize("task", ["t" * 300, "---", "9lives", "a" * 23 + "-" + "b", "\ud800"])
@pytest.mark.parametrize("number", [0, 127, 9999])
def test_any_task_id_and_any_number_of_attempts_stay_within_the_limit(task: str, number: int) -> None:
    name = attempt_name(chain_id("d", "r", task), number)
    assert len(name) <= 50
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert "--" not in name
