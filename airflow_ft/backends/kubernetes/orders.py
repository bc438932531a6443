"""Orders to the agents of a job, by commands in their containers: restart in place, release, dump stacks; and looks.

Looks (``vitals``, ``peek_stacks``) are asked for while training is silent, and cost a command in each container. So
they are for jobs of at most ``MOST_LOOKED_AT`` pods; of larger ones the agents' own lines in the log tell, more rarely.

An order may come any number of times: the agent knows it by its number and its decision's digest. So whatever breaks on
the way is tried again by whoever gave it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from airflow_ft.backends.base import Order, StackGroup, UnreachableError
from airflow_ft.backends.kubernetes import wrapping
from airflow_ft.backends.kubernetes.api import ApiError, Executed
from airflow_ft.backends.kubernetes.cluster import JobView
from airflow_ft.backends.kubernetes.pods import PodFacts
from airflow_ft.core.vitals import RankVitals, read_ranks

ORDER_SECONDS = 25.0  # an agent that is just stopping takes up to 15 s to answer
STACK_SECONDS = 12.0
LOOK_SECONDS = 8.0
AT_ONCE = 32
MOST_LOOKED_AT = 16  # a second's worth of calls (``pace``), which orders of other jobs may be waiting for
TRIES = 3
ACCEPTED, ALREADY, REFUSED = 0, 3, 4


async def restart(view: JobView, order: Order) -> list[str]:
    """Give the order to every node; returns those that refused. One without a live agent refuses."""
    await view.see_pods()
    pods = [pod for pod in view.pods.values() if pod.trains and pod.uid not in view.vanished]
    able = {pod.uid for pod in view.with_agents()}
    refused = [pod.node or pod.name for pod in pods if pod.uid not in able]
    if refused:
        return refused
    answers = await _all(pods, lambda pod: _give(view, pod, "restart", order))
    return [pod.node or pod.name for pod, code in zip(pods, answers, strict=True) if code not in (ACCEPTED, ALREADY)]


async def release(view: JobView, order: Order) -> list[str]:
    """Tell every node that no restart will come; returns those where another decision stands."""
    await view.see_pods()
    pods = view.with_agents()
    answers = await _all(pods, lambda pod: _released(view, pod, order))
    return [pod.node or pod.name for pod, obeys in zip(pods, answers, strict=True) if not obeys]


async def dump_stacks(view: JobView) -> list[StackGroup]:
    """Dump the stacks of every node's processes; a node that doesn't answer is left out."""
    await view.see_pods()
    pods = view.with_agents()
    dumps = await _all(pods, lambda pod: _dump(view, pod))
    return [group for groups in dumps for group in groups]


async def peek_stacks(view: JobView, by_signal: bool) -> list[StackGroup]:
    """Look at the stacks of what is on a CPU. Raises ``UnreachableError`` if not all of it could be seen."""
    words = ["stacks", f"--dir={wrapping.AGENT_FOLDER}", "--peek", *([] if by_signal else ["--no-signal"])]
    seen = await _look(view, words)
    return [group for pod, found in seen for group in _groups(pod, found)]


async def vitals(view: JobView) -> list[RankVitals]:
    """Return what the ranks do. Raises ``UnreachableError`` if not all of them could be seen."""
    seen = await _look(view, ["vitals", f"--dir={wrapping.AGENT_FOLDER}"])
    return [rank for pod, found in seen for rank in read_ranks(pod.node or pod.name, found.get("ranks"))]


async def _look(view: JobView, words: list[str]) -> list[tuple[PodFacts, dict[str, Any]]]:
    """Ask all agents, or nobody: a rank that wasn't asked would look like one that has ended."""
    pods = [pod for pod in view.pods.values() if pod.trains and pod.running and not pod.over]
    pods = [pod for pod in pods if pod.uid not in view.vanished]
    if len(pods) > MOST_LOOKED_AT or not all(pod.agent for pod in pods):
        raise UnreachableError(f"{len(pods)} pods can't all be looked at")

    async def ask(pod: PodFacts) -> tuple[PodFacts, dict[str, Any]]:
        try:
            argv = wrapping.calling(words)
            done = await view.api.execute(view.namespace, pod.name, pod.container, argv, LOOK_SECONDS)
            found = json.loads(done.output)
        except (ApiError, ValueError) as error:
            raise UnreachableError(f"{pod.name} can't be looked at: {error}") from error
        if not isinstance(found, dict):
            raise UnreachableError(f"{pod.name} can't be looked at: {done.output[:100]!r}")
        return pod, found

    return await _all(pods, ask)


async def _all(pods: Sequence[PodFacts], work: Callable[[PodFacts], Awaitable[Any]]) -> list[Any]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(pod: PodFacts) -> Any:
        async with limit:
            return await work(pod)

    return await asyncio.gather(*(one(pod) for pod in pods))


async def _give(view: JobView, pod: PodFacts, action: str, order: Order) -> int:
    words = [
        "order",
        action,
        f"--dir={wrapping.AGENT_FOLDER}",
        f"--generation={order.generation}",
        f"--attempt={view.ref.name}",
        f"--digest={order.digest}",
        f"--by={order.by}",
        f"--note={json.dumps(order.note, separators=(',', ':'))}",
    ]
    done = await _execute(view, pod, words, ORDER_SECONDS)
    view.mark_dirty(pod.uid)
    if done is None:
        return REFUSED
    if done.code not in (ACCEPTED, ALREADY, REFUSED):
        raise UnreachableError(f"the agent in {pod.name} could not be told: {done.errors or done.output:.200}")
    return done.code


async def _released(view: JobView, pod: PodFacts, order: Order) -> bool:
    """A node whose agent is gone, or about to be, needs no release."""
    try:
        if await _give(view, pod, "release", order) != REFUSED:
            return True
    except UnreachableError:
        if pod.node is not None and pod.deleting is not None:
            return True  # it is being deleted, on a node that nobody can reach
        raise
    await view.ask_agent(pod)
    said = view.agents.get(pod.uid)
    return said is None or not said.lives or said.state.get("phase") == "ended"


async def _execute(view: JobView, pod: PodFacts, words: list[str], seconds: float) -> Executed | None:
    """Run the agent's command in the pod; ``None`` if there is no such container any more."""
    for left in reversed(range(TRIES)):
        try:
            argv = wrapping.calling(words)
            return await view.api.execute(view.namespace, pod.name, pod.container, argv, seconds)
        except ApiError as error:
            if error.status == 403:
                raise UnreachableError(f"exec is not allowed: {error}") from error
            return None
        except UnreachableError:
            if not left:
                raise
            await asyncio.sleep(0.5)
    raise AssertionError("unreachable")


async def _dump(view: JobView, pod: PodFacts) -> list[StackGroup]:
    try:
        done = await _execute(view, pod, ["stacks", f"--dir={wrapping.AGENT_FOLDER}"], STACK_SECONDS)
        found = json.loads(done.output) if done is not None else None
    except (UnreachableError, ValueError):
        return []
    return _groups(pod, found)


def _groups(pod: PodFacts, found: Any) -> list[StackGroup]:
    groups = found.get("groups") if isinstance(found, dict) else None
    return [
        StackGroup(
            node=pod.node or pod.name,
            ranks=_ints(entry.get("ranks")),
            pids=_ints(entry.get("pids")),
            stack=str(entry.get("stack") or ""),
            stopped=entry.get("stopped") is True,
        )
        for entry in groups or ()
        if isinstance(entry, dict)
    ]


def _ints(values: object) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, list) else ()
