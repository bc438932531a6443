"""Pretrain every week for some steps more, from the last checkpoint of the run before; evaluate each checkpoint.

``weekly_pretraining`` emits an asset event for each checkpoint that the week has left behind; ``evaluate_checkpoint``
is triggered by them. The aim (``--steps``) is settled once, in a task of its own: an attempt that is repeated has the
same.
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


def steps_of(out: str) -> list[int]:
    """Return the steps of the checkpoints in a run's folder, the oldest first."""
    names = (re.fullmatch(r"step-(\d+)\.pt", path.name) for path in Path(out, "checkpoints").glob("step-*.pt"))
    return sorted(int(name[1]) for name in names if name)


with DAG(
    dag_id="weekly_pretraining",
    start_date=START,
    schedule="@weekly",
    catchup=False,
    max_active_runs=1,  # two runs would write the same checkpoints
    params={
        "steps_a_week": Param(100, type="integer", minimum=1),
        "checkpoint_every": Param(20, type="integer", minimum=1),
        "out": Param("/tmp/airflow_ft_weekly", type="string", minLength=1),
    },
    tags=["airflow_ft"],
    doc_md=__doc__,
):

    @task
    def aim(params: Any = None) -> int:
        """Return the step that this week's training ends at."""
        return max(steps_of(params["out"]), default=0) + int(params["steps_a_week"])

    @task.ft_training(policy=FaultTolerancePolicy.full(max_restarts=3))
    def pretrain(steps: int) -> LocalJob:
        """Say how to go on: the script begins at the newest checkpoint that it finds in its folder."""
        return LocalJob(
            command=[
                "torchrun", "--nproc-per-node=2", str(SCRIPT),
                f"--steps={steps}",
                "--checkpoint-every={{ params.checkpoint_every }}",
                "--out={{ params.out }}",
            ],
        )  # fmt: skip

    @task
    def new_checkpoints(end: int, result: dict[str, Any], params: Any = None) -> list[dict[str, Any]]:
        """Return this week's checkpoints, as far as training has kept them."""
        begin = end - int(params["steps_a_week"])
        facts = {"out": params["out"], "chain_id": result["chain_id"], "restarts": result["restarts"]}
        return [{**facts, "step": step} for step in steps_of(params["out"]) if step > begin]

    @task(outlets=[CHECKPOINT])
    def announce(checkpoint: dict[str, Any]) -> Any:
        """Emit one checkpoint for whoever evaluates or serves it."""
        yield Metadata(CHECKPOINT, extra=checkpoint)

    end = aim()
    announce.expand(checkpoint=new_checkpoints(end, pretrain(end)))


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
            print(f"step {checkpoint['step']} in {checkpoint['out']}, after {checkpoint['restarts']} restarts")
        return found

    evaluate()
