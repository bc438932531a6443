"""The clock of a log that is only a file: when was each line written, by what the lines themselves say.

Feeds ``airflow-ft progress``. The first kind of clock that shows is kept, so that a date in a message doesn't become
the time; unless it falls silent while another one goes on (a date in a banner, then bars). A clock that was set back
goes on from where it stood, and the hour that daylight saving time leaves out has not passed; what runs late (another
rank with another clock) changes nothing. Kinds, in the order in which they are tried:

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

_ISO = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T ,](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?(?P<zone>Z|[+-]\d\d:?\d\d(?!\d))?"
)
_COMPACT = re.compile(r"(?<!\d)(20\d\d)(\d\d)(\d\d)[T _-](\d\d):?(\d\d):?(\d\d)(?:[.,](\d{1,6}))?(?!\d)")
_US = re.compile(r"(?<!\d)(\d\d)/(\d\d)/(\d{4}),? (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?: ([AP])M)?")
_NO_YEAR = re.compile(r"\[(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)")
_NAMED = re.compile(r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
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
    year, month, day, hour, minute, second = (int(group) for group in found.groups()[:6])
    at = _moment(year + century, month, day, hour, minute, second, found[7])
    return None if at is None else at - _offset(found.groupdict().get("zone") or "")


def _offset(zone: str) -> float:
    """Return how far a time zone as "+0200" or "+02:00" is ahead, in seconds."""
    digits = zone[1:].replace(":", "")
    if len(digits) != 4:
        return 0.0
    return (-1 if zone[0] == "-" else 1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def _us(line: str) -> float | None:
    found = _US.search(line[:_HEAD])
    if found is None:
        return None
    month, day, year, hour, minute, second = (int(group) for group in found.groups()[:6])
    if found[8]:
        hour = hour % 12 + (12 if found[8] == "P" else 0)
    return _moment(year, month, day, hour, minute, second, found[7])


def _no_year(line: str) -> float | None:
    found = _NO_YEAR.search(line[:_HEAD])
    if found is None:
        return None
    month, day, hour, minute, second = (int(group) for group in found.groups())
    return _moment(2024, month, day, hour, minute, second)  # a leap year has all days


def _named(line: str) -> float | None:
    found = _NAMED.search(line[:_HEAD])
    if found is None:
        return None
    day, hour, minute, second = (int(group) for group in found.groups()[1:])
    return _moment(2024, _MONTHS.index(found[1]) + 1, day, hour, minute, second)


def _moment(
    year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str | None = None
) -> float | None:
    try:
        at = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc)
    except ValueError:
        return None
    return at.timestamp() + _fraction(fraction)


def _glog(line: str) -> float | None:
    found = _GLOG.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = (int(group) for group in found.groups()[:5])
    return _moment(2024, month, day, hour, minute, second, found[6])


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
_Kind = tuple[str, str, Callable[[str], float | None]]
BARS = "elapsed time of bars"
_KINDS: tuple[_Kind, ...] = (
    ("MLPerf time_ms", WALL, _search(_MLLOG, 0.001)),
    ("time stamps", WALL, lambda line: _stamp(_ISO.search(line[:_HEAD]))),
    ("time stamps", WALL, lambda line: _stamp(_SHORT.search(line[:_HEAD]), 2000)),
    ("time stamps", WALL, _us),
    ("glog stamps", WALL, _glog),
    ("time stamps", WALL, lambda line: _stamp(_COMPACT.search(line[:_HEAD]))),
    ("time stamps", WALL, _no_year),
    ("time stamps", WALL, _named),
    ("seconds since 1970", WALL, _unix),
    ("time in JSON", WALL, _json),
    ("time of day", WALL, _of_day),
    ("train_time", RUN, _search(_TRAIN_TIME, 0.001)),
    (BARS, RUN, _bar),
    ("time per step", PER_STEP, _search(_PER_STEP_MS, 0.001)),
    ("time per step", PER_STEP, _search(_PER_STEP_S)),
)
_CSV_KIND = ("seconds in the first column", WALL, _search(_CSV))


SILENT_LINES = 20  # that another clock told, and ours did not
SET_BACK_LINES, SET_BACK_SECONDS = 20, 1.0
_HOUR, _HOUR_MARGIN = 3_600.0, 60.0
_SUMMER_TIME_MONTHS = frozenset({3, 4, 9, 10, 11})  # in which some country sets its clocks


class LogClock:
    """Tells the time of each line of one log, in seconds of the log's own clock."""

    def __init__(self) -> None:
        self._kind: _Kind | None = None
        self._base = 0.0
        self._last: float | None = None
        self._raw: float | None = None
        self._behind: list[float] = []  # what a clock of the wall told since it was last at the newest time, if earlier
        self._others: dict[int, int] = {}  # how often other kinds told a time since ours did

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
        value = self._read(line, moved=step != before)
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
            self._last = self._of_the_wall(value)
        return self._last

    def _of_the_wall(self, value: float) -> float:
        last, raw = self._last, self._raw
        of_day = self._kind is not None and self._kind[0] == "time of day"
        if of_day and last is not None and self._base + value < last - _DAY / 2:
            self._base += _DAY
        if raw is not None and not of_day and _is_summer_time(raw, value):
            self._base -= _HOUR
        at = self._base + value
        if last is None or at >= last - SET_BACK_SECONDS:
            self._behind.clear()
        else:
            self._behind.append(value)
            if len(self._behind) >= SET_BACK_LINES and self._behind[-1] > self._behind[0]:
                self._base = last - value
                self._behind.clear()
                at = last
        if not self._behind:
            self._raw = value
        return at if last is None else max(at, last)

    def _read(self, line: str, *, moved: bool) -> float | None:
        value = self._kind[2](line) if self._kind is not None else None
        if value is not None and self._kind is not None:
            self._others.clear()
            # Bars stand inside each other, and evaluations have their own: the one that moved the step is training's.
            return value if moved or self._kind[0] != BARS or self._last is None else None
        if self._kind is _CSV_KIND:
            return None
        for number, kind in enumerate(_KINDS):
            if kind is not self._kind and (value := kind[2](line)) is not None:
                self._others[number] = self._others.get(number, 0) + 1
                if self._kind is None or self._others[number] >= SILENT_LINES:
                    return self._take(kind, value)
                return None
        return None

    def _take(self, kind: _Kind, value: float) -> float:
        """Change to another clock, which goes on from where the old one stood."""
        self._kind = kind
        self._others.clear()
        self._behind.clear()
        self._raw = None
        if self._last is not None:
            self._base = self._last - (0.0 if kind[1] == PER_STEP else value)
        return value


def _is_summer_time(before: float, now: float) -> bool:
    """Whether an hour is missing between two stamps without a zone, as when clocks are set forward on a Sunday."""
    if not _HOUR <= now - before <= _HOUR + _HOUR_MARGIN or now > 1e11 or before < _DAY * 365:
        return False
    was, there = (datetime.fromtimestamp(at, tz=timezone.utc) for at in (before, now))
    sunday = there.weekday() == 6 and there.month in _SUMMER_TIME_MONTHS
    return sunday and was.minute == 59 and there.minute == 0 and there.hour <= 4


def csv_parts(line: str) -> tuple[str, str] | None:
    """Return (source, text) of a row ``t_seconds,source,line``."""
    parts = line.split(",", 2)
    if len(parts) != 3:
        return None
    text = parts[2]
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        text = text[1:-1].replace('""', '"')
    return parts[1], text
