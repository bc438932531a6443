"""The same trainings in both forms: as one task, and as tasks that one can see.

What they do is the run's conf, as in ``tiny_training``. The budget is one restart: that is enough for every story, and
one of them uses it up.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import task, task_group
from tiny_training import LOST_TRY_DELAY, POLICY, dag, job, note

from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.operators.bisect import BisectOperator
from airflow_ft.operators.preflight import PreflightOperator
from airflow_ft.operators.training import FaultTolerantTrainingOperator
from airflow_ft.taskgroups.training import fault_tolerant_training

TIGHT = POLICY.model_copy(update={"max_restarts": 1})
SEARCHING = FaultTolerancePolicy.full(
    max_restarts=1,
    backoff=POLICY.backoff,
    exclusion=POLICY.exclusion,
    settle_seconds=POLICY.settle_seconds,
    grace_seconds=POLICY.grace_seconds,
    hold_seconds=POLICY.hold_seconds,
    rules=[{"match": "a node is sick", "action": "bisect"}],
    bisect=BisectSettings(command=("sh", "-c", "test $FT_NODE != n1"), group_min=1),
)
FAN = {"set": "quick", "commands": {"fan": ["sh", "-c", "test $FT_NODE != n4"]}}


@task
def ticket(attempt: dict[str, Any]) -> None:
    """Write down what a ticket would say."""
    with open(os.path.join(os.environ["TRAINING_STORY"], f"{attempt['chain_id']}.tickets"), "a") as file:
        file.write(json.dumps(attempt) + "\n")


def both_forms(name: str, policy: FaultTolerancePolicy, pool: str, **more: Any) -> None:
    """Make a DAG of each form, with a pool of its own: a search names nodes, and a node that is lost stays so."""
    given = {"policy": policy, "on_attempt": note}
    with dag(f"single_{name}"):
        FaultTolerantTrainingOperator(
            task_id="train", job=job(pool=f"{pool}-single", **more), retry_delay=LOST_TRY_DELAY, **given
        )
    with dag(f"explicit_{name}", default_args={"retries": 2}):
        group = fault_tolerant_training(
            group_id="train", job=job(pool=f"{pool}-explicit", **more), attempts=3, on_fault=ticket, **given
        )
        # What stands after a training sees its end alone, whatever was skipped inside.
        group >> [
            EmptyOperator(task_id="after_success"),
            EmptyOperator(task_id="after_failure", trigger_rule="one_failed"),
            EmptyOperator(task_id="in_any_case", trigger_rule="all_done"),
        ]


both_forms("story", TIGHT, pool="stories")
both_forms("search", SEARCHING, pool="searched", nodes=2, pool_nodes=4)

with dag("explicit_limit", dagrun_timeout=timedelta(seconds=75)):
    fault_tolerant_training(group_id="train", job=job(), policy=TIGHT, attempts=1, on_attempt=note)

with dag("explicit_apart"):
    apart = job(nodes=2, pool="searched-apart", pool_nodes=4)
    fault_tolerant_training(
        group_id="train",
        job=apart,
        policy=SEARCHING,
        attempts=2,
        deferrable=False,
        on_attempt=note,
        stages={
            "preflight": lambda: PreflightOperator(
                task_id="preflight", job=apart, preflight=FAN, on_failure="continue"
            ),
            "bisect": lambda attempt: BisectOperator(
                task_id="bisect", job=apart, attempt=attempt, bisect=SEARCHING.bisect
            ),
        },
    )

with dag("explicit_mapped"):

    @task_group
    def each(one: Any) -> None:
        """Train one of several."""
        fault_tolerant_training(group_id="train", job=one, policy=TIGHT, attempts=2, on_attempt=note)

    each.expand(one=[job("--steps 3"), job("--crash-at 3")])
