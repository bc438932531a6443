"""Airflow's variables from outside of a task: where the words about nodes are that all DAGs share.

A task reads them with the SDK (``operators.shared``); the command line and the plugin read the table itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import JsonValue

from airflow_ft.views.records import database

MOST_WORDS = 5_000  # a word is 1 kB at most, and ends after some days


class DatabaseStore:
    """A ``SharedStore`` in Airflow's database: in the session that is given, else in one for each call."""

    def __init__(self, session: Any = None) -> None:
        self._session = session

    def all(self, prefix: str) -> dict[str, JsonValue]:
        """Return all that begins so, the newest first, in one query. A value that can't be read is left out."""
        from airflow.models import Variable
        from sqlalchemy import select

        begins = Variable.key.startswith(prefix, autoescape=True)
        query = select(Variable).where(begins).order_by(Variable.id.desc()).limit(MOST_WORDS)
        found: dict[str, JsonValue] = {}
        with self._opened() as session:
            for row in session.scalars(query, execution_options={"populate_existing": True}):
                try:
                    if row.key.startswith(prefix):  # SQLite doesn't tell capitals from small letters
                        found[row.key] = json.loads(row.val)
                except (TypeError, ValueError):
                    continue  # encrypted with a key that is gone, or written by somebody else
        return found

    def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin so."""
        return list(self.all(prefix))

    def get(self, key: str) -> JsonValue:
        """Return a value, or ``None``."""
        return self.all(key).get(key)

    def set(self, key: str, value: JsonValue) -> None:
        """Store a value."""
        from airflow.models import Variable

        with self._opened() as session:
            Variable.set(key, value, serialize_json=True, session=session)

    def delete(self, key: str) -> None:
        """Remove a key."""
        from airflow.models import Variable

        with self._opened() as session:
            Variable.delete(key, session=session)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if self._session is not None:
            yield self._session
            return
        with database() as session:
            yield session
