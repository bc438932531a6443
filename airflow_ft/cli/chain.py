"""``airflow ft chain DAG RUN TASK``: the retry chain, as a table or as JSON."""

from __future__ import annotations

import json
from argparse import Namespace

from rich.console import Console

from airflow_ft.views.chain_table import rendered, to_json
from airflow_ft.views.records import ChainNotFoundError, database, read_chain


def show_chain(args: Namespace) -> None:
    """Print the chain. Exit status 1 when there is none."""
    try:
        with database() as session:
            stored = read_chain(session, args.dag_id, args.run_id, args.task_id, args.map_index)
    except ChainNotFoundError as error:
        raise SystemExit(str(error)) from None
    if args.json:
        print(json.dumps(to_json(stored), indent=1))
    else:
        Console().print(rendered(stored))
