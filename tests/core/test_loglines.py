from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.core.loglines import LineReader, RankedLine, lines_of, merge_fetches, split_rank
from tests.shared_inputs import shared, story

AWKWARD = st.lists(
    st.sampled_from(
        [b"a", b"step 1", b"\n", b"\r", b"\r\n", b"\0", b"\xc3", b"\xa9", b"\xff", b"\x1b[31m", "█".encode()]
    )
)


def in_pieces(data: bytes, cuts: list[int], limit: int = 16_384) -> list[str]:
    reader, lines, start = LineReader(limit), [], 0
    for cut in [*sorted(cuts), len(data)]:
        lines += reader.feed(data[start:cut])
        start = cut
    return lines + reader.flush()


@pytest.mark.story("WAT-06")
@given(pieces=AWKWARD, cuts=st.lists(st.integers(0, 60), max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_chunking_gives_the_same_lines(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    inside = [min(cut, len(data)) for cut in cuts]
    assert in_pieces(data, inside) == in_pieces(data, []) == in_pieces(data, list(range(len(data))))
    assert in_pieces(data, inside, limit=5) == in_pieces(data, [], limit=5)


@pytest.mark.story("WAT-06")
def test_cut_characters_and_broken_bytes_of_the_story() -> None:
    expected = story("WAT-utf8-split")
    data = shared("stories", "WAT-utf8-split.bin").read_bytes()
    lines = in_pieces(data, expected["chunk_at"])
    assert lines == lines_of(data)
    assert len(lines) == expected["n_lines"]
    assert [n for n, line in enumerate(lines, 1) if "\ufffd" in line] == expected[
        "replacement_characters_only_in_lines"
    ]


@pytest.mark.story("WAT-07")
def test_each_state_of_a_bar_is_a_line_and_the_newest_can_be_seen() -> None:
    reader = LineReader()
    assert reader.feed(b"\r 0%| 0/9\r 11%| 1/9\r 22%") == [" 0%| 0/9", " 11%| 1/9"]
    assert reader.peek() == " 22%"
    assert reader.unfinished == 4


@pytest.mark.story("SEC-05")
def test_an_endless_line_is_bounded_and_counted() -> None:
    reader = LineReader(limit=100)
    for _ in range(5_000):
        assert reader.feed(b"x" * 1_000) == []
    assert reader.unfinished == 5_000_000
    (line,) = reader.feed(b"\n")
    assert line == "x" * 100 + "… (4999900 bytes more)"
    assert reader.cut_bytes == 4_999_900


def test_windows_ends_and_blank_lines() -> None:
    assert lines_of(b"a\r\n\r\nb\n\nc\r\rd") == ["a", "", "b", "", "c", "d"]


def test_escapes_and_controls_are_gone_and_tabs_stay() -> None:
    assert lines_of(b"\x1b[1;32mok\x1b[0m\x1b]0;title\x07\x00\tend\x1b[A\n") == ["ok\tend"]


@pytest.mark.story("WAT-08")
def test_overlapping_fetches_are_joined_once() -> None:
    fetches = [fetch["lines"] for fetch in json.loads(shared("stories", "WAT-overlap.fetches.json").read_text())]
    assert [line.text for line in merge_fetches(fetches)] == story("WAT-overlap")["lines"]


@pytest.mark.story("WAT-10")
@pytest.mark.parametrize(
    ("line", "ranked"),
    [
        ("[rank3]: KeyError: 'x'", RankedLine(3, "KeyError: 'x'")),
        ("[rank2] up restart=0", RankedLine(2, "up restart=0")),
        ("[default3]:step=410 loss=1.7", RankedLine(None, "step=410 loss=1.7", 3)),
        ("[default1]:[rank9]:[E301 x]", RankedLine(9, "[E301 x]", 1)),
        ("[trainer0]:hello", RankedLine(None, "hello", 0)),
        ("2026-02-21T14:15:01Z [n2] [rank8] AssertionError: x", RankedLine(8, "AssertionError: x")),
        (
            "[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog",
            RankedLine(0, "[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog"),
        ),
        ("[epoch 3]: step 5", RankedLine(None, "[epoch 3]: step 5")),
        ("[node1] hello", RankedLine(None, "[node1] hello")),
        ("plain", RankedLine(None, "plain")),
    ],
)
def test_the_writer_of_a_line(line: str, ranked: RankedLine) -> None:
    assert split_rank(line) == ranked
