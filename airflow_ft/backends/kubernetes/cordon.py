"""Nodes in quarantine, cordoned: new pods of anybody go elsewhere, those that run stay.

What is ours is what our label says. The same is asked for again and again, and only what differs is changed:

=============================================  ======================================================================
a node is wanted out, and in service           cordoned, with our label and the reason as an annotation
wanted out, cordoned by somebody else          left alone: it is theirs to bring back
wanted out, with our label, in service again   a person has uncordoned it: their word counts, it stays
not wanted out any more, with our label        uncordoned (unless a person has), label and reason removed
=============================================  ======================================================================

A node that somebody else has changed in the same moment isn't touched (its ``resourceVersion`` is named): the next look
sees what it is then.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import MERGE, Api, ApiError
from airflow_ft.backends.kubernetes.kinds import Json, walk

NODES = "/api/v1/nodes"
LABEL, CORDONED = "airflow-ft/quarantine", "cordoned"
REASON = "airflow-ft/quarantine-reason"
REASON_LENGTH = 500


def is_ours(node: Json) -> bool:
    """Whether a node is cordoned by us, and by nobody since."""
    return _labelled(node) and _unschedulable(node)


async def names(api: Api) -> tuple[str, ...]:
    """Return all nodes of the cluster, whatever their state. Raises ``UnreachableError``."""
    return tuple(await _nodes(api))


async def keep_out(api: Api, wanted: Mapping[str, str]) -> list[str]:
    """Cordon these nodes (name and reason) and let all others go that we have cordoned. Returns what was done.

    Raises ``UnreachableError``; a node that can't be changed is told.
    """
    told = []
    for name, node in (await _nodes(api)).items():
        if name in wanted and not _labelled(node) and not _unschedulable(node):
            reason = wanted[name][:REASON_LENGTH]
            told.append(await _change(api, node, "cordoned", {LABEL: CORDONED}, {REASON: reason}, unschedulable=True))
        elif name not in wanted and _labelled(node):
            told.append(await _change(api, node, "uncordoned", {LABEL: None}, {REASON: None}, unschedulable=None))
    return told


async def _nodes(api: Api) -> dict[str, Json]:
    try:
        found = await api.get(NODES)
    except ApiError as error:
        raise UnreachableError(f"the nodes can't be listed: {error}") from error
    return {str(node["metadata"]["name"]): node for node in found.get("items") or ()}


async def _change(
    api: Api,
    node: Json,
    done: str,
    labels: dict[str, str | None],
    annotations: dict[str, str | None],
    *,
    unschedulable: bool | None,
) -> str:
    name = str(node["metadata"]["name"])
    version = node["metadata"].get("resourceVersion")
    metadata = {"labels": labels, "annotations": annotations, "resourceVersion": version}
    body = {"metadata": metadata, "spec": {"unschedulable": unschedulable}}
    try:
        await api.call("PATCH", f"{NODES}/{name}", {}, body, content=MERGE, tries=1)
    except ApiError as error:
        return f"{name} can't be {done}: {error}. The account needs the verb patch on nodes."
    except UnreachableError as error:
        return f"{name} is not {done} yet: {error}"
    return f"{name} is {done}."


def _labelled(node: Json) -> bool:
    return bool(walk(node, ("metadata", "labels", LABEL)) == CORDONED)


def _unschedulable(node: Json) -> bool:
    return walk(node, ("spec", "unschedulable")) is True
