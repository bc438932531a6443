"""Pretrain every week for some steps more, from the last checkpoint of the run before; evaluate each checkpoint.

``weekly_pretraining`` emits an asset event for the checkpoint that a run has reached; ``evaluate_checkpoint`` is
triggered by it. The aim (``--steps``) is settled once, in a task of its own: an attempt that is repeated has the same.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Metadata, Param, task

from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.policy import FaultTolerancePolicy

SCRIPT = Path(__file__).parent / "training" / "train_gpt.py"
CHECKPOINT = Asset(name="pretraining_checkpoint", uri="x-airflow-ft://pretraining/checkpoint")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def newest_step(out: str) -> int:
    """Return the step of the newest checkpoint in a run's folder; 0 if there is none."""
    names = (re.fullmatch(r"step-(\d+)\.pt", path.name) for path in Path(out, "checkpoints").glob("step-*.pt"))
    return max((int(name[1]) for name in names if name), default=0)


with DAG(
    dag_id="weekly_pretraining",
    start_date=START,
    schedule="@weekly",
    catchup=False,
    max_active_runs=1,  # two runs would write the same checkpoints
    params={
        "steps_a_week": Param(100, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_weekly", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):

    @task
    def aim(params: Any = None) -> int:
        """Return the step that this week's training ends at."""
        return newest_step(params["out"]) + int(params["steps_a_week"])

    @task.ft_training(policy=FaultTolerancePolicy.full(max_restarts=3))
    def pretrain(steps: int) -> LocalJob:
        """Say how to go on: the script begins at the newest checkpoint that it finds in its folder."""
        return LocalJob(
            command=["torchrun", "--nproc-per-node=2", str(SCRIPT), f"--steps={steps}", "--out={{ params.out }}"],
        )

    @task(outlets=[CHECKPOINT])
    def announce(result: dict[str, Any], params: Any = None) -> Any:
        """Emit the checkpoint for whoever evaluates or serves it."""
        yield Metadata(CHECKPOINT, extra={"out": params["out"], "step": newest_step(params["out"]), **result})

    announce(pretrain(aim()))


with DAG(
    dag_id="evaluate_checkpoint",
    start_date=START,
    schedule=[CHECKPOINT],
    catchup=False,
    tags=["airflow_ft"],
    doc_md=__doc__,
):

    @task
    def evaluate(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Look at every checkpoint that has come since the last evaluation."""
        found = [event.extra for events in triggering_asset_events.values() for event in events]
        for checkpoint in found:
            print(f"step {checkpoint['step']}: loss {checkpoint.get('loss')}, in {checkpoint['out']}")
        return found

    evaluate()
