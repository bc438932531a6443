"""The order of a watch: what the chain and the attempt tell it. One function for both forms of the training."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_ft.attempts.ports import TryInfo, WatchOrder
from airflow_ft.core.chain import Attempt, Chain
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from airflow_ft.core.recovery import Recovery, begin


def watch_order(
    chain: Chain, attempt: Attempt, info: TryInfo, policy: FaultTolerancePolicy, now: datetime, **more: Any
) -> WatchOrder:
    """Return the order to watch ``attempt``. ``more`` has the other fields of ``WatchOrder``."""
    assert attempt.ref is not None
    return WatchOrder(
        info=info,
        ref=attempt.ref,
        good=chain.good,
        segment=chain.segment,
        policy=write_policy(policy),
        ledger=chain.ledger,
        faults=chain.faults,
        excluded_nodes=attempt.excluded_nodes,
        soft_nodes=attempt.soft_nodes,
        highest_step=chain.highest_step,
        last_checkpoint=chain.last_checkpoint,
        recovery=attempt.recovery or recovery_due(chain),
        incidents=attempt.incidents,
        notices=attempt.notices,
        told_generation=chain.told_generation,
        told_notice_at=chain.told_notice_at,
        deferred_at=now,
        **more,
    )


def recovery_due(chain: Chain) -> Recovery | None:
    """Return the recovery that the attempt after a fault has to show."""
    if not chain.faults:
        return None
    return begin(chain.faults[-1].step, chain.last_checkpoint, None)
