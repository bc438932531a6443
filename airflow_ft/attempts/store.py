"""The chain in Airflow's task state store: one key for the head, one for each attempt.

The store has no transactions and no list of keys, so the order of writes carries the meaning: an attempt's own record
is written first and is the commit, the head follows. ``load`` folds an attempt that was concluded but not yet taken
into the head, so that a crash between the two writes loses nothing.

Records stay below 16 kB each: a chain of 128 attempts must not grow a value that the UI or a person's PATCH would
refuse (Airflow's REST limit is 64 kB), and every write crosses three processes.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import JsonValue

from airflow_ft.attempts.ports import Conclusion, KeyValueStore
from airflow_ft.attempts.probe_work import Work
from airflow_ft.core.chain import Attempt, AttemptState, Chain
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.core.sanitise import sanitise, size_of
from airflow_ft.core.slimming import (
    slimmed,
    slimmed_chain,
    slimmed_debts,
    slimmed_notices,
    slimmed_outcome,
    slimmed_progress,
)

R = TypeVar("R", Attempt, Conclusion)

CHAIN_KEY = "ft/chain"
LIMIT_BYTES = 16_000


def attempt_key(number: int) -> str:
    """Return the key of attempt ``number``."""
    return f"ft/attempt/{number:04d}"


class ChainStore:
    """Reads and writes the chain of one task instance."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def load(self) -> Chain | None:
        """Return the chain's head, or ``None`` before the first attempt. Raises ``UnreadableRecordError``."""
        value = self._store.get(CHAIN_KEY)
        return None if value is None else Chain.from_record(value)

    def save(self, chain: Chain) -> None:
        """Write the chain's head."""
        self._store.set(CHAIN_KEY, chain_record(chain))

    def load_attempt(self, number: int) -> Attempt | None:
        """Return an attempt's record, or ``None`` if it was never written (or can't be read any more)."""
        value = self._store.get(attempt_key(number))
        try:
            return None if value is None else Attempt.from_record(value)
        except UnreadableRecordError:
            return None

    def save_attempt(self, attempt: Attempt) -> None:
        """Write an attempt's record."""
        self._store.set(attempt_key(attempt.number), attempt_record(attempt))

    def probe_work(self, name: str) -> Work:
        """Return where the jobs of a bisect between two attempts stand, for whoever has to remove them."""
        return Work(self._store, name)

    def pending_conclusion(self, chain: Chain) -> Attempt | None:
        """Return the open attempt if it is concluded already: the try died between the two writes."""
        attempt = self.load_attempt(chain.open) if chain.open is not None else None
        return attempt if attempt is not None and attempt.state is AttemptState.CONCLUDED else None


def chain_record(chain: Chain) -> JsonValue:
    """Return what is stored of a chain's head: made smaller until it fits."""
    return sanitise(slimmed_chain(chain, LIMIT_BYTES - 500).to_record(), LIMIT_BYTES * 2)


def attempt_record(attempt: Attempt) -> JsonValue:
    """Return what is stored of an attempt: made smaller until it fits."""
    return sanitise(fitted(attempt).to_record(), LIMIT_BYTES)


def fitted(record: R, limit_bytes: int = LIMIT_BYTES - 500) -> R:
    """Return an attempt or a conclusion that fits: first its notices are made smaller, then its incidents."""
    if size_of(record.to_record()) <= limit_bytes:
        return record
    record = record.but(
        notices=slimmed_notices(record.notices),
        debts=slimmed_debts(record.debts),
        progress=slimmed_progress(record.progress),
        outcome=slimmed_outcome(record.outcome),
    )
    rest = size_of(record.but(incidents=()).to_record())
    return record.but(incidents=slimmed(record.incidents, max(0, limit_bytes - rest)))
