"""How a job is stopped, for ever: the record says who and why, then the object goes, then its pods are waited for.

A job has ended when no pod of it is left. Its object being gone proves nothing: a background deletion frees the name in
a tenth of a second with all pods running, and a TrainJob that is deleted in the foreground starts its training again
(seen), so that one is suspended first.

Pods on a node that is lost stay until the node is back, or somebody who knows says that it is really down: the
processes of a node that is only cut off run on. Until then the cancel is owed, and what is in the way is named.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from typing import Any

from airflow_ft.backends.base import CancelIncompleteError, ForeignJobError
from airflow_ft.backends.kubernetes import records
from airflow_ft.backends.kubernetes.api import ApiError
from airflow_ft.backends.kubernetes.building import CHAIN, GRACE_MARGIN_SECONDS
from airflow_ft.backends.kubernetes.cluster import JobView
from airflow_ft.backends.kubernetes.kinds import Json, walk
from airflow_ft.backends.kubernetes.observation import Closed, lost_why
from airflow_ft.backends.kubernetes.pods import PodFacts, node_is_down

LOOK_SECONDS = 0.5
NODES_SECONDS = 5.0
MARGIN_SECONDS = 20.0  # beyond the grace: kubelet and operator need some seconds each


async def cancel(view: JobView, grace: float, closed: Closed) -> None:
    """Stop the job and return when nothing of it is left. Raises ``CancelIncompleteError`` or ``UnreachableError``."""
    try:
        await _cancel(view, grace, closed)
    except ApiError as error:
        raise CancelIncompleteError(f"{view.ref.name} can't be stopped: {error}") from error


async def _cancel(view: JobView, grace: float, closed: Closed) -> None:
    ref, api = view.ref, view.api
    found = await records.read(api, view.namespace, ref.name) if not ref.foreign else None
    if found is not None and found.chain_id == ref.chain_id:
        await records.mark_closing(api, view.namespace, found, ref.name, closed)
    job = await _mine(view)
    if job is not None and view.kind.suspend_first:
        await api.patch(view.path, {"spec": {"suspend": True}})
        await _until_no_pods(view, grace, wait_for_object=False)
    if job is not None:
        policy = "Background" if view.kind.suspend_first else "Foreground"
        await api.delete(view.path, {"propagationPolicy": policy, "preconditions": {"uid": ref.uid}})
    await _hurry(view, grace)
    await _until_no_pods(view, grace, wait_for_object=True)
    if found is not None and found.chain_id == ref.chain_id:
        await records.close(api, view.namespace, found, ref.name)


async def _mine(view: JobView) -> Json | None:
    """Return the job's object if it is this very one."""
    job = await view.api.find(view.path)
    if job is None or walk(job, ("metadata", "uid")) != view.ref.uid:
        return None
    if not view.ref.foreign and walk(job, ("metadata", "labels", CHAIN)) != view.ref.chain_id:
        raise ForeignJobError(f"{view.ref.name} does not belong to the chain {view.ref.chain_id!r} any more")
    return job


async def _hurry(view: JobView, grace: float) -> None:
    """Give pods no more time than was asked for. Never none: that would only remove them from the books."""
    for pod in await view.see_pods():
        if not pod.over and pod.grace > grace + GRACE_MARGIN_SECONDS:
            path = f"/api/v1/namespaces/{view.namespace}/pods/{pod.name}"
            wanted = {"gracePeriodSeconds": max(1, math.ceil(grace)), "preconditions": {"uid": pod.uid}}
            with suppress(ApiError):  # it has just gone, or this account may not: then it has its own time
                await view.api.delete(path, wanted)


async def _until_no_pods(view: JobView, grace: float, *, wait_for_object: bool) -> None:
    end = time.monotonic() + grace + MARGIN_SECONDS
    nodes, nodes_due = None, 0.0
    while True:
        if time.monotonic() >= nodes_due:
            nodes, nodes_due = await view.nodes(), time.monotonic() + NODES_SECONDS
        pods = [pod for pod in await view.see_pods() if not _is_abandoned(view, pod, nodes)]
        if not wait_for_object:
            pods = [pod for pod in pods if not pod.over]
        job = await _mine(view) if wait_for_object and not pods else None
        if not pods and job is None:
            return
        if time.monotonic() > end:
            raise CancelIncompleteError(f"{view.ref.name} is not gone yet: {_in_the_way(pods, job, nodes)}")
        await asyncio.sleep(LOOK_SECONDS)


def _is_abandoned(view: JobView, pod: PodFacts, nodes: dict[str, Json] | None) -> bool:
    """Whether a pod on a lost node no longer counts: the cluster knows that the node is down, or the user said so."""
    node = (nodes or {}).get(pod.node or "")
    if pod.deleting is None or not lost_why(pod, nodes):
        return False
    if node is not None and node_is_down(node):
        return True
    limit = view.ref.where.get("abandon_lost_after_seconds")
    return limit is not None and _overdue(pod) >= float(str(limit))


def _overdue(pod: PodFacts) -> float:
    return time.time() - pod.deleting.timestamp() if pod.deleting is not None else 0.0


def _in_the_way(pods: list[PodFacts], job: Json | None, nodes: dict[str, Json] | None) -> str:
    said = []
    for pod in pods[:8]:
        why = lost_why(pod, nodes)
        held = f", finalizers {', '.join(pod.finalizers)}" if pod.finalizers else ""
        state = "is being deleted" if pod.deleting else "runs"
        lost = f" on node {pod.node}, which is lost ({why:.160}): what runs there may run on" if why else ""
        said.append(f"pod {pod.name} {state}{lost}{held}")
    more = len(pods) - 8
    if more > 0:
        said.append(f"and {more} more pods")
    if job is not None:
        finalizers: Any = walk(job, ("metadata", "finalizers")) or ()
        held = (
            f" by the finalizers {', '.join(finalizers)}: is the operator that owns them running?" if finalizers else ""
        )
        said.append(f"the object is held{held}")
    return "; ".join(said)
