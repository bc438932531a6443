"""The clock of a log that is only a file: when was each line written, by what the lines themselves say.

Feeds ``airflow-ft progress``. The first kind of clock that shows is kept, so that a date in a message doesn't become
the time. Kinds, in the order in which they are tried:

- *of the wall*: MLPerf's ``time_ms``, ISO and similar stamps, glog's ``I0101 12:00:00.1``, seconds since 1970, a
  ``"time"`` or ``"timestamp"`` in JSON, the time of day (``[12:00:00]``), seconds in the first column of a CSV;
- *of the run*: ``train_time:1234ms``, the elapsed time of a bar (``[02:11<03:08``); if it starts again, it is added up;
- *per step*: ``time 135.20ms``, ``elapsed time per iteration (ms): 612.4``; these are added up as well.

A line without a stamp is as old as the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone

_DAY = 86_400.0
_HEAD = 160  # characters: stamps stand at the beginning

_ISO = re.compile(r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SHORT = re.compile(r"(?<!\d)(\d\d)-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_GLOG = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,6})")
_UNIX = re.compile(r"^\W{0,2}(1\d{9}(?:\.\d+)?|1\d{12})\b")
_OF_DAY = re.compile(r"^\W{0,2}(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?!\d|:)")
_MLLOG = re.compile(r"\"time_ms\":\s*(\d{12,14})")
_JSON = re.compile(r"\"(?:time|timestamp|ts|_timestamp|wall_time)\":\s*\"?([\d.]{1,20})\"?\s*[,}]")
_CSV = re.compile(r"^(\d+(?:\.\d+)?),")
_TRAIN_TIME = re.compile(r"train_time:\s?(\d+(?:\.\d+)?)\s?ms")
_BAR = re.compile(r"\[(?:(\d+):)?(\d+):(\d\d)<")
_PER_STEP_MS = re.compile(r"(?:\btime|\bdt:?|elapsed time per iteration \(ms\):)\s?(\d+(?:\.\d+)?)\s?(ms|\|)")
_PER_STEP_S = re.compile(r"completed step: \d+, seconds: (\d+(?:\.\d+)?)")


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


def _stamp(found: re.Match[str] | None, century: int = 0) -> float | None:
    if found is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(group) for group in found.groups()[:6])
        at = datetime(year + century, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
    except ValueError:
        return None
    return at.timestamp() + _fraction(found[7])


def _glog(line: str) -> float | None:
    found = _GLOG.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = (int(group) for group in found.groups()[:5])
    try:
        at = datetime(2024, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
    except ValueError:
        return None
    return at.timestamp() + _fraction(found[6])


def _unix(line: str) -> float | None:
    found = _UNIX.match(line)
    if found is None:
        return None
    value = float(found[1])
    return value / 1000 if value > 1e11 else value


def _of_day(line: str) -> float | None:
    found = _OF_DAY.match(line)
    if found is None:
        return None
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) + _fraction(found[4])


def _json(line: str) -> float | None:
    found = _JSON.search(line) if line.lstrip()[:1] == "{" else None
    try:
        value = float(found[1]) if found else None
    except ValueError:
        return None
    return value / 1000 if value is not None and value > 1e11 else value


def _search(pattern: re.Pattern[str], scale: float = 1.0) -> Callable[[str], float | None]:
    def read(line: str) -> float | None:
        found = pattern.search(line)
        return float(found[1]) * scale if found else None

    return read


def _bar(line: str) -> float | None:
    found = _BAR.search(line)
    return int(found[1] or 0) * 3600 + int(found[2]) * 60 + int(found[3]) if found else None


WALL, RUN, PER_STEP = "wall", "run", "per step"
_KINDS: tuple[tuple[str, str, Callable[[str], float | None]], ...] = (
    ("MLPerf time_ms", WALL, _search(_MLLOG, 0.001)),
    ("time stamps", WALL, lambda line: _stamp(_ISO.search(line[:_HEAD]))),
    ("time stamps", WALL, lambda line: _stamp(_SHORT.search(line[:_HEAD]), 2000)),
    ("glog stamps", WALL, _glog),
    ("seconds since 1970", WALL, _unix),
    ("time in JSON", WALL, _json),
    ("time of day", WALL, _of_day),
    ("train_time", RUN, _search(_TRAIN_TIME, 0.001)),
    ("elapsed time of bars", RUN, _bar),
    ("time per step", PER_STEP, _search(_PER_STEP_MS, 0.001)),
    ("time per step", PER_STEP, _search(_PER_STEP_S)),
)
_CSV_KIND = ("seconds in the first column", WALL, _search(_CSV))


class LogClock:
    """Tells the time of each line of one log, in seconds of the log's own clock."""

    def __init__(self) -> None:
        self._kind: tuple[str, str, Callable[[str], float | None]] | None = None
        self._base = 0.0
        self._last: float | None = None

    @property
    def name(self) -> str | None:
        """What the clock is, in words; ``None``: no line has told a time."""
        return self._kind[0] if self._kind else None

    def use_csv(self) -> None:
        """The log is a CSV whose first column is the time in seconds."""
        self._kind = _CSV_KIND

    def feed(self, line: str, step: int | None = None, before: int | None = None) -> float | None:
        """Return the time of the line.

        :param step: where training stands after this line, and ``before`` it: for clocks that tell the time of a step.
        """
        value = self._read(line)
        if value is None or self._kind is None:
            return self._last
        flow = self._kind[1]
        if flow == PER_STEP:
            steps = step - before if step is not None and before is not None and step > before else 1
            self._base += value * steps
            self._last = self._base
        elif flow == RUN:
            if self._last is not None and self._base + value < self._last:
                self._base = self._last  # it started again
            self._last = self._base + value
        else:
            if self._kind[0] == "time of day" and self._last is not None and self._base + value < self._last - _DAY / 2:
                self._base += _DAY
            self._last = max(self._base + value, self._last or 0.0)
        return self._last

    def _read(self, line: str) -> float | None:
        if self._kind is not None:
            return self._kind[2](line)
        for kind in _KINDS:
            value = kind[2](line)
            if value is not None:
                self._kind = kind
                return value
        return None


def csv_parts(line: str) -> tuple[str, str] | None:
    """Return (source, text) of a row ``t_seconds,source,line``."""
    parts = line.split(",", 2)
    if len(parts) != 3:
        return None
    text = parts[2]
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        text = text[1:-1].replace('""', '"')
    return parts[1], text
