"""A job that waits for nodes because too many are excluded: its least sure exclusion becomes a preference (EXC-01).

Whether the exclusion is to blame is asked, not guessed: where the pool can be seen and has enough other nodes, the
queue is just long, and a place in it is not given up. Where it can't be seen, the exclusion is given up much later: an
attempt that can never start is worse than one on a node that was suspected.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from airflow_ft.attempts.ports import WatchOrder
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.exclusions import softened
from airflow_ft.core.policy import FaultTolerancePolicy

UNSCHEDULABLE = "unschedulable"  # what such an end is called: nobody's fault
# A gut feeling: a queue of a shared cluster is often long without any exclusion, and nobody can say which it is.
UNSEEN_PATIENCE = 8


def is_overdue(order: WatchOrder, policy: FaultTolerancePolicy, now: datetime) -> bool:
    """Whether a queued job has waited so long that its exclusions are looked at."""
    limit = policy.exclusion.unschedulable_seconds
    waited = (now - order.ref.submitted_at).total_seconds()
    return bool(order.excluded_nodes) and policy.enabled and limit is not None and waited >= limit


def softer(order: WatchOrder, policy: FaultTolerancePolicy, pool: Collection[str], now: datetime) -> Decision | None:
    """Return the decision to try again with one exclusion less; ``None`` if the exclusions are not to blame."""
    left = set(pool) - set(order.excluded_nodes)
    limit, waited = policy.exclusion.unschedulable_seconds, (now - order.ref.submitted_at).total_seconds()
    if limit is None or (pool and len(left) >= order.nodes_needed) or (not pool and waited < limit * UNSEEN_PATIENCE):
        return None
    node = softened(order.excluded_nodes, order.ledger)
    if node is None:
        return None
    return Decision(
        action=Action.RESUBMIT,
        reason=(
            f"No place for {order.nodes_needed} nodes in {waited / 60:.0f} min without "
            f"{', '.join(order.excluded_nodes[-8:])}. {node}, the least sure of them, may be used if no other is free. "
            "Not charged."
        ),
        excluded_nodes=tuple(one for one in order.excluded_nodes if one != node),
        soft_nodes=(*order.soft_nodes, node),
        ledger=order.ledger,
    )
