"""Lines of one kind that come again and again: counted, and soon left out at the speed of a search. Feeds ``scanning``.

A log in which nearly every line is a known error (a retry loop, a flood of one exception) would be looked at line by
line. Of each kind of line only the first ``MOST_ALIKE`` are worth it. A kind is the line without its numbers, except
numbers that say what happened (an Xid, an errno, an exit code). A kind that is full becomes a pattern that blanks its
lines in whole blocks; blank lines keep the numbers of the others right.
"""

from __future__ import annotations

import re

MOST_ALIKE = 2_000
MOST_KINDS = 20_000  # counted at the same time; a log with more kinds than that doesn't repeat itself
MOST_PATTERNS = 32
LONGEST = 600  # bytes of a line that make its kind

_VARIES = re.compile(rb"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")
_TELLS = re.compile(
    rb"(?:Xid \S+ ?|rrno:? |(?:code|status|failure|error|signal|RC|exitcode)\S{0,2}[ :=]{1,3}\(?-?)(\d{1,6})"
    rb"|\b[A-Z]{2}(\d{4})\b"
)


class Repeats:
    """Counts kinds of lines."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._full: list[bytes] = []
        self._pattern: re.Pattern[bytes] | None = None

    def is_new(self, line: bytes) -> bool:
        """Count a line; say whether it is among the first of its kind."""
        kind = _kind(line)
        count = self._counts.get(kind, 0) + 1
        if count == 1 and len(self._counts) >= MOST_KINDS:
            self._counts = {known: times for known, times in self._counts.items() if times >= MOST_ALIKE}
        self._counts[kind] = count
        if count == MOST_ALIKE and len(self._full) < MOST_PATTERNS:
            self._full.append(_as_pattern(line))
            self._pattern = re.compile(rb"(?m)^(?:" + b"|".join(self._full) + rb")$")
        return count <= MOST_ALIKE

    @property
    def patterns(self) -> int:
        """How many kinds are blanked."""
        return len(self._full)

    def blanked(self, data: bytes) -> bytes:
        """Return whole lines with those of full kinds made empty."""
        return self._pattern.sub(b"", data) if self._pattern is not None else data


def _kind(line: bytes) -> bytes:
    head = line[:LONGEST]
    told = _TELLS.findall(head)
    plain = _VARIES.sub(b"#", head)
    return plain + repr(told).encode() if told else plain


def _as_pattern(line: bytes) -> bytes:
    """Return a pattern for all lines of this kind."""
    head = line[:LONGEST]
    fixed = [found.span(1 if found[1] is not None else 2) for found in _TELLS.finditer(head)]
    parts, position = [], 0
    for found in _VARIES.finditer(head):
        if any(start <= found.start() < end for start, end in fixed):
            continue
        parts += [re.escape(head[position : found.start()]), _like(found[0])]
        position = found.end()
    parts.append(re.escape(head[position:]))
    return b"".join(parts) + (rb"[^\n]*" if len(line) > LONGEST else b"")


def _like(varying: bytes) -> bytes:
    if varying.startswith(b"0x"):
        return rb"0x[0-9a-fA-F]+"
    return rb"\d+" if varying.isdigit() else rb"[0-9a-f]{8,}"
