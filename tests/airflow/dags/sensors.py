"""The DAGs of the sensor's tests: the log and the step that is waited for come from the run's conf."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_ft.sensors.progress import TrainingProgressSensor

QUICK = {"floor_seconds": 5, "ceiling_seconds": 20, "startup_seconds": 120, "check_interval_seconds": 1}

for name, deferrable in (("sensor", True), ("sensor_in_the_worker", False)):
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False):
        TrainingProgressSensor(
            task_id="train",
            log="{{ dag_run.conf['log'] }}",
            until_step="{{ dag_run.conf.get('until', '') }}",
            hang=QUICK,
            poll_interval=1,
            deferrable=deferrable,
            timeout=300,
        )
