"""Orders to the agents of a job: restart in place, release, dump stacks.

The agents' folders are on this machine, so orders are given in process (``airflow_ft.agent.orders``), to all nodes at
once: an agent that is just stopping takes up to 15 s to answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from airflow_ft.agent import orders as agent_orders
from airflow_ft.agent import stacks as agent_stacks
from airflow_ft.agent import state as agent_state
from airflow_ft.backends import agent_archive, subprocesses
from airflow_ft.backends.base import Order, StackGroup
from airflow_ft.backends.local import rendezvous
from airflow_ft.backends.local.folder import Identity, JobFolder

STACK_SECONDS = 8.0  # py-spy has 5 s, faulthandler 3 s (agent.stacks)
TRIES = 5  # a number that somebody else took in the same moment


async def restart(folder: JobFolder, identity: Identity, nodes: tuple[str, ...], order: Order) -> list[str]:
    """Give the order to every node; returns those that refused."""
    spec = await asyncio.to_thread(folder.spec)
    if len(nodes) > 1 and spec is not None and rendezvous.is_fixed(spec.argv, spec.env):
        await rendezvous.end_older(folder, nodes, order.generation)
    given = await asyncio.gather(*(asyncio.to_thread(_give, folder, identity, node, order) for node in nodes))
    return [node for node, accepted in zip(nodes, given, strict=True) if not accepted]


async def release(folder: JobFolder, identity: Identity, nodes: tuple[str, ...], order: Order) -> list[str]:
    """Tell every node that no restart will come; returns those where another decision stands."""
    given = await asyncio.gather(*(asyncio.to_thread(_release, folder, identity, node, order) for node in nodes))
    return [node for node, accepted in zip(nodes, given, strict=True) if not accepted]


async def dump_stacks(folder: JobFolder, identity: Identity, nodes: tuple[str, ...]) -> list[StackGroup]:
    """Dump the stacks of every node's processes; a node that doesn't answer is left out."""
    dumps = await asyncio.gather(*(_dump_node(folder, identity, node) for node in nodes))
    return [group for groups in dumps for group in groups]


def peek_stacks(folder: JobFolder, nodes: tuple[str, ...], by_signal: bool) -> list[StackGroup]:
    """Look at the stacks of what is on a CPU: their files are on this machine, so no agent is asked."""
    return [
        group
        for node in nodes
        if os.path.isdir(folder.node(node))
        for group in _groups(node, agent_stacks.peek(folder.node(node), by_signal))
    ]


def _release(folder: JobFolder, identity: Identity, node: str, order: Order) -> bool:
    """A node whose agent is gone needs no release."""
    if _give(folder, identity, node, order, "release"):
        return True
    state = agent_state.read_state(folder.node(node)) or {}
    return state.get("phase") == "ended" or not agent_state.agent_lives(state)


def _give(folder: JobFolder, identity: Identity, node: str, order: Order, action: str = "restart") -> bool:
    result = agent_orders.give(
        folder.node(node),
        action,
        order.generation,
        attempt=identity.name,
        incarnation=identity.uid,
        digest=order.digest,
        by=order.by,
        note=order.note,
    )
    return result.result != "refused"


async def _dump_node(folder: JobFolder, identity: Identity, node: str) -> list[StackGroup]:
    directory = folder.node(node)
    number = await asyncio.to_thread(_order_stacks, directory, identity)
    if number is None:  # the agent is dead: its archive can look for the orphans itself
        return _groups(node, await asyncio.to_thread(_dump_orphans, folder, node))
    end = time.monotonic() + STACK_SECONDS
    while time.monotonic() < end:
        found = await asyncio.to_thread(_stacks, directory)
        if found and isinstance(found.get("number"), int) and found["number"] >= number:
            return _groups(node, found)
        await asyncio.sleep(0.1)
    return []


def _order_stacks(directory: str, identity: Identity) -> int | None:
    for _ in range(TRIES):
        number = agent_orders.highest(directory, stacks=True) + 1
        result = agent_orders.give(directory, "stacks", number, attempt=identity.name, incarnation=identity.uid)
        if result.result != "refused":
            return number
        if agent_orders.highest(directory, stacks=True) < number:
            return None
    return None


def _dump_orphans(folder: JobFolder, node: str) -> dict[str, Any] | None:
    if not os.path.isdir(folder.node(node)):
        return None
    archive = agent_archive.build_agent_archive(Path(folder.root, "agents"))
    argv = [sys.executable, "-I", "-S", str(archive), "stacks", f"--dir={folder.node(node)}"]
    try:
        found = json.loads(subprocesses.run(argv, STACK_SECONDS).stdout)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _stacks(directory: str) -> dict[str, Any] | None:
    try:
        with open(os.path.join(directory, "stacks.json"), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _groups(node: str, found: dict[str, Any] | None) -> list[StackGroup]:
    return [
        StackGroup(
            node=node,
            ranks=_ints(entry.get("ranks")),
            pids=_ints(entry.get("pids")),
            stack=str(entry.get("stack") or ""),
            stopped=entry.get("stopped") is True,
        )
        for entry in _objects(found, "groups")
    ]


def _objects(found: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    values = found.get(key) if found else None
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _ints(values: object) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, list) else ()
