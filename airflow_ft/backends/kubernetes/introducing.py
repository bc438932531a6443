"""The pods of a probe job are told where the first of them is, so that their preflights can meet (``preflight_meet``).

Training's operators set ``MASTER_ADDR`` and make a service for it. A probe is a plain Job with neither: its pods know
their number, and nobody's address. Each is told by a command in its container, as an order is.
"""

from __future__ import annotations

import asyncio
import json

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes import wrapping
from airflow_ft.backends.kubernetes.api import ApiError
from airflow_ft.backends.kubernetes.cluster import JobView
from airflow_ft.backends.kubernetes.pods import PodFacts

FILE = f"{wrapping.AGENT_FOLDER}/meet.json"  # what the agent's preflight waits for
SECONDS = 15.0
AT_ONCE = 32
_WRITE = 'printf %s "$1" >"$2.new" && mv "$2.new" "$2"'


async def introduce(view: JobView) -> bool:
    """Tell every pod where the first one is and which one it is itself. ``False``: not all of them run yet."""
    pods = [pod for pod in view.with_agents() if pod.ip]
    if len(pods) < int(str(view.ref.where.get("pods", 1))):
        return False
    pods.sort(key=lambda pod: (len(pod.slot), pod.slot))
    at_once = asyncio.Semaphore(AT_ONCE)

    async def tell(rank: int, pod: PodFacts) -> bool:
        words = json.dumps({"host": pods[0].ip, "rank": rank})
        argv = ["sh", "-c", _WRITE, "sh", words, FILE]
        async with at_once:
            try:
                done = await view.api.execute(view.namespace, pod.name, pod.container, argv, SECONDS)
            except (ApiError, UnreachableError):  # its container has ended, or has just begun
                return False
        return done.code == 0

    return all(await asyncio.gather(*(tell(rank, pod) for rank, pod in enumerate(pods))))
