from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.cli.standalone import main
from airflow_ft.core.logclocks import LogClock
from tests.shared_inputs import shared


def progress(capsys: pytest.CaptureFixture[str], *args: str | Path) -> list[dict[str, Any]]:
    assert main(["progress", "--json", *map(str, args)]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def stamped(path: Path, gaps: list[float], template: str = "{stamp} step={n} loss=2.5") -> Path:
    at, lines = 1_700_000_000.0, []
    for n, gap in enumerate(gaps, 1):
        at += gap
        lines.append(template.format(stamp=f"{at:.3f}", n=n))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_healthy_log_has_no_alarm_and_a_cut_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stamped(tmp_path / "train.log", [0.5] * 1_000)
    (seen,) = progress(capsys, file)
    assert (seen["format"], seen["steps"], seen["alarms"]) == ("step words", 1_000, [])
    assert "detected_after" not in seen
    (cut,) = progress(capsys, file, "--cut", "333.3")
    assert cut["steps"] < 700
    assert 3 < cut["detected_after"] <= 10 * 0.5 + 5


def test_an_alarm_says_when_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stamped(tmp_path / "train.log", [0.5] * 333 + [900] + [0.5] * 100)
    (seen,) = progress(capsys, file)
    (alarm,) = seen["alarms"]
    assert set(alarm) == {"at", "silence", "threshold", "phase"}
    assert alarm["phase"] == "train"
    assert alarm["silence"] >= alarm["threshold"] > 5
    assert progress(capsys, file, "--judgement-seconds", "1000")[0]["alarms"] == []


@pytest.mark.story("PRG-07")
def test_a_wrong_guess_falls_back_to_the_growth_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten hours of lines that nobody can read, behind five numbered steps of the set-up."""
    file = tmp_path / "train.log"
    lines = [f"{1_700_000_000 + 3 * n} Step {n}/5: wrap part {n} of the model" for n in range(1, 6)]
    lines += [f"{1_700_000_015 + 60 * n} shard {n * 7919 % 10_000} is done" for n in range(600)]
    file.write_text("\n".join(lines) + "\n")
    (seen,) = progress(capsys, file)
    assert (seen["last_step"], seen["alarms"]) == (5, [])
    (cut,) = progress(capsys, file, "--cut", "10000")
    assert 3_500 < cut["detected_after"] < 3_700


def test_several_files_and_a_compressed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = stamped(tmp_path / "a b.log", [2.0] * 50)
    packed = tmp_path / "c.log.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = progress(capsys, plain, packed)
    assert {**one, "file": ""} == {**other, "file": ""}


@pytest.mark.story("PRG-08")
def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["progress", str(shared("stories", "PRG-second-stall.csv"))]) == 0
    text = capsys.readouterr().out
    assert text.count("No step after step") == 2
    assert "█" in text


def test_a_log_without_a_clock_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log").write_text("".join(f"step={n} loss=1\n" for n in range(50)))
    (seen,) = progress(capsys, tmp_path / "x.log", "--cut", "5")
    assert (seen["clock"], seen["alarms"], seen["detected_after"]) == (None, [], None)


def test_what_cannot_be_done_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["progress", str(tmp_path / "none.log")]) == 1
    assert "none.log" in capsys.readouterr().err
    assert main(["progress", str(stamped(tmp_path / "x", [1.0])), "--floor-seconds", "-1"]) == 1
    assert "floor_seconds" in capsys.readouterr().err
    assert main(["progress", str(tmp_path / "x"), "--ceiling-seconds", "60"]) == 1
    assert "at least floor_seconds (120)" in capsys.readouterr().err
    assert main(["progress", str(tmp_path / "x"), "--pattern", "no group"]) == 1
    assert "step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "kind", "seconds"),
    [
        (["2024-05-01T12:00:00.5 a", "no stamp", "2024-05-01T12:01:00.5 b"], "time stamps", 60),
        (["05/01/2024 11:59:50 - INFO - a", "05/01/2024 12:00:10 - INFO - b"], "time stamps", 20),
        (["2024-05-01,12:00:00 | INFO | a", "2024-05-01,12:00:09 | INFO | b"], "time stamps", 9),
        (["I20240501 12:00:00 7 x.py:1] a", "I20240501 12:00:09 7 x.py:1] b"], "time stamps", 9),
        (["[05/01 12:00:00 d2.utils.events]: a", "[05/01 12:00:09 d2.utils.events]: b"], "time stamps", 9),
        (["Nov 30 03:31:39 host a", "Nov 30 03:31:49 host b"], "time stamps", 10),
        (["2024-05-01T12:00:00.123456789Z a", "2024-05-01T14:00:10.123456789+02:00 b"], "time stamps", 10),
        (["23-07-26 23:59:30 a", "23-07-27 00:00:30 b"], "time stamps", 60),
        (["I0501 12:00:00.5 1 a] x", "I0501 12:00:10.5 1 a] y"], "glog stamps", 10),
        (["23:59:50 a", "00:00:20 b"], "time of day", 30),
        (['{"step": 1, "time": 1700000000.5}', '{"step": 2, "time": 1700000005.5}'], "time in JSON", 5),
        (["step:1/9 train_time:1000ms", "step:2/9 train_time:3000ms", "step:3/9 train_time:500ms"], "train_time", 2.5),
        ([' 1%|# | 1/9 [00:10<01:00, 1it/s]', ' 1%|# | 2/9 [01:10<01:00, 1it/s]'], "elapsed time of bars", 60),
        ([':::MLLOG {"time_ms": 1700000000000}', ':::MLLOG {"time_ms": 1700000007000}'], "MLPerf time_ms", 7),
        (["iter 1: loss 1, time 500.0ms", "iter 2: loss 1, time 500.0ms"], "time per step", 0.5),
    ],
)  # fmt: skip
def test_the_clocks_of_logs(lines: list[str], kind: str, seconds: float) -> None:
    clock = LogClock()
    times = [clock.feed(line, step, step - 1) for step, line in enumerate(lines, 1)]
    assert clock.name == kind
    assert (times[-1] or 0) - (times[0] or 0) == pytest.approx(seconds)


def at_each_line(lines: list[str]) -> list[float]:
    clock = LogClock()
    return [clock.feed(line, step, step - 1) or 0.0 for step, line in enumerate(lines, 1)]


def test_a_date_in_a_banner_is_not_the_clock_of_the_bars_below_it() -> None:
    bars = [f" 1%|# | {n}/99 [{n // 60:02d}:{n % 60:02d}<09:00, 1it/s]" for n in range(1, 91)]
    times = at_each_line(["started 2024-05-01 12:00:00", *bars])
    assert 65 <= times[-1] - times[0] <= 90


def test_bars_inside_each_other_do_not_add_up() -> None:
    clock, times = LogClock(), []
    for n in range(1, 61):
        clock.feed(f"epochs:  0%|  | 0/3 [{50 + n // 60:02d}:{n % 60:02d}<09:00, 9s/it]", n - 1, n - 1)
        times.append(clock.feed(f" 1%|# | {n}/99 [00:{n % 60:02d}<09:00, 1it/s]", n, n - 1) or 0.0)
    assert times[-2] - times[0] == 58


def local(start: str, seconds: list[int]) -> list[str]:
    from datetime import datetime, timedelta

    return [f"{datetime.fromisoformat(start) + timedelta(seconds=at):%Y-%m-%d %H:%M:%S} step" for at in seconds]


def test_clocks_that_are_set_do_not_make_an_hour() -> None:
    forward = at_each_line(local("2026-03-29 01:59:00", [*range(60), *range(3_660, 3_720)]))
    back = at_each_line(local("2026-10-25 02:59:00", [*range(60), *range(-3_540, -3_480)]))
    stepped = at_each_line(local("2026-01-01 12:00:00", [*range(60), *range(40, 100)]))
    assert forward[-1] - forward[0] == 119
    assert all(90 <= times[-1] - times[0] <= 119 for times in (back, stepped))
    assert all(later - earlier <= 1 for times in (forward, back) for earlier, later in itertools.pairwise(times))


def test_an_hour_without_a_line_is_an_hour() -> None:
    assert at_each_line(local("2026-03-29 01:30:00", [0, 1, 3_601]))[-1] % 60 == 1
    silent = at_each_line(local("2026-05-03 01:59:59", [0, 3_601]))
    assert silent[-1] - silent[0] == 3_601


def test_a_rank_with_another_clock_does_not_move_the_time() -> None:
    pairs = zip(
        local("2026-01-01 12:00:00", list(range(60))), local("2026-01-01 12:15:00", list(range(60))), strict=True
    )
    times = at_each_line([line for pair in pairs for line in pair])
    assert times[-1] - times[1] == 59


ODD = {
    "nothing": b"",
    "zeros": b"\0" * 50_000,
    "noise": bytes(range(256)) * 500,
    "one line without an end": b"step 1 loss 2",
    "a line of five megabytes": b"x" * 5_000_000 + b"\n2026-01-01 12:00:00 step=1 loss=2\n",
    "another encoding": "step 1 loss 2\nstep 2 loss 2\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_answered(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.log").write_bytes(ODD[name])
    (seen,) = progress(capsys, tmp_path / "odd.log", "--cut", "10")
    assert seen["alarms"] == []
    assert {"file", "format", "steps", "alarms", "detected_after"} <= seen.keys()


def test_line_ends_of_other_systems_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = stamped(tmp_path / "a.log", [1.0] * 200)
    (tmp_path / "b.log").write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    one, other = progress(capsys, file, tmp_path / "b.log", "--cut", "90")
    assert {**one, "file": ""} == {**other, "file": ""}
