from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.attempts.lookout import STATE_KEY, Lookout, LookoutOrder, LookoutResult
from airflow_ft.attempts.ports import TryInfo
from airflow_ft.backends.log_files import read_files

INFO = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
QUICK = {"quick_seconds": 4.0, "floor_seconds": 30.0, "ceiling_seconds": 300.0, "startup_seconds": 200.0}


class World:
    """A training that writes a log while the lookout sleeps, in simulated time."""

    def __init__(self, path: Path, lines: dict[int, str]) -> None:
        self.path, self.lines = path, lines
        self.second = 0
        self.said: list[str] = []
        self.stored: dict[str, Any] = {}
        self.stop_at: int | None = None

    def say(self, text: str, *, warning: bool = False) -> None:
        self.said.append(text)

    async def publish(self, key: str, value: Any) -> None:
        self.stored[key] = value

    async def recall(self, key: str) -> Any:
        return self.stored.get(key)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.second)

    async def sleep(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.second += 1
            if self.second in self.lines:
                with self.path.open("a") as file:
                    file.write(self.lines[self.second] + "\n")
        if self.stop_at is not None and self.second >= self.stop_at:
            raise asyncio.CancelledError
        assert self.second < 20_000


def look(world: World, **order: Any) -> LookoutResult:
    full = {"info": INFO, "files": str(world.path), "hang": QUICK, "poll_seconds": 1.0, **order}
    return asyncio.run(Lookout(LookoutOrder.from_record(full), world).watch())


def steps(first: int, last: int) -> dict[int, str]:
    return {n + 10: f"step={n} loss=2.0" for n in range(first, last)}


def test_it_ends_when_training_says_so(tmp_path: Path) -> None:
    world = World(tmp_path / "a.log", {**steps(1, 100), 120: "Training completed."})
    result = look(world)
    assert (result.end, result.progress.step) == ("ended", 99)
    assert world.stored["ft_progress"]["progress"]["step"] >= 90
    assert any("Step 50" in text for text in world.said)


def test_it_ends_at_the_declared_total_and_at_the_users_line(tmp_path: Path) -> None:
    assert look(World(tmp_path / "a", {n: f"step {n}/50 loss 1" for n in range(1, 51)})).end == "ended"
    assert look(World(tmp_path / "b", {**steps(1, 20), 40: "bye"}), end_pattern="^bye$").end == "ended"


def test_it_succeeds_when_a_step_is_passed_and_fails_when_training_ends_before(tmp_path: Path) -> None:
    assert look(World(tmp_path / "a", steps(1, 100)), until_step=50).progress.step == 50
    result = look(World(tmp_path / "b", {**steps(1, 30), 45: "Training completed."}), until_step=50)
    assert (result.end, result.text) == ("failed", "Training has ended before step 50.")


@pytest.mark.row("P8")
def test_a_hang_is_the_verdict(tmp_path: Path) -> None:
    world = World(tmp_path / "a", steps(1, 77))
    result = look(world)
    assert (result.end, result.verdict.last_step if result.verdict else None) == ("hung", 76)
    assert world.second <= 86 + 4 + 10 + 2


def test_notify_says_it_once_and_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path / "a", {**steps(1, 77), 400: "Training completed."})
    assert look(world, on_hang="notify").end == "ended"
    assert sum("Notice only" in text for text in world.said) == 1


@pytest.mark.row("P10")
def test_a_log_that_never_comes(tmp_path: Path) -> None:
    result = look(World(tmp_path / "none", {}))
    assert (result.end, result.verdict.kind if result.verdict else None) == ("hung", "never_started")


def test_an_unreadable_log_is_given_time_while_it_grows(tmp_path: Path) -> None:
    world = World(tmp_path / "a", {n: f"working on part {n}" for n in range(0, 700, 50)})
    assert look(world).end == "hung"
    assert world.second > 700


def test_a_successor_goes_on_where_the_state_stood(tmp_path: Path) -> None:
    world = World(tmp_path / "a", {**steps(1, 77), 400: "Training completed."})
    world.stop_at = 80
    with pytest.raises(asyncio.CancelledError):
        look(world)
    assert STATE_KEY in world.stored
    world.stop_at = None
    assert look(world).progress.first_step == 1
    assert world.second <= 110


def test_a_glob_and_a_rotated_file(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (tmp_path / "b.log").write_text("two\n")
    chunks, cursors = read_files(str(tmp_path / "*.log"), {}, 1_000)
    assert [chunk.data for chunk in chunks] == [b"one\n", b"two\n"]
    (tmp_path / "a.log").write_text("x\n")
    chunks, cursors = read_files(str(tmp_path / "*.log"), cursors, 1_000)
    assert [(chunk.data, chunk.restarted) for chunk in chunks] == [(b"x\n", True)]
    assert read_files(str(tmp_path / "*.log"), cursors, 1_000)[0] == []


class Touches(World):
    """A training that says nothing, and changes a file at these seconds."""

    def __init__(self, path: Path, seconds: list[int]) -> None:
        super().__init__(path, dict.fromkeys(seconds, "x"))

    async def sleep(self, seconds: float) -> None:
        before = self.second
        await super().sleep(seconds)
        if any(second in self.lines for second in range(before + 1, self.second + 1)):
            os.utime(self.path, (1_000_000 + self.second, 1_000_000 + self.second))


def test_a_files_changes_are_steps(tmp_path: Path) -> None:
    world = Touches(tmp_path / "state.bin", list(range(10, 400, 3)))
    result = look(world, files=None, touched=str(tmp_path / "*.bin"), until_step=50)
    assert (result.end, result.progress.step) == ("passed", 50)


@pytest.mark.row("P8")
def test_a_file_that_is_not_changed_any_more_is_a_hang(tmp_path: Path) -> None:
    world = Touches(tmp_path / "state.bin", list(range(10, 244, 3)))
    result = look(world, files=None, touched=str(tmp_path / "state.bin"), until_step=5_000)
    assert (result.end, world.second < 243 + 60) == ("hung", True)
