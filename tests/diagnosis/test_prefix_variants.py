"""The same failure in the dress of every launcher, collector and logger: four woven tracebacks, one is the cause."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from airflow_ft.core.classify import classify
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import facts_of_text
from airflow_ft.diagnosis.signature_files import load_rules

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 88, in <module>',
    "    main()",
    '  File "train.py", line 41, in main',
    "    loss = model(batch)",
)
VICTIM = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:37285"
CAUSE = "KeyError: 'labels'"

RANKED: dict[str, Callable[[int], str]] = {
    "srun --label": lambda rank: f"{rank}: ",
    "srun --label, padded": lambda rank: f"{rank:2d}: ",
    "PyTorch": lambda rank: f"[rank{rank}]: ",
    "torchrun --tee": lambda rank: f"[default{rank}]:",
    "torchrun --tee and PyTorch": lambda rank: f"[default{rank}]:[rank{rank}]: ",
    "bracketed number": lambda rank: f"[{rank}]:",
    "mpirun --tag-output": lambda rank: f"[1,{rank}]<stderr>:",
    "clock of the platform": lambda rank: f"2026-03-01T10:00:00.{rank}00Z [rank{rank}]: ",
    "colours": lambda rank: f"\x1b[31m[rank{rank}]\x1b[0m: ",
    "loguru": lambda rank: f"2026-03-01 10:00:00.123 | ERROR    | __main__:main:41 - [rank {rank}] ",
    "logging": lambda rank: f"2026-03-01 10:00:00,123 [rank{rank}] ERROR train: ",
}
NAMED: dict[str, Callable[[int], str]] = {
    "Ray": lambda rank: f"(RayTrainWorker pid={900 + rank}, ip=10.0.0.{10 + rank}) ",
    "kubectl logs --prefix": lambda rank: f"[pod/llm-worker-{rank}/pytorch] ",
    "stern": lambda rank: f"llm-worker-{rank} pytorch ",
    "docker compose": lambda rank: f"worker-{rank}  | ",
}


def woven(prefix: Callable[[int], str], seed: int, end: str = "\n") -> str:
    """Four ranks print a traceback at the same time; lines come in any order, each rank's own in its order."""
    chance = random.Random(seed)
    waiting = {rank: [*TRACEBACK, CAUSE if rank == 2 else VICTIM] for rank in range(4)}
    lines = []
    while any(waiting.values()):
        rank = chance.choice([rank for rank, own in waiting.items() if own])
        lines.append(prefix(rank) + waiting[rank].pop(0))
    return end.join(lines) + end


def answer(text: str) -> dict[str, Any]:
    return as_answer(classify(facts_of_text(text, load_rules()), load_rules()))


@pytest.mark.story("WAT-09")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefix", RANKED.values(), ids=RANKED)
def test_the_rank_that_raised_is_named_in_every_dress(prefix: Callable[[int], str], seed: int) -> None:
    told = answer(woven(prefix, seed))
    assert told["fault_class"] == "APP_ERROR"
    assert told["root"]["text"] == CAUSE
    assert told["suspects"] == [{"kind": "rank", "name": "2"}]


@pytest.mark.story("WAT-10")
@pytest.mark.story("WAT-11")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prefix", NAMED.values(), ids=NAMED)
def test_who_has_no_rank_is_named_by_place(prefix: Callable[[int], str], seed: int) -> None:
    told = answer(woven(prefix, seed))
    assert told["fault_class"] == "APP_ERROR"
    assert told["root"]["text"] == CAUSE
    assert told["root"]["node"].endswith("2")
    assert told["exclude"] == []


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n\n"])
def test_line_ends_change_nothing(end: str) -> None:
    assert answer(woven(RANKED["PyTorch"], 1, end))["root"]["text"] == CAUSE


@pytest.mark.story("WAT-09")
def test_without_any_prefix_nobody_is_named() -> None:
    told = answer(woven(lambda _: "", 1).replace(VICTIM, CAUSE))
    assert (told["fault_class"], told["suspects"]) == ("APP_ERROR", [])


@pytest.mark.story("WAT-09")
def test_a_line_torn_in_two_by_another_rank_is_no_crash() -> None:
    text = "Traceback (most recent call last):Traceback (most recent call last):\n\nKeyErrorKeyError: : 'x''x'\n\n"
    assert answer(text + "KeyError: 'x'\n")["fault_class"] == "APP_ERROR"
