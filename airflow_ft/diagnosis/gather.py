"""Gather: ask a backend for everything that a diagnosis is made of, within limits of bytes and time.

Feeds ``core.classify`` through ``Facts``. What one question can't get is said in ``problems`` and doesn't stop the
other one. Only if *nothing* can be seen is the backend's own error raised: unreachable is not dead, and a diagnosis
from no evidence at all would be one of the network's.

What the chain's last good attempt printed while all was well is asked for at the same time: against it the news in a
log of this one can be seen. It is only good to have: nothing is missing where it can't be had any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_ft.backends.base import Backend, BackendError, LogTail, UnreachableError
from airflow_ft.backends.time_limits import within
from airflow_ft.core.chain import JobRef
from airflow_ft.core.facts import LogText
from airflow_ft.core.faults import Evidence
from airflow_ft.core.loglines import lines_of
from airflow_ft.core.novelty import healthy_part


@dataclass(frozen=True)
class Limits:
    """DESIGN §3: 64 kB of each log, 64 MB of all; each question has a deadline."""

    log_bytes: int = 64 * 1024
    all_bytes: int = 64 * 1024 * 1024
    seconds: float = 60.0


@dataclass(frozen=True)
class Gathered:
    """What was gathered. ``dropped`` names the logs that did not fit.

    ``good_logs`` are those of the last good attempt up to its last step.
    """

    logs: tuple[LogText, ...] = ()
    good_logs: tuple[LogText, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


async def gather(
    backend: Backend, ref: JobRef, limits: Limits | None = None, *, good: JobRef | None = None
) -> Gathered:
    """Fetch log tails and evidence. Raises ``BackendError`` if neither could be had.

    :param good: the chain's last attempt that made steps.
    """
    limits = limits or Limits()
    tails, evidence, healthy = await asyncio.gather(
        within(limits.seconds, backend.log_tails(ref, limits.log_bytes)),
        within(limits.seconds, backend.evidence(ref)),
        _good_logs(backend, good, limits),
        return_exceptions=True,
    )
    problems = [_problem("logs", tails, limits), _problem("evidence", evidence, limits)]
    if isinstance(tails, BaseException) and isinstance(evidence, BaseException):
        raise UnreachableError("; ".join(filter(None, problems))) from tails
    if isinstance(healthy, BaseException):
        raise healthy
    logs, dropped = ((), ()) if isinstance(tails, BaseException) else _fit(tails, limits)
    return Gathered(
        logs=logs,
        good_logs=healthy,
        evidence=() if isinstance(evidence, BaseException) else tuple(evidence),
        dropped=dropped,
        problems=tuple(problem for problem in problems if problem),
    )


async def _good_logs(backend: Backend, good: JobRef | None, limits: Limits) -> tuple[LogText, ...]:
    if good is None:
        return ()
    try:
        tails = await within(limits.seconds, backend.log_tails(good, limits.log_bytes))
    except (BackendError, TimeoutError):
        return ()  # it may be gone with its nodes
    healthy = ((tail, healthy_part(lines_of(tail.data))) for tail in _fit(tails, limits)[0])
    return tuple(
        LogText(source=tail.source, data="\n".join(lines).encode(), node=tail.node) for tail, lines in healthy if lines
    )


def _problem(what: str, answer: object, limits: Limits) -> str:
    if not isinstance(answer, BaseException):
        return ""
    if isinstance(answer, TimeoutError):
        return f"{what}: no answer within {limits.seconds:.0f} s"
    if isinstance(answer, BackendError):
        return f"{what}: {answer}"
    raise answer  # a bug or a cancellation: not ours to hide


def _fit(tails: Sequence[LogTail], limits: Limits) -> tuple[tuple[LogText, ...], tuple[str, ...]]:
    """Keep what fits. With too many logs each is cut further, down to 4 kB; then the last ones are dropped."""
    share = max(4096, min(limits.log_bytes, limits.all_bytes // max(1, len(tails))))
    kept: list[LogText] = []
    dropped: list[str] = []
    room = limits.all_bytes
    for tail in tails:
        data = tail.data[-share:]
        if len(data) > room:
            dropped.append(tail.source)
            continue
        room -= len(data)
        kept.append(LogText(source=tail.source, data=data, node=tail.node, trust=tail.trust))
    return tuple(kept), tuple(dropped)
