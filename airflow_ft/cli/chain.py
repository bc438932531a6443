"""``airflow ft chain DAG RUN TASK``: the retry chain, as a table or as JSON."""

from __future__ import annotations

import json
from argparse import Namespace

from rich.console import Console

from airflow_ft.views.chain_table import rendered, to_json
from airflow_ft.views.records import ChainNotFoundError, StoredChain, database, read_chain


def show_chain(args: Namespace) -> None:
    """Print the chain. Exit status 1 when there is none."""
    stored = asked_for(args)
    if args.json:
        print(json.dumps(to_json(stored), indent=1))
    else:
        Console().print(rendered(stored))


def asked_for(args: Namespace) -> StoredChain:
    """Return the chain that a command line names. Ends the command when there is none."""
    try:
        with database() as session:
            return read_chain(session, args.dag_id, args.run_id, args.task_id, args.map_index)
    except ChainNotFoundError as error:
        raise SystemExit(str(error)) from None
