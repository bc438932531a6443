"""Reading logs through truncation, rotation and races."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.backends.local import logs
from airflow_ft.backends.local.folder import JobFolder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(str(tmp_path), "job")
    for node in ("n1", "n2"):
        os.makedirs(made.node(node))
    return made


def output(folder: JobFolder, node: str = "n1") -> Path:
    return Path(folder.node(node), "output.log")


class Reader:
    """Reads on, and keeps the cursors as the trigger would."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder, self.cursors = folder, dict[str, int]()

    def read(self, limit: int = 1000) -> list[tuple[str, bytes, bool]]:
        chunks, self.cursors = logs.read(self.folder, self.cursors, limit)
        return [(chunk.source, chunk.data, chunk.restarted) for chunk in chunks]


def test_nothing_is_read_where_nothing_is(folder: JobFolder) -> None:
    """A node without output has no chunk."""
    assert Reader(folder).read() == []
    assert logs.tails(folder, 10) == []


def test_a_truncated_log_is_read_anew(folder: JobFolder) -> None:
    """And it is said that it began anew."""
    reader = Reader(folder)
    output(folder).write_bytes(b"one\ntwo\n")
    assert reader.read() == [("n1/output", b"one\ntwo\n", False)]
    os.truncate(output(folder), 0)
    assert reader.read() == [("n1/output", b"", True)]
    assert reader.read() == []
    output(folder).write_bytes(b"new\n")
    assert reader.read() == [("n1/output", b"new\n", False)]


@pytest.mark.story("WAT-05")
def test_a_rotated_log_is_read_to_its_end_first(folder: JobFolder) -> None:
    """Nothing between the last read and the rename is lost, in pieces of any size."""
    reader, path = Reader(folder), output(folder)
    path.write_bytes(b"one\n")
    reader.read()
    with path.open("ab") as file:
        file.write(b"two\nthree\n")
    path.rename(path.with_name("output.log.1"))
    path.write_bytes(b"four\n")
    seen = []
    while chunks := reader.read(limit=12):
        seen += chunks
    assert b"".join(data for _, data, _ in seen) == b"two\nthree\nfour\n"
    assert [restarted for _, _, restarted in seen] == [False, False, True]


def test_a_rotated_log_that_was_removed_is_given_up(folder: JobFolder) -> None:
    """What is gone is gone; the new one is read from its start."""
    reader, path = Reader(folder), output(folder)
    path.write_bytes(b"one\n")
    reader.read()
    path.rename(path.with_name("old"))
    path.write_bytes(b"new and longer\n")
    path.with_name("old").unlink()
    assert reader.read() == [("n1/output", b"new and longer\n", True)]


def test_a_chatty_node_does_not_hide_the_others(folder: JobFolder) -> None:
    """The limit is shared."""
    output(folder, "n1").write_bytes(b"x" * 1000)
    output(folder, "n2").write_bytes(b"quiet")
    seen = Reader(folder).read(limit=100)
    assert [(source, len(data)) for source, data, _ in seen] == [("n1/output", 50), ("n2/output", 5)]


@pytest.mark.story("SEC-05")
def test_a_line_of_five_megabytes_is_read_in_bounded_pieces(folder: JobFolder) -> None:
    """Nobody holds more of it than the limit."""
    output(folder).write_bytes(b"x" * 5_000_000)
    reader, total = Reader(folder), 0
    while chunks := reader.read(limit=200_000):
        assert sum(len(data) for _, data, _ in chunks) <= 200_000
        total += sum(len(data) for _, data, _ in chunks)
    assert total == 5_000_000
    assert [len(tail.data) for tail in logs.tails(folder, 1000)] == [1000]


def test_tails_have_the_newest_file_of_every_rank(folder: JobFolder) -> None:
    """Of the last generation only."""
    for age, (generation, text) in enumerate([("g1", b"new"), ("g0", b"old")]):
        path = Path(folder.node("n2"), "ranks", f"a-{generation}_x", "attempt_0", "3", "stderr.log")
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
        os.utime(path, (1000 - age, 1000 - age))
    output(folder, "n2").write_bytes(b"0123456789")
    found: list[Any] = [(tail.source, tail.data, tail.offset, tail.node) for tail in logs.tails(folder, 4)]
    assert found == [("n2/output", b"6789", 6, "n2"), ("n2/rank3.stderr", b"new", 0, "n2")]
