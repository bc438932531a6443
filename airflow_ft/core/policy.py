"""The policy as one readable object: modes, budgets, ladder settings. The rules themselves are in ``decide``."""

from __future__ import annotations

from airflow_ft.core.records import Settings


class FaultTolerancePolicy(Settings):
    """What may be done about faults."""

    mode: str = "full"
    max_restarts: int = 3
