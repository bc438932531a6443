"""Lines of a kind that was never seen while all was well: candidates for the cause when no signature knows one.

A simple template miner: what varies (numbers, addresses, paths, quoted values) is masked, the rest is a line's kind.
The healthy part of a log ends with its last step; a line after it whose kind never came before is a candidate. Lines
that speak of failing come first; nothing here is knowledge, and the diagnosis says so.

Rejected: Drain3. It joins lines whose words are alike, so that "opened shard 12" hides "lost shard 12": the one word
that is news is what it generalises away. On the logs of real runs it was 1.5 to 2.5 times as slow, and its last release
(2022) pins a version of cachetools that Airflow's other packages have left behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from airflow_ft.core.loglines import split_rank
from airflow_ft.core.steplines import read_line

MAX_CANDIDATES = 5
MIN_HEALTHY = 20  # lines; without a past, every line is new
_VARIES = re.compile(r"0x[0-9a-fA-F]+|[\w./-]*/[\w./-]+|\"[^\"]*\"|'[^']*'|[0-9a-fA-F]{8,}|\d+")
_FAILING = re.compile(
    r"(?i)\b(?:error|fail|fatal|abort|exception|unable|cannot|can't|could not|refused|denied|lost|corrupt|invalid|"
    r"timed? ?out|killed|panic|unexpected|missing|not found|exceeded|dead|died|crash)"
)
_DIGIT = re.compile(r"\d")
_NOISE = re.compile(
    r"^[\W_]*$|^\s+(?:File \"|at )|^frame #|\*{8}|closing signal|exitcode|error_file|To enable traceback"
)


def is_step(line: str) -> bool:
    """Whether a line tells of a step of the training."""
    return bool(_DIGIT.search(line)) and read_line(split_rank(line).text).step is not None


def healthy_part(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines up to the last step: what training prints while all is well."""
    last = next((index for index in range(len(lines) - 1, -1, -1) if is_step(lines[index])), -1)
    return lines[: last + 1]


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
