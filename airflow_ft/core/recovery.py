"""Recovery: did training really come back? Resubmitted is not recovered (DESIGN §1, mission S15).

An attempt after a fault has recovered when it *loaded the expected checkpoint and passed the step where the last one
died*.
"""

from __future__ import annotations

from pydantic import AwareDatetime

from airflow_ft.core.records import Record


class Recovery(Record):
    """What is known about the recovery from one fault.

    ``state`` is ``pending``, ``recovered``, ``from_scratch`` (restarted from the beginning), ``gap`` (steps were
    skipped) or ``failed`` (the run ended before it passed the old step).
    """

    state: str = "pending"
    died_at_step: int | None = None
    expected_checkpoint: int | None = None
    loaded_checkpoint: int | None = None
    first_step: int | None = None
    first_step_at: AwareDatetime | None = None
    passed_step: int | None = None
    passed_at: AwareDatetime | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    text: str = ""
