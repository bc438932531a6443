"""``airflow-ft progress FILE…``: what a log says about the progress of a training, and where the detector would alarm.

For people: the format, the phases, the step times as a small plot and each moment of an alarm, so that settings can
be tried on old logs. ``--json`` prints a list with an object a file. ``--cut S`` takes the log to fall silent S
seconds after its first line, and says how long after that the alarm comes. Times are the log's own
(``core.logclocks``); a log that tells no times can have no alarms.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from airflow_ft.core.hang import HangConfig, HangDetector
from airflow_ft.core.logclocks import LogClock, csv_parts
from airflow_ft.core.loglines import LineReader
from airflow_ft.core.progress import InvalidPatternError, Progress, ProgressReader
from airflow_ft.core.records import explain
from airflow_ft.core.replay import Alarm, Observed, alarms, detected_after

READ_BYTES = 1_000_000
SILENT_SECONDS = 6 * 3600.0  # how long a cut log is watched
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60
_NO_DATE = datetime(1970, 1, 1, tzinfo=timezone.utc)
SETTINGS = {
    "quick_seconds": "steps below 2 s: silence beyond ten steps",
    "floor_seconds": "slower steps: never sooner than this",
    "ceiling_seconds": "never later than this, for steps",
    "multiple": "how many usual steps of silence",
    "startup_seconds": "until the first step",
    "judgement_seconds": "a fixed time instead of what is learned",
}


@dataclass
class Seen:
    """What a log says."""

    file: str
    progress: Progress = field(default_factory=Progress)
    format: str | None = None
    confidence: float = 0.0
    clock: str | None = None
    steps: int = 0
    observed: list[Observed] = field(default_factory=list)
    phases: list[tuple[str, float]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    detected_after: float | None = None


def add_parser(commands: Any) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("progress", help="show what a log says about progress, and where a hang would be seen")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, also .gz; - is standard input")
    parser.add_argument("--json", action="store_true", help="print a list, an object a file")
    parser.add_argument("--cut", type=float, metavar="S", help="the log falls silent S seconds after its first line")
    parser.add_argument(
        "--pattern", help="your own pattern (RE2) with a group named step, and loss and total if wanted"
    )
    for name, text in SETTINGS.items():
        default = HangConfig.model_fields[name].default
        text += f" (default: {default:g})" if default is not None else ""
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="N", help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show all files. Returns 1 if a file can't be read or a setting is impossible."""
    try:
        config = HangConfig(**{name: value for name in SETTINGS if (value := getattr(args, name)) is not None})
        found = [look(file, config, args.pattern, args.cut) for file in args.files]
    except ValidationError as error:
        print(f"airflow-ft: {explain(error)}", file=sys.stderr)
        return 1
    except (OSError, EOFError, InvalidPatternError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([_record(seen, args.cut) for seen in found], indent=1, allow_nan=False))
    else:
        for seen in found:
            print("\n".join(_text(seen, args.cut)))
    return 0


# --- looking -----------------------------------------------------------------------------------------------------


def look(file: str, config: HangConfig, pattern: str | None = None, cut: float | None = None) -> Seen:
    """Read one log as a watch would have. Raises ``OSError``."""
    reader, clock, seen = ProgressReader(pattern), LogClock(), Seen(file=file)
    first: float | None = None
    csv = False
    for number, line in enumerate(_lines(file)):
        if number == 0 and line.startswith("t_seconds,source,line"):
            csv = True
            clock.use_csv()
            continue
        source, text = (csv_parts(line) if csv else None) or ("log", line)
        before = reader.progress.step
        moved = reader.feed(text, _NO_DATE, source)
        at = clock.feed(line, reader.progress.step, before)
        if at is not None:
            first = at if first is None else first
            if cut is not None and at - first > cut:
                break
        seen.steps += moved
        _note(seen, at, reader.progress, reader.sure_step)
    seen.progress, seen.format, seen.confidence, seen.clock = (
        reader.progress,
        reader.format,
        reader.confidence,
        clock.name,
    )
    detector = HangDetector(config)
    seen.alarms = alarms(detector, seen.observed)
    if cut is not None and first is not None:
        seen.detected_after = detected_after(detector, seen.observed[-1][0], first + cut, SILENT_SECONDS)
    return seen


def _note(seen: Seen, at: float | None, progress: Progress, step: int | None) -> None:
    if at is not None:
        seen.observed.append((at, step, progress.phase))
    if progress.phase is not None and (not seen.phases or seen.phases[-1][0] != progress.phase):
        seen.phases.append((progress.phase, at or 0.0))


def _lines(file: str) -> Iterator[str]:
    reader = LineReader()
    with sys.stdin.buffer if file == "-" else _open(Path(file)) as stream:
        while data := stream.read(READ_BYTES):
            yield from reader.feed(data)
    yield from reader.flush()


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


# --- showing -----------------------------------------------------------------------------------------------------


def _record(seen: Seen, cut: float | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "file": seen.file,
        "format": seen.format,
        "confidence": seen.confidence,
        "clock": seen.clock,
        "steps": seen.steps,
        "last_step": seen.progress.step,
        "total": seen.progress.total,
        "loss": seen.progress.loss,
        "phases": [phase for phase, _ in seen.phases],
        "alarms": [alarm.model_dump(include={"at", "silence", "threshold", "phase"}) for alarm in seen.alarms],
    }
    return record if cut is None else {**record, "detected_after": seen.detected_after}


def _text(seen: Seen, cut: float | None) -> Iterator[str]:
    progress = seen.progress
    sure = f" ({seen.confidence:.0%} sure)" if seen.confidence else ""
    yield f"{seen.file}"
    yield f"  format   {seen.format or 'not known yet'}{sure}; times from {seen.clock or 'nowhere: no line tells one'}"
    total = f" of {progress.total:,}" if progress.total else ""
    where = "none seen" if progress.step is None else f"{seen.steps:,} seen, the last is {progress.step:,}{total}"
    loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
    yield f"  steps    {where}{loss}"
    yield f"  phases   {_phases(seen)}"
    intervals = _intervals(seen.observed)
    if intervals:
        yield f"  seconds a step: median {sorted(intervals)[len(intervals) // 2]:.3g}, longest {max(intervals):.3g}"
        yield f"  {_plot(intervals)}"
    if not seen.alarms:
        yield "  alarms   none"
    start = seen.observed[0][0] if seen.observed else 0.0
    for alarm in seen.alarms:
        yield f"  alarm    {alarm.at - start:,.0f} s after the first line: {alarm.text}"
    if cut is not None:
        after = seen.detected_after
        seen_after = "is not seen" if after is None else f"is seen {after:,.1f} s later"
        yield f"  cut      the silence that begins {cut:,.0f} s after the first line {seen_after}"


def _phases(seen: Seen) -> str:
    names = [phase for phase, _ in seen.phases]
    shown = " → ".join(names[:8])
    return f"{shown} … ({len(names)} in all)" if len(names) > 8 else shown or "none"


def _intervals(observed: list[Observed]) -> list[float]:
    found: list[float] = []
    last: Observed | None = None
    for entry in observed:
        if entry[1] is None or (last is not None and entry[1] == last[1]):
            continue
        if last is not None and entry[0] > last[0]:
            found.append(entry[0] - last[0])
        last = entry
    return found


def _plot(intervals: list[float]) -> str:
    """Draw the step times, the longest of each column. The scale ends at the longest, and begins at 0."""
    width = min(WIDTH, len(intervals))
    columns = [max(intervals[n * len(intervals) // width : (n + 1) * len(intervals) // width]) for n in range(width)]
    top = max(columns)
    return "".join(BARS[round(value / top * (len(BARS) - 1))] for value in columns) + f"  (top: {top:.3g} s)"
