"""What all DAGs share: Airflow's variables, one for each word about a node (``attempts.quarantine``)."""

from __future__ import annotations

from pydantic import JsonValue

from airflow_ft.attempts.quarantine import Quarantine, cluster_of
from airflow_ft.backends.base import TrainingJob


class VariableStore:
    """Airflow's variables, as a task sees them."""

    def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin so."""
        from airflow.sdk import Variable

        return [str(key) for key in Variable.keys(prefix=prefix)]

    def get(self, key: str) -> JsonValue:
        """Return a value, or ``None``."""
        from airflow.sdk import Variable

        value: JsonValue = Variable.get(key, default=None, deserialize_json=True)
        return value

    def set(self, key: str, value: JsonValue) -> None:
        """Store a value."""
        from airflow.sdk import Variable

        Variable.set(key, value, description="airflow_ft: a node in quarantine", serialize_json=True)

    def delete(self, key: str) -> None:
        """Remove a key."""
        from airflow.sdk import Variable

        Variable.delete(key)


def quarantine_of(job: TrainingJob) -> Quarantine:
    """Return the quarantine of the cluster that a job runs on."""
    return Quarantine(VariableStore(), cluster_of(job))
