"""How fast training is and which learning rate it has, as lines with a step print it. Feeds ``steplines``."""

from __future__ import annotations

import re

_REAL = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
_LR = re.compile(rf"(?i)(?<![\w])(?:lr|learning[_ ]rate)['\"]?\s*[:=]?\s*\[?(?P<n>{_REAL})")
_BEFORE = re.compile(
    r"(?i)(?<![\w/])(?P<unit>tps|wps|tok/s|(?:tokens?|samples)[_/ ]?(?:per[_ ])?s(?:ec(?:ond)?)?(?:/device)?"
    r"|CurrSamplesPerSec|throughput(?: per GPU)?(?: \([\w/]+\))?|it/s|steps_per_second)\s?[:=]\s*"
    rf"(?P<n>{_REAL})"
)
_BEHIND = re.compile(
    rf"(?i)(?<![\w.])(?P<n>{_REAL})\s?(?P<unit>(?:tok(?:ens)?|samples|examples|it|ba)/s(?:ec)?|s/it)(?![\w])"
)


_HINTS = ("tps", "wps", "tok", "samples", "throughput", "steps_per", "it/s")


def read_lr(line: str) -> float | None:
    """Return the learning rate."""
    places = [at for word in ("lr", "LR", "earning") if (at := line.find(word)) >= 0]
    found = _LR.search(line, max(0, min(places) - 1)) if places else None
    return _number(found["n"]) if found else None


def read_throughput(line: str) -> tuple[float | None, str | None]:
    """Return the throughput and its unit as it is printed."""
    if "/s" in line or "s/it" in line:
        behind = _BEHIND.search(line)
        if behind is not None:
            return _number(behind["n"]), behind["unit"]
    low = line.lower()
    places = [at for word in _HINTS if (at := low.find(word)) >= 0]  # a search goes through each character before
    before = _BEFORE.search(line, max(0, min(places) - 4)) if places else None
    return (_number(before["n"]), before["unit"]) if before else (None, None)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
