"""The armed points of ``crash_points``: off in production, and each fires once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from airflow_ft.attempts import crash_points
from airflow_ft.attempts.crash_points import ArmedPointError, current_run, reach


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(crash_points.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def test_without_the_variable_a_point_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(crash_points.FOLDER_VARIABLE, raising=False)
    (tmp_path / "here@any").write_text("raise")
    monkeypatch.chdir(tmp_path)
    reach("here")
    assert (tmp_path / "here@any").exists()


def test_an_armed_point_fires_once_and_tells_that_it_was_reached(folder: Path) -> None:
    (folder / "here@any").write_text("raise for a reason")
    reach("elsewhere")
    with pytest.raises(ArmedPointError, match="here@any"):
        reach("here")
    reach("here")
    what, pid, at = (folder / "here@any.reached").read_text().split()
    assert (what, int(pid)) == ("raise", os.getpid())
    assert float(at) == pytest.approx(time.time(), abs=60)


def test_a_point_can_be_armed_for_one_run(folder: Path) -> None:
    (folder / "here@manual__2026-01-01T00_00_00").write_text("raise")
    reach("here")
    token = current_run.set("manual__2026-01-01T00/00/00")
    try:
        with pytest.raises(ArmedPointError):
            reach("here")
    finally:
        current_run.reset(token)


@pytest.mark.parametrize(("what", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_kill_and_stop_are_real_signals_to_this_process(
    what: str, number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: sent.append((pid, sig)))
    (folder / "here@any").write_text(what)
    reach("here")
    assert sent == [(os.getpid(), number)]


def test_wait_goes_on_when_it_is_told_to(folder: Path) -> None:
    (folder / "here@any").write_text("wait")
    threading.Timer(0.2, lambda: (folder / "here@any.go").touch()).start()
    started = time.monotonic()
    reach("here")
    assert 0.1 < time.monotonic() - started < 10


@pytest.mark.parametrize("content", ["", "   ", "sing a song"])
def test_what_cannot_be_understood_does_nothing(content: str, folder: Path) -> None:
    (folder / "here@any").write_text(content)
    reach("here")
