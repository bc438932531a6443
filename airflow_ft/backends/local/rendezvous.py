"""Whether one order for each node is enough for a restart in place, or everything has to be down first.

Each generation has a rendezvous id of its own (``PET_RDZV_ID``), so that nothing of an old generation can meet a new
one. But torchrun's command line wins over that: where a user fixes the id there, or takes a static rendezvous, the new
launcher of one node would join the old store of another, and die with it. Then all commands are ended before any is
started again; the agents hold their nodes meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_ft.agent import processes
from airflow_ft.agent import state as agent_state
from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.local.folder import JobFolder

DOWN_SECONDS = 30.0  # an agent takes up to 10 s to end its tree
LOOK_SECONDS = 0.1
FIXED = ("rdzv-id", "master-addr", "master-port")
FIXED_VARIABLES = ("PET_RDZV_ID", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def is_fixed(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the user's command, or environment, makes all generations meet at the same place."""
    options = [word.lstrip("-").replace("_", "-").partition("=") for word in argv if word.startswith("--")]
    values = {name: value or following for (name, _, value), following in zip(options, _following(argv), strict=True)}
    static = values.get("rdzv-backend", env.get("PET_RDZV_BACKEND", "")) == "static"
    return static or any(name in values for name in FIXED) or any(name in env for name in FIXED_VARIABLES)


def _following(argv: Sequence[str]) -> list[str]:
    return [after for word, after in zip(argv, [*argv[1:], ""], strict=True) if word.startswith("--")]


async def end_older(folder: JobFolder, nodes: Iterable[str], generation: int) -> None:
    """End the commands of all nodes that have not come to this generation. Raises ``UnreachableError``."""
    older = [node for node in nodes if _state(folder, node).get("generation", generation) < generation]
    await asyncio.gather(*(asyncio.to_thread(_end, folder, node) for node in older))
    end = time.monotonic() + DOWN_SECONDS
    while left := [node for node in older if _runs(folder, node)]:
        if time.monotonic() > end:
            raise UnreachableError(f"the commands of {', '.join(left)} are not down yet")
        await asyncio.sleep(LOOK_SECONDS)


def _end(folder: JobFolder, node: str) -> None:
    state = _state(folder, node)
    child = state.get("child")
    if isinstance(child, int) and processes.is_alive(child, state.get("child_start")):
        processes.kill_tree([child])


def _runs(folder: JobFolder, node: str) -> bool:
    """Whether the agent has not said yet that its command is down. Of a dead agent nothing is to be waited for."""
    state = _state(folder, node)
    return state.get("phase") in ("starting", "running", "stopping") and agent_state.agent_lives(state)


def _state(folder: JobFolder, node: str) -> dict[str, Any]:
    return agent_state.read_state(folder.node(node)) or {}
