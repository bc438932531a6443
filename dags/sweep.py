"""Train the same small GPT with several seeds, each kept alive by itself, and name the best.

One mapped task: every seed has a retry chain, budgets and nodes of its own, and one that stops doesn't stop the others.
``@task.ft_training``: the function says what to train, for each value that it is mapped over.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy

SCRIPT = Path(__file__).parent / "training" / "train_gpt.py"

with DAG(
    dag_id="sweep",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    schedule=None,
    catchup=False,
    params={
        "seeds": Param([1, 2, 3], type="array", items={"type": "integer"}, minItems=1),
        "steps": Param(50, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_sweep", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):

    @task
    def seeds(params: Any = None) -> list[int]:
        """Return what is swept over."""
        return list(params["seeds"])

    @task.ft_training(policy=FaultTolerancePolicy.full(max_restarts=2), max_active_tis_per_dagrun=1)
    def train(seed: int) -> LocalJob:
        """Say how one seed is trained."""
        return LocalJob(
            command=[
                "torchrun", "--nproc-per-node=2", str(SCRIPT),
                f"--seed={seed}",
                "--steps={{ params.steps }}",
                f"--out={{{{ params.out }}}}/{{{{ run_id }}}}/seed-{seed}",
            ],
        )  # fmt: skip

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def best(results: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the result with the lowest loss. A seed that was given up has none."""
        ended = [result for result in results if result.get("loss") is not None]
        if not ended:
            raise ValueError("No training of this sweep has ended with a loss.")
        return min(ended, key=lambda result: result["loss"])

    best(train.expand(seed=seeds()))
