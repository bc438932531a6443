"""Scanning: the few lines of a large log that are worth reading, found in one pass over its bytes.

Fed block by block by ``diagnosis.inputs`` (or with one whole tail by ``findings``), so that memory stays bounded
whatever the size of the log. A block is searched with one pattern for all signatures; only a line that it matches is
decoded, with the lines behind it where a story follows (a traceback, a launcher's summary), and the log's own end.

What is kept has a limit: the first ``KEEP_FIRST`` lines (where it began) and the last ``KEEP_LAST``, and of lines of
one kind only the first (``repeats``), so that a flood of one error is read at the speed of a search.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from airflow_ft.core.loglines import clean
from airflow_ft.core.repeats import Repeats
from airflow_ft.core.rules import LINE_LIMIT, RuleSet

SMALL = 512 << 10  # a log of this size is read whole
BLOCK = 4 << 20
TAIL_LINES = 600
STORY_LINES = 60
KEEP_FIRST, KEEP_LAST = 12_000, 6_000
TAIL_BYTES = 192 << 10
KEPT_BYTES = 4 * LINE_LIMIT

_STORY = re.compile(rb"Traceback \(most|Root Cause|Failures:|failed \(exitcode|Last error:")
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")

Line = tuple[int, str]


class Scanner:
    """Take the blocks of one log, give the lines that are worth reading."""

    def __init__(self, rules: RuleSet) -> None:
        self._pattern = rules.scan_pattern
        self._first: list[tuple[int, bytes]] = []
        self._last: deque[tuple[int, bytes]] = deque(maxlen=KEEP_LAST)
        self._open = b""  # the line that has no end yet
        self._skipping = False  # inside a line that is too long
        self._half_end = b""
        self._number = 1  # of the first line of the open part
        self._story_until = 0
        self._repeats = Repeats()
        self._tail = b""
        self._tail_number = 1

    def feed(self, block: bytes) -> None:
        """Take the next bytes."""
        block = self._half_end + block
        self._half_end = b"\r" if block[-1:] == b"\r" else b""  # its other half may be in the next block
        block = _plain(block[: len(block) - len(self._half_end)])
        if self._skipping:
            end = block.find(b"\n")
            if end < 0:
                return
            block, self._skipping = block[end:], False
        data = self._open + block
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(data) > BLOCK:
            data, cut = data[:LINE_LIMIT] + b"\n", LINE_LIMIT + 1
            self._take(data)
            self._number -= 1  # its end is still to come
            self._open, self._skipping = b"", True
            return
        self._open = data[cut:]
        self._take(data[:cut])

    def lines(self) -> list[Line]:
        """Return the lines with their numbers, in order. Nothing can be fed after that."""
        if self._open:
            self._take(self._open + b"\n")
            self._open = b""
        kept = dict([*self._first, *self._last])
        tail = self._tail.split(b"\n")[:-1]
        start = self._tail_number
        for offset, line in islice(enumerate(tail), max(0, len(tail) - TAIL_LINES), None):
            kept.setdefault(start + offset, line)
        return [(number, _text(line)) for number, line in sorted(kept.items())]

    def _take(self, data: bytes) -> None:
        """Search whole lines."""
        if not data:
            return
        self._remember_tail(data)
        lines = data.count(b"\n")
        data = self._repeats.blanked(data)
        number, counted, position = self._number, 0, 0
        search: Any = self._pattern.search
        if self._story_until >= number:
            position = self._story(data, 0, number)
        while (found := search(data, position)) is not None:
            start = data.rfind(b"\n", 0, found.start()) + 1
            end = data.find(b"\n", found.start())
            number += data.count(b"\n", counted, start)
            counted, position = start, end + 1
            line = data[start:end]
            silent = self._repeats.patterns
            if self._keep(number, line) and _STORY.search(line) is not None:
                self._story_until = number + STORY_LINES
                position = self._story(data, position, number + 1)
            if self._repeats.patterns > silent:  # from here on they are left out of this block, too
                number += data.count(b"\n", counted, position)
                data, counted, position = self._repeats.blanked(data[position:]), 0, 0
            if position >= len(data):
                break
        self._number += lines

    def _story(self, data: bytes, position: int, number: int) -> int:
        """Keep the lines of a story that began before; return where to go on."""
        while number <= self._story_until and position < len(data):
            end = data.find(b"\n", position)
            line = data[position:end]
            if self._keep(number, line) and _STORY.search(line) is not None:
                self._story_until = number + STORY_LINES
            number, position = number + 1, end + 1
        return position

    def _keep(self, number: int, line: bytes) -> bool:
        """Keep a line, unless enough of its kind were kept; say whether it was."""
        if not line or not self._repeats.is_new(line):
            return False
        line = line[:KEPT_BYTES] if len(line) > KEPT_BYTES else line
        item = (number, line)
        if len(self._first) < KEEP_FIRST:
            self._first.append(item)
        else:
            self._last.append(item)
        return True

    def _remember_tail(self, data: bytes) -> None:
        if len(data) >= TAIL_BYTES:
            start = data.find(b"\n", len(data) - TAIL_BYTES) + 1
            self._tail, self._tail_number = data[start:], self._number + data.count(b"\n", 0, start)
            return
        joined = self._tail + data
        start = joined.find(b"\n", len(joined) - TAIL_BYTES) + 1 if len(joined) > TAIL_BYTES else 0
        self._tail_number = (self._tail_number if self._tail else self._number) + joined.count(b"\n", 0, start)
        self._tail = joined[start:]


def scan(blocks: Iterable[bytes], rules: RuleSet) -> list[Line]:
    """Return the lines of a log that are worth reading, with their numbers."""
    scanner = Scanner(rules)
    for block in blocks:
        scanner.feed(block)
    return scanner.lines()


def _plain(block: bytes) -> bytes:
    """Return a block without what hides words from a pattern: carriage returns, terminal colours, NUL."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" in block:
        block = _ESCAPE.sub(b"", block)
    return block.replace(b"\0", b"") if b"\0" in block else block


def _text(line: bytes) -> str:
    return clean(line[:KEPT_BYTES].decode("utf-8", "replace"))
