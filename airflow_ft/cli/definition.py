"""The commands that Airflow's own CLI gets: ``airflow ft …``. Imported at every start of it, so it imports nothing."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

_arg: Any = Arg  # untyped in Airflow

DAG = _arg(("dag_id",), help="The DAG's id")
RUN = _arg(("run_id",), help="The DAG run's id")
TASK = _arg(("task_id",), help="The task's id")
MAP_INDEX = _arg(("--map-index",), type=int, default=-1, help="The index of a mapped task")
JSON = _arg(("--json",), action="store_true", help="Print JSON instead of a table")
YES = _arg(("--yes",), action="store_true", help="Do it; without this it is only shown what would be done")


def get_cli_commands() -> list[CLICommand]:
    """Return the commands (called by Airflow's providers manager)."""
    return [
        GroupCommand(
            name="ft",
            help="Fault tolerance of long training",
            subcommands=(
                ActionCommand(
                    name="chain",
                    help="Show the retry chain of a task instance",
                    func=lazy_load_command("airflow_ft.cli.chain.show_chain"),
                    args=(DAG, RUN, TASK, MAP_INDEX, JSON),
                ),
                ActionCommand(
                    name="doctor",
                    help="Check that this Airflow can keep training alive",
                    func=lazy_load_command("airflow_ft.cli.doctor.show_doctor"),
                    args=(JSON,),
                ),
                ActionCommand(
                    name="reap",
                    help="Stop jobs whose task has ended: cancels that are owed, and orphans",
                    func=lazy_load_command("airflow_ft.cli.reap.reap"),
                    args=(YES,),
                ),
            ),
        )
    ]
