"""The agent's small parts by plain values: lines, progress reports, files, the archive."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ft.agent import messages, report, state
from airflow_ft.backends.agent_archive import build_agent_archive

AGENT = Path(messages.__file__).parent
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=500), inner, max_size=20),
    max_leaves=60,
)


@given(note=json_values, nonce=st.text(max_size=200))
def test_line_is_at_most_4000_bytes_and_valid_json(note: object, nonce: str) -> None:
    """PIPE_BUF: a longer write could be torn by another writer of the pipe."""
    line = messages.line("n", {"event": "restart", "note": note})
    assert len(line) <= 4000
    assert line.startswith(b"\nft-agent n {") and line.endswith(b"}\n") and line.count(b"\n") == 2
    assert json.loads(line[len(b"\nft-agent n ") :])["event"] == "restart"


def test_queue_for_a_stalled_reader_is_bounded() -> None:
    """A reader that never comes back costs no memory."""
    reader, writer = os.pipe()
    out = messages.Messages("n", writer)
    for number in range(3000):
        out.say("x", number=number, text="y" * 1000)
    assert len(out._queue) == messages.MAX_QUEUED
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"step": 3, "loss": 0.5, "phase": "train"}, '{"step":3,"loss":0.5,"phase":"train"}'),
        ({"step": 4}, '{"step":4}'),
        ({"loss": float("nan")}, '{"loss":"nan"}'),
        ({"phase": "a\nb"}, '{"phase":"a\\nb"}'),
    ],
)
def test_report_prints_one_line(capsys: pytest.CaptureFixture[str], fields: dict[str, object], line: str) -> None:
    """The line that the progress reader looks for."""
    report(**fields)  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"ft-progress {line}\n"


def test_report_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line is no reason to stop a training."""
    report(step="no number")
    monkeypatch.setattr(sys, "stdout", None)
    report(step=1)


def test_report_without_end_marker_is_none(tmp_path: Path) -> None:
    """Half a report says nothing."""
    assert state.read_report(str(tmp_path)) is None
    (tmp_path / "report.json").write_text('{"code": 0}')
    assert state.read_report(str(tmp_path)) is None


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    """Readers see the old one or the new one."""
    path = tmp_path / "x.json"
    state.write_atomic(str(path), {"a": 1})
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        state.write_atomic(str(path), {"a": 2})
    assert os.listdir(tmp_path) == ["x.json"]


def test_agent_imports_the_standard_library_alone_in_the_syntax_of_3_8() -> None:
    """It is shipped into the user's image."""
    for path in AGENT.rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        assert ast.get_docstring(tree), path
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").split(".")[0] in sys.stdlib_module_names, path
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, path
            if isinstance(node, ast.Import):
                assert all(name.name.split(".")[0] in sys.stdlib_module_names for name in node.names), path


def test_archive_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    """Same bytes, same name; an existing one is reused, a damaged one replaced."""
    first, second = build_agent_archive(tmp_path / "a"), build_agent_archive(tmp_path / "b")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    before = first.stat()
    assert build_agent_archive(tmp_path / "a") == first
    assert first.stat().st_mtime_ns == before.st_mtime_ns and first.stat().st_ino == before.st_ino
    first.write_bytes(b"damaged")
    assert build_agent_archive(tmp_path / "a").read_bytes() == second.read_bytes()
    assert os.listdir(tmp_path / "a") == [first.name]
    names = zipfile.ZipFile(first).namelist()
    assert "__main__.py" in names and "ft_agent/sitecustomize/sitecustomize.py" in names
    assert all(name == "__main__.py" or name.startswith("ft_agent/") for name in names)


def test_module_form_is_the_same_program() -> None:
    """`python -m airflow_ft.agent`."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow_ft.agent", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "run" in done.stdout
