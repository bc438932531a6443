"""Stopping a job for ever: tombstone, TERM, grace, KILL, until nothing is left.

The tombstone comes first: from then on no launcher, however late, can start anything. TERM goes to the agents (they
pass it on, and kill their tree after their own grace), or to what is left of the command where the agent is dead.
Then everything is killed by tree, by recorded pid and by marker, and looked for again, until two looks in a row find
nothing.
"""

from __future__ import annotations

import asyncio
import signal
import time

from airflow_ft.agent import processes
from airflow_ft.agent import state as agent_state
from airflow_ft.backends.base import CancelIncompleteError, UnreachableError
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import Identity, JobFolder, Tombstone, now

# Kills took less than 0.1 s; who is still there after this long is in the kernel (D state) or not ours to kill.
KILL_SECONDS = 12.0
ROUND_SECONDS = 2.0
LOOK_SECONDS = 0.2
QUIET_LOOKS = 2


async def cancel(folder: JobFolder, identity: Identity, grace: float, by: str, why: str) -> None:
    """Stop the job and return when nothing of it is left. Raises ``CancelIncompleteError``."""
    await asyncio.to_thread(close, folder, identity, by, why)
    if grace > 0:
        await asyncio.to_thread(terminate, folder, identity)
        await _until_nothing_lives(folder, identity, grace)
    await _kill_all(folder, identity)
    await asyncio.to_thread(survey.settle, folder, identity)


def close(folder: JobFolder, identity: Identity, by: str, why: str) -> None:
    """Write the tombstone. Raises ``UnreachableError`` if the disk takes none: then nothing was done."""
    tombstone = Tombstone(name=identity.name, chain_id=identity.chain_id, by=by, why=why, at=now())
    try:
        folder.close(tombstone)
    except OSError as error:
        raise UnreachableError(f"the tombstone of {identity.name} can't be written: {error}") from error


def terminate(folder: JobFolder, identity: Identity) -> None:
    """Tell every agent to stop, and the orphans of a dead one."""
    for node in survey.nodes_started(folder):
        state = agent_state.read_state(folder.node(node)) or {}
        if agent_state.agent_lives(state):
            processes.send(state["agent"], state["agent_start"], signal.SIGTERM)
        else:
            for pid, started in survey.everything(folder, identity, node).items():
                processes.send(pid, started, signal.SIGTERM)


async def _until_nothing_lives(folder: JobFolder, identity: Identity, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not await asyncio.to_thread(survey.everything, folder, identity):
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _kill_all(folder: JobFolder, identity: Identity) -> None:
    end, quiet = time.monotonic() + KILL_SECONDS, 0
    while quiet < QUIET_LOOKS:
        left = await asyncio.to_thread(survey.everything, folder, identity)
        if not left:
            quiet += 1
            await asyncio.sleep(LOOK_SECONDS / 2)
        elif time.monotonic() > end:
            raise CancelIncompleteError(f"{identity.name}: processes {sorted(left)} are still there after SIGKILL")
        else:
            quiet = 0
            await asyncio.to_thread(processes.kill_tree, list(left), ROUND_SECONDS)
    hidden = [node for node in survey.nodes_started(folder) if survey.agent_is_hidden(folder.node(node))]
    if hidden:
        raise CancelIncompleteError(
            f"{identity.name}: the agents of {', '.join(hidden)} live where we can't reach them"
        )
