"""Where the pods of an attempt may run: excluded nodes as node affinity, and how long pods stay on a dead node.

The user's own affinity stays. Terms of ``required…nodeSelectorTerms`` are alternatives, so the exclusion goes into each
of them; ``preferred`` terms add up, so ours is one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_ft.backends.kubernetes.kinds import Json

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEIGHT = 100  # the most there is
LOST_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def exclude(pod_spec: Json, hostnames: Sequence[str], *, hard: bool = True) -> None:
    """Keep the pods of a spec away from nodes, by the value of their label ``kubernetes.io/hostname``."""
    if not hostnames:
        return
    affinity = _object(pod_spec, "affinity")
    node = _object(affinity, "nodeAffinity")
    unwanted = {"key": HOSTNAME, "operator": "NotIn", "values": sorted(set(hostnames))}
    if not hard:
        preferred = list(node.get(PREFERRED) or ())
        node[PREFERRED] = [*preferred, {"weight": WEIGHT, "preference": {"matchExpressions": [unwanted]}}]
        return
    required = _object(node, REQUIRED)
    terms = [dict(term) for term in required.get("nodeSelectorTerms") or [{}]]
    for term in terms:
        term["matchExpressions"] = [*(term.get("matchExpressions") or ()), unwanted]
    required["nodeSelectorTerms"] = terms


def leave_lost_nodes(pod_spec: Json, seconds: int | None) -> None:
    """Say how long pods stay on a node that is lost. The cluster's default is 300 s; a user's own word stays."""
    if seconds is None:
        return
    tolerations = list(pod_spec.get("tolerations") or ())
    told = {one.get("key") for one in tolerations if isinstance(one, dict)}
    for taint in LOST_TAINTS:
        if taint not in told and None not in told:
            tolerations.append(
                {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            )
    if tolerations:
        pod_spec["tolerations"] = tolerations


def _object(owner: Json, key: str) -> dict[str, Any]:
    """Return the object under a key, made if it isn't there. The user's own is copied, never changed."""
    owner[key] = dict(owner.get(key) or {})
    return owner[key]  # type: ignore[no-any-return]
