"""Starting the agents of a placed job, and completing what a launcher left undone that died half-way.

Any number of launchers may do this at once: a node that has a state is never started again, two that start one node
at the same moment meet at the agent's lock, and an agent starts nothing once the tombstone exists. The command's argv
goes to exec as it was given; no shell is anywhere.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_ft.agent import state as agent_state
from airflow_ft.backends import agent_archive, subprocesses
from airflow_ft.backends.local.folder import Identity, JobFolder, Placement, Spec
from airflow_ft.backends.local.pool import Pool
from airflow_ft.backends.local.survey import MARKER

START_SECONDS = 75.0  # the agent itself answers within 60 s
AT_ONCE = 4
# How long torchrun's nodes wait for each other: torch's own default.
JOIN_SECONDS = 600


def launch(folder: JobFolder, identity: Identity, placement: Placement) -> str:
    """Start the agents that were not started yet; returns what went wrong, in words for a person."""
    missing = [node for node in placement.nodes if _to_be_started(folder, identity, node)]
    if not missing or folder.tombstone():
        return ""
    spec = folder.spec()
    if spec is None:
        return "" if folder.tombstone() else "spec.json is missing: the job can't be started"
    with ThreadPoolExecutor(min(AT_ONCE, len(missing))) as threads:
        told = threads.map(lambda node: start_node(folder, identity, placement, spec, node), missing)
        return "; ".join(filter(None, told))


def start_node(folder: JobFolder, identity: Identity, placement: Placement, spec: Spec, node: str) -> str:
    """Start one agent. "" if there is one now, or must not be."""
    directory = folder.node(node)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    log = os.path.join(directory, "launch.log")
    try:
        done = subprocesses.run(
            agent_command(folder, identity, placement, spec, node),
            START_SECONDS,
            env=environment(folder, identity, placement, spec, node),
            cwd=spec.workdir,
            output=log,
        )
    except OSError as error:
        return f"the agent of {node} could not be started: {error}"
    if done.code in (0, agent_state.EXIT_IN_USE, agent_state.EXIT_CANCELLED):
        return ""
    with open(log, "rb") as file:
        return f"the agent of {node} could not be started: {file.read()[-500:].decode('utf-8', 'replace').strip()}"


def agent_command(folder: JobFolder, identity: Identity, placement: Placement, spec: Spec, node: str) -> list[str]:
    """The agent's command line. Isolated and without site: it needs the standard library alone, and starts faster."""
    directory = folder.node(node)
    archive = agent_archive.build_agent_archive(Path(folder.root, "agents"))
    options = {
        "dir": directory,
        "attempt": identity.name,
        "incarnation": identity.uid,
        "hold": identity.hold,
        "grace": identity.grace,
        "nonce": identity.uid[:12],
        "unless-exists": folder.tombstone_path,
        "output": os.path.join(directory, "output.log"),
        "vitals": 0,  # /proc is read directly (``vitals``)
    }
    if identity.preflight:
        options["preflight"] = json.dumps(preflight(folder, identity, placement, node))
    given = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-I", "-S", str(archive), "run", *given, "--once", "--detach", "--", *spec.argv]


def preflight(folder: JobFolder, identity: Identity, placement: Placement, node: str) -> dict[str, object]:
    """What the agent looks at before training. The port beside the store's is free: an address is one job's alone."""
    peers = [
        [name, address, placement.port + 1] for name, address in zip(placement.nodes, placement.addresses, strict=True)
    ]
    ours = {"node": node, "peers": peers, "rank": placement.nodes.index(node), "shared": True}
    return {**identity.preflight, **ours}


def environment(folder: JobFolder, identity: Identity, placement: Placement, spec: Spec, node: str) -> dict[str, str]:
    """The environment of agent and command on one node. PET_* are torchrun's options as variables: the user's win."""
    rank = placement.nodes.index(node)
    torchrun = {
        "PET_NNODES": str(len(placement.nodes)),
        "PET_NODE_RANK": str(rank),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{placement.addresses[0]}:{placement.port}",
        # On one machine every node believes that it hosts 127.0.0.1: it has to be said.
        "PET_RDZV_CONF": f"is_host={'true' if rank == 0 else 'false'},join_timeout={JOIN_SECONDS}",
        "PET_LOCAL_ADDR": placement.addresses[rank],
        "PET_MAX_RESTARTS": "0",
        "PET_LOG_DIR": os.path.join(folder.node(node), "ranks"),
        "PET_TEE": "3",  # to the console and to a file for each rank
    }
    ours = {
        MARKER: identity.marker,
        "FT_CHAIN_ID": identity.chain_id,
        "FT_ATTEMPT": str(identity.attempt),
        "FT_RESUME_FROM": identity.resume_from,
        "FT_NODE": node,
        "FT_NODE_RANK": str(rank),
        "FT_NNODES": str(len(placement.nodes)),
    }
    return {**torchrun, **spec.env, **ours}


def _to_be_started(folder: JobFolder, identity: Identity, node: str) -> bool:
    if os.path.lexists(os.path.join(folder.node(node), "state.json")) or folder.lost(node):
        return False
    return Pool(folder.root, identity.pool, identity.pool_nodes).down(node) is None
