"""What a preflight item comes to, and the one line that says so (mission M8, M9).

    item=disk-size root status=failed value=8.2 GB need=> 32 GB advice=Give the container a larger root disk.

The order of the words is fixed and no value holds a line break, so a line can be read back (``parse``) although an
item's name and its values may hold blanks.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
WHOLE = "preflight"  # the item of the last line, which is about all others
EXIT_FAILED = 78  # EX_CONFIG: no training program ends with it
_LINE = re.compile(r"item=(.+?) status=(ok|failed|skipped) value=(.*?) need=(.*?) advice=(.*?)\s*$", re.M)


class Result(NamedTuple):
    """One item. ``measured`` is a number for comparison with other nodes; ``peer`` the other node of a pair."""

    item: str
    status: str
    value: str = ""
    need: str = ""
    advice: str = ""
    measured: float | None = None
    peer: str = ""

    def line(self) -> str:
        """The line for the log."""
        words = [" ".join(str(word).split()) for word in (self.item, self.status, self.value, self.need, self.advice)]
        return "item=%s status=%s value=%s need=%s advice=%s" % tuple(words)


def ok(value: object, need: object = "", measured: float | None = None) -> Result:
    """The item holds."""
    return Result("", OK, str(value), str(need), "", measured)


def failed(value: object, need: object, advice: str, measured: float | None = None) -> Result:
    """The item doesn't hold."""
    return Result("", FAILED, str(value), str(need), advice, measured)


def skipped(why: object) -> Result:
    """The item can't be looked at here; ``why`` is its value."""
    return Result("", SKIPPED, str(why))


def parse(text: str) -> list[Result]:
    """All items that a text tells of."""
    found = [match.groups() for match in _LINE.finditer(text)]
    return [Result(item, status, value, need, advice) for item, status, value, need, advice in found]


def read(record: Any) -> Result | None:
    """A result from its JSON form (a list); None if it is none."""
    try:
        item, status, value, need, advice, measured, peer = record
        number = None if measured is None else float(measured)
        return Result(str(item), str(status), str(value), str(need), str(advice), number, str(peer))
    except (TypeError, ValueError):
        return None
