"""Dumps of PyTorch's flight recorder: JSON is read, a pickle never is; who is behind."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.agent import flight
from airflow_ft.core.flight import behind


class Bomb:
    """What a pickle can do."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("exploded",))


def dump(enqueued: int, completed: int, state: str = "scheduled") -> dict[str, object]:
    status = {"last_enqueued_collective": str(enqueued), "last_started_collective": "-1"}
    return {
        "version": "2.5",
        "pg_status": {"0": {**status, "last_completed_collective": str(completed)}},
        "entries": [
            {"profiling_name": "nccl:all_reduce", "collective_seq_id": enqueued, "state": state, "pg_id": 0},
        ],
    }


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[int]:
    env = {**os.environ, "RANK": "3", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "trace_")}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.row("P9")
def test_the_last_collective_of_a_rank(rank: int, tmp_path: Path) -> None:
    assert flight.read({rank: 3}) == []
    (tmp_path / "trace_3").write_text(json.dumps(dump(17, 16)))
    assert flight.read({rank: 3, 1: None}) == [
        {"rank": 3, "group": {"0": [17, -1, 16]}, "last": "all_reduce", "seq": 17, "state": "scheduled"}
    ]


def test_a_dump_of_an_earlier_run_is_none(rank: int, tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_text(json.dumps(dump(17, 16)))
    os.utime(tmp_path / "trace_3", (1_000, 1_000))
    assert flight.read({rank: 3}) == []


def test_a_pickle_is_never_loaded(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_3").write_bytes(pickle.dumps(Bomb()))
    assert flight.read({rank: 3}) == []
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"entries": 3, "pg_status": [1]}', '{"pg_status": {"0": 3}}'])
def test_odd_dumps_say_nothing(rank: int, tmp_path: Path, text: str) -> None:
    (tmp_path / "trace_3").write_text(text)
    assert flight.read({rank: 3}) == []


def told(**enqueued: int) -> list[dict[str, object]]:
    return [{"rank": int(name[1:]), "group": {"0": [number, -1, 3]}} for name, number in enqueued.items()]


@pytest.mark.row("P9")
def test_who_is_behind_is_who_has_called_fewer_collectives() -> None:
    assert [late.rank for late in behind(told(r0=17, r1=17, r2=16, r3=17))] == [2]
    assert behind(told(r0=17, r1=17)) == []
    assert behind(told(r0=17, r1=16, r2=15)) == [], "most are behind: nobody can be named"
    assert [late.rank for late in behind(told(r0=17, r1=16))] == [1]
    assert behind(None) == behind([3, {"rank": "x", "group": {"0": None}}]) == []
