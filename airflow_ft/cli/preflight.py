"""``airflow-ft preflight``: looks at this machine, or at nodes of a backend, as the agent does before training.

    airflow-ft preflight --set quick
    airflow-ft preflight --backend local --nodes n1,n2,n3 --set deep --json

Exit status: 0, 78 if an item failed (what the agent itself ends with), 2 if it can't be done or a node was not tested.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_ft.agent import preflight as agent
from airflow_ft.agent.preflight_result import EXIT_FAILED, FAILED, SKIPPED, Result
from airflow_ft.attempts.checkups import chosen
from airflow_ft.backends.base import SubmissionRefusedError
from airflow_ft.cli import probes
from airflow_ft.cli.probe_arguments import PREFLIGHT
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.settings import SettingsError
from airflow_ft.diagnosis.preflighting import Preflighting, PreflightReport
from airflow_ft.diagnosis.probing import some

STYLES = {FAILED: "bold red", SKIPPED: "dim"}


def add_parser(commands: Any) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("preflight", help="look at this machine, or at nodes, as before training")
    probes.add_arguments(parser, PREFLIGHT)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and print. Returns the exit status. Raises ``BackendError``."""
    try:
        settings = _settings(args)
        if args.backend is None and args.nodes:
            raise SettingsError(["nodes: needs --backend. Without it this machine is looked at."])
        report = asyncio.run(_of_nodes(args, settings)) if args.backend else _of_this_machine(settings)
    except (SettingsError, SubmissionRefusedError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return probes.CANNOT
    except KeyboardInterrupt:
        print("airflow-ft: stopped; its probe job is removed.", file=sys.stderr)
        return probes.INTERRUPTED
    if args.json:
        print(json.dumps(as_json(report), indent=1))
    else:
        _print(report.nodes)
    failed = any(one.status == FAILED for items in report.nodes.values() for one in items)
    return EXIT_FAILED if failed else probes.CANNOT if report.untested or not report.nodes else 0


def as_json(report: PreflightReport) -> dict[str, Any]:
    """Return everything, for scripts."""
    return {
        "text": str(report),
        "nodes": {node: [one._asdict() for one in items] for node, items in report.nodes.items()},
        "bad_nodes": list(report.bad_nodes),
        "untested": dict(report.untested),
    }


def _settings(args: argparse.Namespace) -> PreflightSettings:
    needs: dict[str, float] = {}
    for text in args.need:
        item, _, value = text.rpartition("=")
        try:
            needs[item] = float(value)
        except ValueError:
            raise SettingsError(
                [f"need: {text!r} is not allowed. Give ITEM=NUMBER, as in 'disk-size root=8'."]
            ) from None
    more = probes.given(args, "seconds", "checkpoints")
    return PreflightSettings(set=args.set, skip=tuple(args.skip), hosts=tuple(args.host), needs=needs, **more)


def _of_this_machine(settings: PreflightSettings) -> PreflightReport:
    node = socket.gethostname()
    results = agent.run({"node": node, **settings.for_agent("train")}, lambda line: None)
    return PreflightReport(nodes={node: tuple(results)})


async def _of_nodes(args: argparse.Namespace, settings: PreflightSettings) -> PreflightReport:
    backend, job, say = probes.backend_of(args), probes.job_of(args), probes.progress(args)
    choice = await chosen(probes.wanted(args), backend, job, None, probes.now(), say)
    name = probes.search_name("preflight")
    look = Preflighting(backend, job, settings, name, name, choice.pool, probes.now, say)
    report = await look.look(choice.nodes)
    return report.but_untested(choice.unusable, "not in service")


def _print(nodes: Mapping[str, Sequence[Result]]) -> None:
    """One row for each item, and for each thing that nodes say of it."""
    rows: dict[str, dict[Result, list[str]]] = {}
    for node, items in nodes.items():
        for one in items:
            rows.setdefault(one.item, {}).setdefault(one, []).append(node)
    table = Table(show_edge=False, pad_edge=False, header_style="dim")
    for name in ("item", "nodes", "status", "value", "need", "advice"):
        table.add_column(name, overflow="fold")
    for item, said in rows.items():
        for one, where in said.items():
            table.add_row(item, some(where), one.status, one.value, one.need, one.advice, style=STYLES.get(one.status))
    Console().print(table)
