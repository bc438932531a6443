"""Lines from bytes: the one way in which output of a training job becomes text.

Fed with chunks of any size by the log readers of the backends, feeds ``progress`` and ``classify``. What it promises:

- any cutting of the same bytes gives the same lines; nothing raises, whatever the bytes are;
- ``\\n``, ``\\r\\n`` and a lone ``\\r`` end a line, so that each state of a progress bar is a line of its own;
- terminal escapes, NUL and other control characters are gone, broken UTF-8 is a replacement character;
- memory is bounded: a line is kept up to a limit, the rest is counted and said at its end.

A chunk is split on bytes before it is decoded: no byte of a longer UTF-8 character looks like a line end, so there is
no decoder whose state would have to be kept.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

LINE_LIMIT = 16_384  # bytes; a traceback line or a tqdm bar is far below, a dumped tensor or a JSON blob above

_ENDS = re.compile(rb"\r\n?|\n")
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class LineReader:
    """Make lines from the chunks of one source.

    :param limit: bytes of a line that are kept.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self.limit = limit
        self.cut_bytes = 0  # of all lines so far
        self._kept = bytearray()
        self._cut = 0
        self._after_cr = False
        self._cr_was_blank = False

    @property
    def unfinished(self) -> int:
        """Bytes of the line that has no end yet. A cursor minus this is where reading can begin again."""
        return len(self._kept) + self._cut

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that this chunk completes."""
        lines: list[str] = []
        start = 0
        if self._after_cr and data[:1] == b"\n":
            start = 1
            if self._cr_was_blank:
                lines.append("")
        if data:
            self._after_cr = False
        for end in _ENDS.finditer(data, start):
            self._take(data[start : end.start()])
            start = end.end()
            lines.extend(self._finish(blank_counts=end.group() != b"\r"))
            self._after_cr = end.group() == b"\r" and start == len(data)
        self._take(data[start:])
        return lines

    def flush(self) -> list[str]:
        """Return the unfinished line: the source has ended, or somebody wants to see the newest state of a bar."""
        return list(self._finish(blank_counts=False))

    def peek(self) -> str:
        """Return the unfinished line and keep it: a bar's newest state often has no end yet."""
        return clean(_decode(bytes(self._kept), cut=self._cut > 0))

    def _take(self, piece: bytes) -> None:
        room = self.limit - len(self._kept)
        self._kept += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _finish(self, *, blank_counts: bool) -> Iterator[str]:
        blank = not self._kept
        self._cr_was_blank = blank
        if not blank or blank_counts:
            text = clean(_decode(bytes(self._kept), cut=self._cut > 0))
            yield f"{text}… ({self._cut} bytes more)" if self._cut else text
        self.cut_bytes += self._cut
        self._kept.clear()
        self._cut = 0


def lines_of(data: bytes) -> list[str]:
    """Return all lines of a whole log, or of its tail."""
    reader = LineReader()
    return reader.feed(data) + reader.flush()


def clean(text: str) -> str:
    """Return the text without terminal escapes and control characters (tabs stay)."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def _decode(data: bytes, *, cut: bool) -> str:
    # The end of a cut line may fall into a character: that is our doing, not the job's, so no replacement is shown.
    if not cut:
        return data.decode("utf-8", "replace")
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=False)


# --- who wrote it ------------------------------------------------------------------------------------------------


class RankedLine(NamedTuple):
    """A line and its writer. ``local_rank`` alone is what torchrun's own prefix says: it exists on every node."""

    rank: int | None
    text: str
    local_rank: int | None = None


_PREFIX = re.compile(
    r"\[(?P<role>(?!(?i:epoch|step|iter|batch|fold|stage|layer))[A-Za-z_][\w.-]*?) ?(?P<rank>\d{1,6})\](?P<colon>:?) ?"
)
_STAMPED = re.compile(r"[\dT:.,Z+\- ]{8,40}(?:\[[\w.-]+\] )?(?=\[[Rr]ank ?\d)")
_INSIDE = re.compile(r"\[[Rr]ank ?(\d{1,6})\]")


def split_rank(line: str) -> RankedLine:
    """Take the rank's prefixes off: ``[rank3]:`` of PyTorch, ``[default3]:`` of torchrun's tee, both, or a logger's.

    >>> split_rank("[default3]:[rank11]: KeyError: 'x'")
    RankedLine(rank=11, text="KeyError: 'x'", local_rank=3)
    """
    rank: int | None = None
    local: int | None = None
    stamp = _STAMPED.match(line) if "[" in line else None
    text = line[stamp.end() :] if stamp else line
    while (prefix := _PREFIX.match(text)) is not None:
        if prefix["role"].lower() == "rank":
            rank = int(prefix["rank"]) if rank is None else rank
        elif prefix["colon"] and local is None:
            local = int(prefix["rank"])
        else:
            break
        text = text[prefix.end() :]
    if rank is None and "ank" in text and (inside := _INSIDE.search(text[:160])) is not None:
        rank = int(inside[1])
    return RankedLine(rank, text if (rank, local) != (None, None) else line, local)


# --- logs that can only be fetched by time -----------------------------------------------------------------------


class TimedLine(NamedTuple):
    """A line with the time stamp that the platform put before it."""

    at: str
    text: str


def merge_fetches(fetches: Iterable[Sequence[str]]) -> list[TimedLine]:
    """Join overlapping fetches of one log whose lines begin with a time stamp.

    Lines with the same stamp are compared as a group: what was printed twice stays twice, what was fetched twice is
    kept once, and a half line at the end of a fetch gives way to the whole one.
    """
    merged: dict[str, list[str]] = {}
    for fetch in fetches:
        groups: dict[str, list[str]] = {}
        for line in fetch:
            at, _, text = line.partition(" ")
            groups.setdefault(at, []).append(text)
        for at, texts in groups.items():
            merged[at] = _join(merged.get(at, []), texts)
    return [TimedLine(at, text) for at, texts in merged.items() for text in texts]


def _join(known: list[str], fetched: list[str]) -> list[str]:
    for start in range(len(known) + 1):
        if _agree(known[start:], fetched):
            both = zip(known[start:], fetched, strict=False)
            longer = [max(pair, key=len) for pair in both]
            overlap = len(longer)
            return known[:start] + longer + known[start + overlap :] + fetched[overlap:]
    raise AssertionError("an empty tail agrees with everything")


def _agree(known: Sequence[str], fetched: Sequence[str]) -> bool:
    both = zip(known, fetched, strict=False)
    return all(mine == new or mine.startswith(new) or new.startswith(mine) for mine, new in both)
