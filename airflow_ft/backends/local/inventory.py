"""Jobs and nodes of a root folder, for people: what the CLI lists, and the switch that makes a node fail.

``lose_node`` is what pulling the plug is elsewhere: everything of the node is dead at once, without a last word, and
the pool says that the node is down. Tests and the demo use it; an operator may, too.
"""

from __future__ import annotations

import os
from contextlib import suppress

from pydantic import AwareDatetime, Field

from airflow_ft.agent import processes
from airflow_ft.backends.base import BackendError, CancelIncompleteError
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import JobFolder, Mark, now, replace_json
from airflow_ft.backends.local.pool import Pool, address
from airflow_ft.core.records import Record


class ListedJob(Record):
    """One job, as its folder says."""

    name: str
    uid: str
    chain_id: str
    attempt: int
    tags: dict[str, str] = Field(default_factory=dict)
    created_at: AwareDatetime
    nodes: tuple[str, ...] = ()
    closed: str = ""  # "", "cancelled", "over"
    path: str


class ListedNode(Record):
    """One node of a pool."""

    node: str
    address: str
    job: str = ""
    down: bool = False
    why: str = ""


def list_jobs(root: str) -> list[ListedJob]:
    """All jobs of a root folder, oldest first; unreadable ones are left out."""
    found = []
    with suppress(FileNotFoundError):
        for name in os.listdir(os.path.join(root, "jobs")):
            with suppress(BackendError):
                job = _job(JobFolder(root, name))
                found += [job] if job else []
    return sorted(found, key=lambda job: job.created_at)


def list_nodes(root: str, pool: str = "default") -> list[ListedNode]:
    """All nodes of a pool that a job was ever placed in."""
    return [_node(Pool(root, pool, 0), node) for node in _known_nodes(root, pool)]


def lose_node(root: str, pool: str, node: str, why: str = "lost power") -> None:
    """Take a node out of service and kill everything on it. Raises ``CancelIncompleteError`` if something resists."""
    where = Pool(root, pool, 0)
    os.makedirs(os.path.join(where.path, "nodes", node), mode=0o700, exist_ok=True)
    replace_json(os.path.join(where.path, "nodes", node, "down"), Mark(why=why, at=now()).model_dump(mode="json"))
    folder = where.holder(node)
    identity = folder.identity() if folder else None
    if folder is None or identity is None:
        return
    folder.mark_lost(node, why)
    for _ in range(5):
        left = survey.everything(folder, identity, node)
        if not left:
            return
        processes.kill_tree(left)
    raise CancelIncompleteError(f"{node}: processes {sorted(left)} are still there after SIGKILL")


def repair_node(root: str, pool: str, node: str) -> None:
    """Put a node back into service."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(Pool(root, pool, 0).path, "nodes", node, "down"))


def _job(folder: JobFolder) -> ListedJob | None:
    identity, placement, tombstone = folder.identity(), folder.placement(), folder.tombstone()
    if identity is None:
        return None
    return ListedJob(
        **identity.model_dump(include={"name", "uid", "chain_id", "attempt", "tags", "created_at"}),
        nodes=placement.nodes if placement else (),
        closed=tombstone.kind if tombstone else "",
        path=folder.path,
    )


def _known_nodes(root: str, pool: str) -> list[str]:
    with suppress(FileNotFoundError):
        names = os.listdir(os.path.join(root, "pools", pool, "nodes"))
        return sorted(
            (name for name in names if name[:1] == "n" and name[1:].isdigit()), key=lambda name: int(name[1:])
        )
    return []


def _node(pool: Pool, node: str) -> ListedNode:
    holder, down = pool.holder(node), pool.down(node)
    return ListedNode(
        node=node,
        address=address(node),
        job=holder.name if holder else "",
        down=down is not None,
        why=down.why if down else "",
    )
