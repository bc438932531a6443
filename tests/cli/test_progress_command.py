from __future__ import annotations

import gzip
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
    assert main(["progress", str(tmp_path / "x"), "--pattern", "no group"]) == 1
    assert "step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "kind", "seconds"),
    [
        (["2024-05-01T12:00:00.5 a", "no stamp", "2024-05-01T12:01:00.5 b"], "time stamps", 60),
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
