"""``simulate``: policies against a trace of node faults, before one of them is let loose on a training of weeks.

    airflow-ft simulate --trace fault_trace.json --nodes 128 [--policy yours.yaml …] [--html chart.html] [--json]

blind, basic, advanced and full are always beside yours. Needs no Airflow. Exit status: 0, or 2 for an input that can't
be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.settings import SettingsError
from airflow_ft.simulation.assumptions import Assumptions
from airflow_ft.simulation.blame import Accuracy
from airflow_ft.simulation.chart import DIGITS, WORDS, as_html
from airflow_ft.simulation.study import MEASURES, Estimate, Study, side_by_side, study
from airflow_ft.simulation.trace import Trace, TraceError, read_trace

CANNOT = 2
# How many servers the InfiniteHBD trace was taken from; only those with a fault are in the file.
TRACE_NODES = 400
MAX_RESTARTS = 64
SEEDS = 100
FLAGS = {name: field for name, field in Assumptions.model_fields.items() if name != "agents"}


def add_parser(commands: Any, *parents: argparse.ArgumentParser) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("simulate", parents=list(parents), help="play policies against a trace of node faults")
    arguments(parser)
    parser.set_defaults(run=run)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    for flags, options in own_arguments():
        parser.add_argument(*flags, **options)


def own_arguments() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Return the arguments, for the parser of ``airflow-ft`` and for Airflow's own."""
    found: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("--trace",), {"required": True, "metavar": "FILE", "help": "node faults, as in the InfiniteHBD trace"}),
        (
            ("--policy",),
            {"action": "extend", "nargs": "+", "default": [], "metavar": "POLICY", "help": "yours: a file or a preset"},
        ),
        (("--seeds",), {"type": int, "default": SEEDS, "metavar": "N", "help": f"how many runs (default: {SEEDS})"}),
        (
            ("--trace-nodes",),
            {"type": int, "default": TRACE_NODES, "metavar": "N", "help": "servers that the trace watched"},
        ),
        (
            ("--max-restarts",),
            {"type": int, "default": MAX_RESTARTS, "metavar": "N", "help": "budget of the policies beside yours"},
        ),
        (("--html",), {"metavar": "FILE", "help": "write the chart here"}),
        (("--no-agents",), {"action": "store_true", "help": "restarts in place are not possible"}),
    ]
    for name, field in FLAGS.items():
        options = {"metavar": "N", "help": f"default: {field.default}", "default": None}
        found.append(((f"--{name.replace('_', '-')}",), options))
    return found


def run(args: argparse.Namespace) -> int:
    """Simulate and print. Returns the exit status."""
    try:
        assumed = _assumed(args)
        trace = _read(args.trace, args.trace_nodes)
        policies = {**side_by_side(args.max_restarts), **_yours(args.policy)}
        if args.seeds < 1:
            raise SettingsError([f"seeds: {args.seeds} is not allowed. Give a number from 1 on."])
        began = time.process_time()
        found = study(policies, trace, assumed, published_accuracy(), args.seeds)
        seconds = time.process_time() - began
        if args.html:
            Path(args.html).write_text(as_html(found, Path(args.trace).name), encoding="utf-8")
    except (SettingsError, TraceError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return CANNOT
    except OSError as error:
        print(f"airflow-ft: {args.html}: can't be written: {error.strerror}.", file=sys.stderr)
        return CANNOT
    if args.json:
        print(json.dumps({**found.to_dict(), "cpu_seconds": round(seconds, 2)}, indent=1))
    else:
        _print(found, seconds)
    return 0


def simulate(args: argparse.Namespace) -> None:
    """Do the same as a command of Airflow's."""
    raise SystemExit(run(args))


def published_accuracy() -> Accuracy:
    """Return what the classifier's published table says."""
    file = resources.files("airflow_ft.core").joinpath("classifier_accuracy.json")
    return Accuracy.from_table(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})


def _assumed(args: argparse.Namespace) -> Assumptions:
    given: dict[str, Any] = {"agents": not args.no_agents}
    for name in FLAGS:
        text = getattr(args, name)
        if text is not None:
            given[name] = _number(text)
    return Assumptions(**given)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read(path: str, nodes: int) -> Trace:
    try:
        return read_trace(json.loads(Path(path).read_text(encoding="utf-8")), nodes)
    except OSError as error:
        raise TraceError(f"{path}: can't be read: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"{path}: no JSON: {error}") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None


def _yours(names: Sequence[str]) -> dict[str, FaultTolerancePolicy]:
    found: dict[str, FaultTolerancePolicy] = {}
    for name in names:
        label = f"yours: {Path(name).stem}" if len(names) > 1 else "yours"
        found[label if label not in found else f"yours: {name}"] = FaultTolerancePolicy.named(name)
    return found


def _print(found: Study, seconds: float) -> None:
    table = Table(show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in found.results:
        table.add_column(name, justify="right")
    for measure in MEASURES:
        cells = [_cell(measure, found.estimate(name, measure)) for name in found.results]
        table.add_row(WORDS[measure], *cells)
    console = Console()
    console.print(table)
    assumed = found.assumed
    console.print(
        f"\n{assumed.days:g} days, {assumed.nodes} nodes and {assumed.spares} spares, {found.seeds} seeds, "
        f"{seconds:.1f} s of CPU. Means with 95 % confidence intervals. A model: docs/policy.md says what it assumes."
    )


def _cell(measure: str, one: Estimate) -> str:
    digits = DIGITS.get(measure, 2)
    return f"{one.mean:.{digits}f} ± {(one.high - one.low) / 2:.{digits}f}"
