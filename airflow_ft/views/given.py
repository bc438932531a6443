"""What a person sends to the plugin's API: a judgement, a word about a node. Nothing else is taken."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from airflow_ft.core.quarantine import TEXT

MOST_HOURS = 24.0 * 366


class Given(BaseModel):
    """A body of a request."""

    model_config = ConfigDict(extra="forbid")


class FeedbackGiven(Given):
    """What a person sends. ``fault_class`` is the right class where the diagnosis was wrong."""

    right: bool
    fault_class: (
        Literal["HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN"] | None
    ) = None
    note: str = Field(default="", max_length=500)


class QuarantineGiven(Given):
    """For how long a node is to be kept out, and why."""

    hours: float = Field(gt=0, le=MOST_HOURS)
    why: str = Field(default="", max_length=TEXT)


class ExtensionGiven(Given):
    """How much longer than now a node is to be kept out."""

    hours: float = Field(gt=0, le=MOST_HOURS)


class ReleaseGiven(Given):
    """Nothing but the wish: what was said of the node is void."""
