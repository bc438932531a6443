"""The stages of the explicit form: one attempt of a training as tasks that a user can see, rewire and reuse.

They call the same functions of ``attempts/`` as ``FaultTolerantTrainingOperator``, and keep the same chain.
``taskgroups.training.fault_tolerant_training`` builds a group of them; each is useful alone.
"""

from airflow_ft.operators.stages.end import CancelTrainingOperator, TrainingResultOperator
from airflow_ft.operators.stages.faults import (
    ClassifyFaultOperator,
    FaultPolicyBranchOperator,
    GiveUpOperator,
    RestartInPlaceOperator,
)
from airflow_ft.operators.stages.submit import ResubmitOperator, SubmitTrainingOperator
from airflow_ft.operators.stages.watch import VerifyRecoveryOperator, WatchTrainingOperator

__all__ = [
    "CancelTrainingOperator",
    "ClassifyFaultOperator",
    "FaultPolicyBranchOperator",
    "GiveUpOperator",
    "RestartInPlaceOperator",
    "ResubmitOperator",
    "SubmitTrainingOperator",
    "TrainingResultOperator",
    "VerifyRecoveryOperator",
    "WatchTrainingOperator",
]
