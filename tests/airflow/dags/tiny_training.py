"""The DAGs of the Airflow tests: one task each, a training of a second, everything else by the run's conf.

``conf["args"]`` is the command line of ``training/tiny.py``. Every chain event is written down by a notifier.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import AskSettings, BackoffSettings, ExclusionSettings, FaultTolerancePolicy, HangSettings
from airflow_ft.operators.training import FaultTolerantTrainingOperator

SCRIPT = Path(__file__).parent / "training" / "tiny.py"
ARGUMENTS = "{{ dag_run.conf.get('args', '') }}"
POLICY = FaultTolerancePolicy.full(
    max_restarts=5,
    hang=HangSettings(floor_seconds=5, ceiling_seconds=20, startup_seconds=60, check_interval_seconds=1),
    backoff=BackoffSettings(base_seconds=0.5, max_seconds=1),
    exclusion=ExclusionSettings(max_share=0.9),
    settle_seconds=0.5,
    grace_seconds=3,
    hold_seconds=1800,  # a dozen triggerers that die one after the other take minutes on a busy machine
)
NO_DNS = "socket.gaierror: [Errno -3] Temporary failure in name resolution"  # a fault that is resubmitted
BUG = "ValueError: shape mismatch"  # one that stops
LOST_TRY_DELAY = timedelta(seconds=1)


def note(context: Any) -> None:
    """Write down what a person would have been told."""
    event = context["ft_event"]
    chain = event["key"].rpartition("/")[0]
    with open(os.path.join(os.environ["TRAINING_STORY"], f"{chain}.told"), "a") as file:
        file.write(json.dumps(event) + "\n")


def job(arguments: str = ARGUMENTS, nodes: int = 1, **more: Any) -> LocalJob:
    """Return the training."""
    more = {"pool_nodes": 80, **more}
    return LocalJob(command=f"python -S {SCRIPT} {arguments}", nodes=nodes, **more)


def dag(dag_id: str, **more: Any) -> DAG:
    """Return a DAG that runs as often at once as it is asked to."""
    return DAG(
        dag_id,
        schedule=None,
        start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
        catchup=False,
        max_active_runs=100,
        max_active_tasks=100,
        **more,
    )


def training(dag_id: str, run_timeout: timedelta | None = None, **arguments: Any) -> None:
    """Make a DAG with one training."""
    given = {"job": job(), "policy": POLICY, "on_attempt": note, "retry_delay": LOST_TRY_DELAY, **arguments}
    with dag(dag_id, dagrun_timeout=run_timeout):
        FaultTolerantTrainingOperator(task_id="train", **given)


def mapped(dag_id: str, commands: list[str]) -> None:
    """Make a DAG with one training that is mapped over command lines."""
    with dag(dag_id):
        FaultTolerantTrainingOperator.partial(
            task_id="train", policy=POLICY, on_attempt=note, retry_delay=LOST_TRY_DELAY
        ).expand(job=[job(command) for command in commands])


training("one_node")
training("two_nodes", job=job(nodes=2))
training("in_the_worker", deferrable=False)
training("switched_off", policy=FaultTolerancePolicy.off(grace_seconds=3))
training("execution_limit", execution_timeout=timedelta(seconds=20))
training("attempt_limit", attempt_timeout=timedelta(seconds=20))
training("run_limit", run_timeout=timedelta(seconds=20))
training("limit_in_the_worker", deferrable=False, execution_timeout=timedelta(seconds=20))
training(
    "with_a_token",
    job=job("--say '--token {{ var.value.hf_token }}' " + ARGUMENTS, env={"HF_TOKEN": "{{ var.value.hf_token }}"}),
)
ASKS = POLICY.model_copy(update={"on_fault": "ask"})
training("asks_briefly", policy=ASKS.model_copy(update={"ask": AskSettings(timeout_seconds=30, default="resubmit")}))
training("asks", policy=ASKS)
training("asks_and_holds", job=job(nodes=2), policy=ASKS.model_copy(update={"ask": AskSettings(job="hold")}))
training("no_script", job=LocalJob(command="python missing.py"))
training("no_program", job=LocalJob(command=["no-such-program"]))
training("no_workdir", job=job(workdir="/no/such/folder"))
with dag("default_retries", default_args={"retries": 2}):
    FaultTolerantTrainingOperator(task_id="train", job=job(), policy=POLICY, on_attempt=note)
training("elsewhere", job=job(root="{{ dag_run.conf['root'] }}"))
mapped("mapped", ["--steps 3", "--crash-at 3", f"--crash-at 3 --say '{NO_DNS}'", f"--crash-at 3 --say '{BUG}'"])
mapped("sixty", ["--steps 1 --interval 0"] * 60)
