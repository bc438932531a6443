"""The explicit form: the same trainings as tasks that one can see."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.sdk import task
from tiny_training import POLICY, dag, job, note

from airflow_ft.taskgroups.training import fault_tolerant_training


@task
def ticket(attempt: dict[str, Any]) -> None:
    """Write down what a ticket would say."""
    with open(os.path.join(os.environ["TRAINING_STORY"], f"{attempt['chain_id']}.tickets"), "a") as file:
        file.write(json.dumps(attempt) + "\n")


with dag("explicit_one_node"):
    fault_tolerant_training(group_id="train", job=job(), policy=POLICY, attempts=3, on_attempt=note, on_fault=ticket)
