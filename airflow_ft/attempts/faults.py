"""What a try raises when its attempt is over. The retry policy of Airflow's side reads the decision off it."""

from __future__ import annotations

from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis


class TrainingFault(Exception):  # noqa: N818 - it is the training's fault, not an error of ours
    """The attempt ended and a decision was taken. ``str()`` is one sentence: the decision's reason."""

    def __init__(self, decision: Decision, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(decision.reason)
        self.decision = decision
        self.diagnosis = diagnosis

    @property
    def stops(self) -> bool:
        """Whether the task fails now, instead of being tried again."""
        return self.decision.action is Action.FAIL


class PersonNeededError(Exception):
    """A person is asked what is done next, and has not answered. ``str()`` is the question."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


class TryAgainLaterError(Exception):
    """This try can't go on, and nothing is decided about the training: the next try looks again after ``delay``.

    Raised when the cluster can't be reached before there is something to watch. It costs a try, never an attempt.
    """

    def __init__(self, reason: str, delay: float) -> None:
        super().__init__(reason)
        self.delay = delay
