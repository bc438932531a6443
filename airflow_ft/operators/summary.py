"""The end of an attempt in the try's log: a summary, and the tail of the training's own logs.

The worker writes it, not the trigger: Airflow truncates a trigger's log when a try is deferred twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.ports import Conclusion
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Attempt, Chain, Incident, JobRef
from airflow_ft.core.story import fault_sentence, recovery_words
from airflow_ft.diagnosis.tails import tail_lines

TAIL_BYTES = 32_000
SOURCES = 16
SUMMARY_KEYS = ("step", "total", "loss", "checkpoint")


def log_summary(log: Any, chain: Chain, attempt: Attempt, conclusion: Conclusion, lines: int) -> None:
    """Write what the attempt came to, and the last ``lines`` lines of each of its logs."""
    log.info("Attempt %d: %s", conclusion.attempt, conclusion.outcome.text)
    log_incidents(log, conclusion.incidents)
    for warning in conclusion.outcome.warnings:
        log.warning("%s", warning)
    log.info("Restarts %d of %d used.", chain.ledger.restarts, chain.max_restarts)
    if attempt.ref is not None and lines > 0:
        _log_tails(log, attempt.ref, lines)


def result_of(chain: Chain, store: ChainStore) -> dict[str, Any]:
    """Return what a task whose training is done returns: a few facts for the tasks after it."""
    last = store.load_attempt(chain.attempts - 1)
    progress = last.progress.to_record() if last is not None and last.progress is not None else {}
    seen = {key: progress[key] for key in SUMMARY_KEYS if key in progress}
    return {"chain_id": chain.chain_id, "attempts": chain.attempts, "restarts": chain.ledger.restarts, **seen}


def log_incidents(log: Any, incidents: Sequence[Incident]) -> None:
    """Write what happened, what it was taken for, and whether training has recovered from it."""
    for incident in incidents:
        log.info("%s", fault_sentence(incident))
        if incident.diagnosis.root is not None:
            log.info("Root line (%s): %s", incident.diagnosis.root.source, incident.diagnosis.root.text)
        if incident.diagnosis.advice:
            log.info(
                "Advice: %s (A class is a help for the decision, not a confirmed root cause.)",
                incident.diagnosis.advice,
            )
        if incident.recovery is not None:
            log.info("Recovery: %s", recovery_words(incident.recovery))


def _log_tails(log: Any, ref: JobRef, lines: int) -> None:
    try:
        tails = asyncio.run(
            limited(create_backend(ref.backend).log_tails(ref, TAIL_BYTES), LOOK_SECONDS, "reading logs")
        )
    except BackendError as error:
        log.warning("The training's log can't be read: %s", error)
        return
    for tail in tails[:SOURCES]:
        log.info("--- the end of %s%s", tail.source, f" ({tail.path})" if tail.path else "")
        for line in tail_lines(tail.data, lines):
            log.info("%s", line)
