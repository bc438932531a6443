"""Lines of a kind that was never seen while all was well: candidates for the cause when no signature knows one.

A simple template miner: what varies (numbers, addresses, paths, quoted values) is masked, the rest is a line's kind.
The healthy part of a log ends with its last step; a line after it whose kind never came before is a candidate. Lines
that speak of failing come first; nothing here is knowledge, and the diagnosis says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MAX_CANDIDATES = 5
MIN_HEALTHY = 20  # lines; without a past, every line is new
_VARIES = re.compile(r"0x[0-9a-fA-F]+|[\w./-]*/[\w./-]+|\"[^\"]*\"|'[^']*'|[0-9a-fA-F]{8,}|\d+")
_FAILING = re.compile(
    r"(?i)\b(?:error|fail|fatal|abort|exception|unable|cannot|can't|could not|refused|denied|lost|corrupt|invalid|"
    r"timed? ?out|killed|panic|unexpected|missing|not found|exceeded|dead|died|crash)"
)
_NOISE = re.compile(
    r"^[\W_]*$|^\s+(?:File \"|at )|^frame #|\*{8}|closing signal|exitcode|error_file|To enable traceback"
)


def kind_of(line: str) -> str:
    """Return a line without what varies."""
    return _VARIES.sub("#", line.strip())[:200]


def novel(healthy: Iterable[str], after: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the numbered lines after the healthy part whose kind is new, those that speak of failing first."""
    past = list(healthy)
    if len(past) < MIN_HEALTHY:
        return []
    known = {kind_of(line) for line in past}
    found: dict[str, tuple[int, str]] = {}
    for number, line in after:
        if line.strip() and not _NOISE.search(line) and (kind := kind_of(line)) not in known:
            found.setdefault(kind, (number, line))
    return sorted(found.values(), key=lambda item: (not _FAILING.search(item[1]), item[0]))[:MAX_CANDIDATES]
