"""``bisect``: which node, or which pair, is bad? Runs groups of nodes as probe jobs until it is known.

    airflow-ft bisect --nodes n1,n2,n3,n4 -- python reproduce.py
    airflow ft bisect --seconds 600 --json

Nodes in quarantine are left out by ``airflow ft bisect`` (``airflow-ft`` knows of none). Exit status: 0 if nothing was
found, 1 if a node or a link was, 3 if something stays inconclusive, 2 if it can't be done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from airflow_ft.attempts.checkups import chosen
from airflow_ft.attempts.quarantine import Quarantine, SharedStore, cluster_of
from airflow_ft.backends.base import BackendError
from airflow_ft.cli import probes
from airflow_ft.cli.probe_arguments import BISECT
from airflow_ft.core.bisect import BisectError, BisectResult
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.settings import SettingsError
from airflow_ft.diagnosis.bisecting import Bisecting

CLEAN, FOUND, INCONCLUSIVE = 0, 1, 3


def add_parser(commands: Any) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("bisect", help="find the node or the pair of nodes that makes tests fail")
    probes.add_arguments(parser, BISECT)
    parser.set_defaults(run=run)


def bisect(args: argparse.Namespace) -> None:
    """Do the same as a command of Airflow's, which knows who is in quarantine."""
    from airflow_ft.views.variables import DatabaseStore

    raise SystemExit(run(args, DatabaseStore()))


def run(args: argparse.Namespace, shared: SharedStore | None = None) -> int:
    """Search and print. Returns the exit status."""
    try:
        result = asyncio.run(_searched(args, shared))
    except (SettingsError, BisectError, BackendError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return probes.CANNOT
    except KeyboardInterrupt:
        print("airflow-ft: stopped; its probe jobs are removed.", file=sys.stderr)
        return probes.INTERRUPTED
    if args.json:
        print(json.dumps(asdict(result), indent=1))
    if result.faulty_nodes or result.faulty_links:
        return FOUND
    return INCONCLUSIVE if result.inconclusive else CLEAN


async def _searched(args: argparse.Namespace, shared: SharedStore | None) -> BisectResult:
    backend, say = probes.backend_of(args), probes.progress(args)
    job = probes.job_of(args, **probes.given(args, "workdir"))
    names = ("seconds", "test_seconds", "max_tests", "group_min", "detection_probability")
    settings = BisectSettings(command=tuple(args.reproducer), **probes.given(args, *names))
    quarantine = Quarantine(shared, cluster_of(job)) if shared else None
    choice = await chosen(probes.wanted(args), backend, job, quarantine, probes.now(), say)
    if choice.unusable:
        raise BisectError(
            f"nodes: {', '.join(choice.unusable)} not in service. In service are {', '.join(choice.pool) or 'none'}."
        )
    name = probes.search_name("bisect")
    look = PreflightSettings(set="standard", skip=tuple(args.skip))
    search = Bisecting(backend, job, settings, name, name, choice.pool, probes.now, say, look=look)
    result = await search.search(choice.nodes)
    for node in result.faulty_nodes if shared else ():
        say(f"To keep it out: airflow ft nodes quarantine {node} --cluster {cluster_of(job)} --why bisect")
    return result
