"""``airflow-ft …``: what needs no Airflow. Jobs and nodes of the local backend, and the classifier on a file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence

from airflow_ft import __version__
from airflow_ft.backends.base import PERSON, BackendError
from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.backend import create_backend
from airflow_ft.backends.local.job import resolve_root
from airflow_ft.cli import bisect, classify, policy, preflight, progress, replay, simulate
from airflow_ft.core.chain import JobRef

Arguments = argparse.Namespace
GRACE_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        code = int(args.run(args) or 0)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads has seen enough (| head); what is still buffered must not be told again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BackendError as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-ft", description="Fault-tolerant training, without Airflow.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    local = argparse.ArgumentParser(add_help=False)
    local.add_argument("--root", default=resolve_root(), help="the local backend's folder (default: %(default)s)")
    pool = argparse.ArgumentParser(add_help=False, parents=[local])
    pool.add_argument("--pool", default="default", help="the pool (default: %(default)s)")
    shown = argparse.ArgumentParser(add_help=False)
    shown.add_argument("--json", action="store_true", help="print JSON")

    jobs = commands.add_parser("jobs", parents=[local, shown], help="list the local backend's jobs")
    jobs.set_defaults(run=_jobs)
    nodes = commands.add_parser("nodes", parents=[pool, shown], help="list the nodes of a pool")
    nodes.set_defaults(run=_nodes)
    lose = commands.add_parser("lose", parents=[pool], help="make a node fail, as if it lost power")
    lose.add_argument("node")
    lose.add_argument("--why", default="lost power")
    lose.set_defaults(run=_lose)
    repair = commands.add_parser("repair", parents=[pool], help="put a node back into service")
    repair.add_argument("node")
    repair.set_defaults(run=_repair)
    classify.add_parser(commands, shown)
    progress.add_parser(commands)
    policy.add_parser(commands)
    replay.add_parser(commands, shown)
    simulate.add_parser(commands, shown)
    preflight.add_parser(commands)
    bisect.add_parser(commands)
    cancel = commands.add_parser("cancel", parents=[local], help="stop a job")
    cancel.add_argument("name")
    cancel.set_defaults(run=_cancel)
    return parser


def _jobs(args: Arguments) -> None:
    jobs = inventory.list_jobs(args.root)
    if args.json:
        print(json.dumps([job.model_dump(mode="json") for job in jobs], indent=1))
        return
    for job in jobs:
        task = ".".join(filter(None, (job.tags.get("dag_id"), job.tags.get("task_id"))))
        print(f"{job.name}  {job.closed or 'open':9}  {','.join(job.nodes) or 'no nodes':12}  {task}")


def _nodes(args: Arguments) -> None:
    nodes = inventory.list_nodes(args.root, args.pool)
    if args.json:
        print(json.dumps([node.model_dump(mode="json") for node in nodes], indent=1))
        return
    for node in nodes:
        state = f"down: {node.why}" if node.down else (node.job or "free")
        print(f"{node.node:4} {node.address:15} {state}")


def _lose(args: Arguments) -> None:
    inventory.lose_node(args.root, args.pool, args.node, args.why)
    print(f"{args.node} is down: {args.why}")


def _repair(args: Arguments) -> None:
    inventory.repair_node(args.root, args.pool, args.node)
    print(f"{args.node} is in service")


def _cancel(args: Arguments) -> int:
    job = next((job for job in inventory.list_jobs(args.root) if job.name == args.name), None)
    if job is None:
        known = ", ".join(job.name for job in inventory.list_jobs(args.root) if not job.closed) or "none"
        print(f"airflow-ft: name: no job {args.name!r} in {args.root}. Open jobs: {known}.", file=sys.stderr)
        return 1
    ref = JobRef(
        backend="local",
        name=job.name,
        uid=job.uid,
        chain_id=job.chain_id,
        attempt=job.attempt,
        submitted_at=job.created_at,
        where={"root": args.root},
    )
    asyncio.run(create_backend().cancel(ref, GRACE_SECONDS, by=PERSON))
    print(f"{args.name} is stopped.")
    return 0


__all__ = ["main"]
