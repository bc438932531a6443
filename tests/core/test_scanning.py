"""A large log is read in blocks; what is found doesn't depend on where they are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ft.core import repeats
from airflow_ft.core.loglines import lines_of
from airflow_ft.core.scanning import BLOCK, TAIL_LINES, Scanner, scan
from airflow_ft.diagnosis.signature_files import load_rules, load_signatures

PLAIN = [f"nothing to see in line {n}".encode() for n in range(5)]
KNOWN = [b"KeyError: 'x'", b"Traceback (most recent call last):", b"  File \"a.py\"", b"CUDA out of memory. Tried to allocate"]  # fmt: skip # noqa: E501


@given(
    st.lists(st.sampled_from(PLAIN + KNOWN), max_size=60),
    st.lists(st.integers(0, 900), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
@settings(max_examples=150, deadline=None)
def test_any_cutting_gives_the_same_lines(lines: list[bytes], cuts: list[int], end: bytes) -> None:
    data = end.join(lines)
    rules, blocks, start = load_rules(), [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        blocks.append(data[start:cut])
        start = cut
    assert scan(blocks, rules) == scan([data], rules)


def test_known_lines_and_the_end_are_kept_with_their_numbers() -> None:
    lines = ["quiet"] * 20_000
    lines[7_000] = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    found = dict(scan(["\n".join(lines).encode()], load_rules()))
    assert found[7_001] == lines[7_000]
    assert len(found) == 1 + TAIL_LINES
    assert 20_000 in found


def test_every_example_is_found_in_a_block() -> None:
    rules = load_rules()
    for signature in load_signatures():
        for line in signature.examples.match:
            raw = f"quiet\n2026-01-01T00:00:00Z [rank3]: {line}\nquiet\n".encode()
            assert rules.scan_pattern.search(raw) is not None, line


def test_an_endless_line_takes_bounded_memory() -> None:
    scanner = Scanner(load_rules())
    for _ in range(8):
        scanner.feed(b"x" * BLOCK)
    scanner.feed(b"\nMemoryError\n")
    lines = scanner.lines()
    assert [text for _, text in lines][-1] == "MemoryError"
    assert sum(len(text) for _, text in lines) < BLOCK


def test_small_and_large_logs_count_lines_alike() -> None:
    text = "a\nb\r\nc\rd\nMemoryError\n"
    assert dict(scan([text.encode()], load_rules()))[len(lines_of(text.encode()))] == "MemoryError"


FLOOD = [b"KeyError: 1", b"KeyError: 22", b"rank 3 OSError: [Errno 5] Input/output error", b"NVRM: Xid (PCI:0000:3b:00): 45, pid=1, Ch 1"]  # fmt: skip # noqa: E501


@given(
    st.lists(st.sampled_from(PLAIN[:2] + KNOWN + FLOOD), max_size=80),
    st.lists(st.integers(0, 1_500), max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_a_flood_is_cut_alike_wherever_the_blocks_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    data, rules = b"\n".join(lines), load_rules()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repeats, "MOST_ALIKE", 3)
        edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        blocks = [data[start:end] for start, end in itertools.pairwise(edges)]
        assert scan(blocks, rules) == scan([data], rules)


def test_a_flood_hides_nothing_and_keeps_the_numbers_of_the_others() -> None:
    lines = [f"[rank{n % 64}] OSError: [Errno 5] Input/output error: '/data/shard-{n:06d}'" for n in range(30_000)]
    lines[20_000] = "[rank7] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    lines[25_000] = "[rank7] OSError: [Errno 28] No space left on device: '/data/shard-025000'"
    found = dict(scan(["\n".join(lines).encode()], load_rules()))
    assert found[20_001] == lines[20_000]
    assert found[25_001] == lines[25_000], "numbers that tell what happened are not only numbers"
    assert len(found) <= repeats.MOST_ALIKE + TAIL_LINES + 2
    assert all(text == lines[number - 1] for number, text in found.items())


def test_one_xid_does_not_hide_another() -> None:
    lines = [f"[{n}.5] NVRM: Xid (PCI:0000:3b:00): 45, pid={n}, Ch 0000{n:04d}" for n in range(5_000)]
    lines[4_000] = "[4000.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4000, Ch 00004000"
    assert dict(scan(["\n".join(lines).encode()], load_rules()))[4_001] == lines[4_000]
