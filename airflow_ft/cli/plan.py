"""``airflow ft plan DAG [TASK]``: what would be submitted, under which policy, and who restarts what. Nothing is done.

Two parties that restart one job fight each other (story RST-10): this says beforehand which of them does, and which
settings of the user's manifest are changed for that. No value of the job's environment is shown.

Exit status: 0, or 2 for a DAG that isn't there or has no training.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from airflow_ft.backends.base import TrainingJob
from airflow_ft.cli.policy import summary
from airflow_ft.core.policy import FaultTolerancePolicy

CANNOT = 2
# In a command line, or in a list of words that was written as JSON. Without it the agent sets torchrun's limit to 0.
_LAUNCHER = re.compile(r'--max[-_]restarts(?:=|\s+|", ")(\d+)')
UNKNOWN_YET = "The manifest has templates: which of its settings are changed is said when it is submitted."


def plan(args: Namespace) -> None:
    """Print the plan of each training of a DAG, or of one task."""
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.cli import get_bagged_dag

    try:
        dag = get_bagged_dag(None, args.dag_id)
    except AirflowException as error:
        print(error)
        raise SystemExit(CANNOT) from None
    plans = planned(task for task in dag.tasks if args.task_id in (None, task.task_id))
    if not plans:
        where = f"{args.dag_id}.{args.task_id}" if args.task_id else args.dag_id
        print(f"{where}: no training of airflow_ft. Give a DAG with one, and the id of its task.")
        raise SystemExit(CANNOT)
    print(json.dumps(plans, indent=1) if args.json else "\n\n".join(as_text(one) for one in plans))


def planned(tasks: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what would be done for each of the tasks that trains."""
    plans = []
    for task in tasks:
        job, policy = getattr(task, "job", None), getattr(task, "policy", None)
        if isinstance(job, TrainingJob) and isinstance(policy, FaultTolerancePolicy):
            plans.append({"task": task.task_id, **_of_job(job), **_of_policy(policy)})
    return plans


def as_text(one: dict[str, Any]) -> str:
    """Return a plan for people."""
    gpus = f", {one['gpus']} GPUs" if one["gpus"] else ""
    nodes = f"{one['nodes']} node{'s' if one['nodes'] != 1 else ''}" if one["nodes"] else "nodes as the manifest says"
    lines = [f"{one['task']}: {one['backend']}, {nodes}{gpus}", f"  policy: {one['policy']}", "  who restarts:"]
    return "\n".join(lines + [f"    {text}" for text in (*one["restarts"], *one["changed"])])


def _of_job(job: TrainingJob) -> dict[str, Any]:
    known: dict[str, Any]
    try:
        known = {"nodes": job.nodes_needed(), "gpus": job.gpus(), "changed": list(job.remarks())}
    except ValueError:  # text with templates is understood after they are rendered
        known = {"nodes": 0, "gpus": 0, "changed": [UNKNOWN_YET]}
    known["changed"] += _of_launcher(job)
    return {"backend": job.backend, **known}


def _of_launcher(job: TrainingJob) -> list[str]:
    """Say that the command lets torchrun restart by itself, which no setting of ours outweighs."""
    found = _LAUNCHER.search(json.dumps(job.model_dump(mode="json")))
    if found is None or int(found[1]) == 0:
        return []
    return [
        f"torchrun restarts its processes by itself, {found[1]} times (--max-restarts in the command): that is "
        "counted, and taken over where they gain no step. Leave the option out, so that one party restarts."
    ]


def _of_policy(policy: FaultTolerancePolicy) -> dict[str, Any]:
    if not policy.enabled:
        restarts = ["Nobody: fault tolerance is off."]
    elif policy.mode == "basic":
        restarts = [f"airflow_ft submits it again, {policy.max_restarts} times at most, whatever it was."]
    else:
        restarts = [
            f"airflow_ft restarts in place where agents hold the nodes ({policy.max_in_place} times without progress),",
            f"and submits it again ({policy.max_restarts} times at most). Restarts that others make are counted apart.",
        ]
    return {"policy": summary(policy), "restarts": restarts}
