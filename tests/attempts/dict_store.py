"""A store in memory: Airflow's variables, its XComs or a task's state store, for tests without Airflow."""

from __future__ import annotations

import threading

from pydantic import JsonValue


class DictStore:
    """Keys and JSON values: each write is one key, whole."""

    def __init__(self) -> None:
        self.values: dict[str, JsonValue] = {}
        self._lock = threading.Lock()

    def keys(self, prefix: str) -> list[str]:
        with self._lock:
            return [key for key in self.values if key.startswith(prefix)]

    def get(self, key: str) -> JsonValue:
        return self.values.get(key)

    def set(self, key: str, value: JsonValue) -> None:
        with self._lock:
            self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)
