"""The commands that Airflow's own CLI gets: ``airflow ft …``. Imported at every start of it, so it imports nothing."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

from airflow_ft.cli.probe_arguments import BISECT

_arg: Any = Arg  # untyped in Airflow

DAG = _arg(("dag_id",), help="The DAG's id")
RUN = _arg(("run_id",), help="The DAG run's id")
TASK = _arg(("task_id",), help="The task's id")
MAYBE_TASK = _arg(("task_id",), nargs="?", help="The task's id; all trainings of the DAG without it")
MAP_INDEX = _arg(("--map-index",), type=int, default=-1, help="The index of a mapped task")
JSON = _arg(("--json",), action="store_true", help="Print JSON instead of a table")
CONN = _arg(("--conn",), action="append", help="Also check the Kubernetes cluster of this connection")
NAMESPACE = _arg(("--namespace",), help="Where jobs are to run there; default: the connection's")
ATTEMPT = _arg(("attempt",), type=int, nargs="?", help="The number of one attempt; all without it")
POLICY = _arg(("--policy",), required=True, help="A policy file, or a preset (basic, multi_node, …)")
ONE_DAG = _arg(("--dag",), help="Only chains of this DAG")
SINCE = _arg(("--since",), help="Only chains that began after this: a date (2026-03-01) or a span (7d, 36h)")
# The same as in ``simulate.own_arguments`` (a test compares them): that module is too heavy for every start of the CLI.
ASSUMED = [
    "nodes",
    "spares",
    "gpus-per-node",
    "days",
    "checkpoint-seconds",
    "checkpoint-cost-seconds",
    "step-seconds",
    "crash-seconds",
    "in-place-seconds",
    "resubmit-seconds",
    "early-death-seconds",
    "cordon-seconds",
    "watchdog-share",
    "watchdog-seconds",
    "unwatched-seconds",
    "person-seconds",
    "transient-hangs",
    "transient-crashes",
    "blame",
]
SIMULATION = (
    _arg(("--trace",), required=True, help="Node faults, as in the InfiniteHBD trace"),
    _arg(("--policy",), action="extend", nargs="+", default=[], help="Yours: files or presets"),
    _arg(("--seeds",), type=int, default=100, help="How many runs (default: 100)"),
    _arg(("--trace-nodes",), type=int, default=400, help="Servers that the trace watched (default: 400)"),
    _arg(("--max-restarts",), type=int, default=64, help="Budget of the policies beside yours (default: 64)"),
    _arg(("--html",), help="Write the chart here"),
    _arg(("--no-agents",), action="store_true", help="Restarts in place are not possible"),
    *(_arg((f"--{name}",), help="An assumption: see docs/policy.md") for name in ASSUMED),
    JSON,
)
NODES_ACTION = _arg(
    ("action",), nargs="?", default="list", choices=("list", "quarantine", "release"), help="Default: list"
)
NODE = _arg(("node",), nargs="?", help="The node's name")
CLUSTER = _arg(("--cluster",), help="Where the node is, as the list shows it: local:default, kubernetes:gpu_cluster")
WHY = _arg(("--why",), help="The reason, for whoever reads the list")
HOURS = _arg(("--hours",), type=float, default=72.0, help="For how long (default: 72)")
BISECTING = tuple(_arg(flags, **options) for flags, options in BISECT)
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
                    name="explain",
                    help="Say why each decision of a retry chain was made, and make it again from its record",
                    func=lazy_load_command("airflow_ft.cli.explain.explain"),
                    args=(DAG, RUN, TASK, ATTEMPT, MAP_INDEX, JSON),
                ),
                ActionCommand(
                    name="replay",
                    help="Play a policy over the recorded retry chains: what would have been done differently",
                    func=lazy_load_command("airflow_ft.cli.replay.replay"),
                    args=(POLICY, ONE_DAG, SINCE, JSON),
                ),
                ActionCommand(
                    name="simulate",
                    help="Play policies against a trace of node faults",
                    func=lazy_load_command("airflow_ft.cli.simulate.simulate"),
                    args=SIMULATION,
                ),
                ActionCommand(
                    name="plan",
                    help="Say what would be submitted, under which policy, and who restarts what",
                    func=lazy_load_command("airflow_ft.cli.plan.plan"),
                    args=(DAG, MAYBE_TASK, JSON),
                ),
                ActionCommand(
                    name="doctor",
                    help="Check that this Airflow can keep training alive",
                    func=lazy_load_command("airflow_ft.cli.doctor.show_doctor"),
                    args=(CONN, NAMESPACE, JSON),
                ),
                ActionCommand(
                    name="feedback",
                    help="Print what people said of diagnoses, for scoring the classifier",
                    func=lazy_load_command("airflow_ft.cli.feedback.show_feedback"),
                    args=(JSON,),
                ),
                ActionCommand(
                    name="nodes",
                    help="Show the nodes in quarantine; put one in, or release one",
                    func=lazy_load_command("airflow_ft.cli.nodes.nodes"),
                    args=(NODES_ACTION, NODE, CLUSTER, WHY, HOURS, JSON),
                ),
                ActionCommand(
                    name="bisect",
                    help="Find the node or the pair of nodes that makes tests fail",
                    func=lazy_load_command("airflow_ft.cli.bisect.bisect"),
                    args=BISECTING,
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
