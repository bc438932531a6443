"""What ``bisect`` and ``preflight`` share: which nodes of which backend, and how their progress is said."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from airflow_ft.attempts.checkups import FREE
from airflow_ft.backends.base import Backend, SubmissionRefusedError
from airflow_ft.backends.local import inventory
from airflow_ft.backends.local.job import LocalJob, resolve_root
from airflow_ft.backends.registry import UnknownBackendError, create_backend
from airflow_ft.cli.probe_arguments import Argument
from airflow_ft.diagnosis.probing import refuse_probes

CANNOT = 2
INTERRUPTED = 130  # as a shell says it
POOL_NODES = 4  # LocalJob's own default


def add_arguments(parser: argparse.ArgumentParser, arguments: Iterable[Argument]) -> None:
    """Add them to the parser of ``airflow-ft``."""
    for flags, options in arguments:
        parser.add_argument(*flags, **options)


def backend_of(args: argparse.Namespace) -> Backend:
    """Return the backend that was asked for. Raises ``SubmissionRefusedError`` if it can't run probe jobs."""
    try:
        backend = create_backend(args.backend)
    except UnknownBackendError as error:
        raise SubmissionRefusedError(str(error)) from None
    refuse_probes(backend)
    if backend.name != LocalJob.backend:
        raise SubmissionRefusedError(f"backend: {backend.name!r} is not allowed here. Give local, or use an operator.")
    return backend


def job_of(args: argparse.Namespace, **more: Any) -> LocalJob:
    """Return the job whose place is tested. Its command is put in by the test."""
    root = resolve_root(args.root)
    known = len(inventory.list_nodes(root, args.pool))
    size = args.pool_nodes or max(known, POOL_NODES)
    return LocalJob(command="true", root=root, pool=args.pool, pool_nodes=size, **more)


def wanted(args: argparse.Namespace) -> str | list[str]:
    """Return the nodes that were asked for."""
    return [name for name in args.nodes.replace(" ", ",").split(",") if name] if args.nodes else FREE


def search_name(kind: str) -> str:
    """Return a name of its own for one search of a person."""
    who = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower()).strip("-")
    return f"{kind}-{who}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S-%f}"


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


def progress(args: argparse.Namespace) -> Callable[[str], None]:
    """Return what says how it goes, as it goes: on stderr if JSON is to come on stdout."""
    stream = sys.stderr if args.json else sys.stdout
    return lambda text: print(text, file=stream, flush=True)


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the options that were given, as settings."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
