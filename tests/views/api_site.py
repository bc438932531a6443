"""The plugin's application with as much of Airflow around it as it asks: who is logged in, and what they may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.views.chains import Tables


@dataclass
class Reader:
    """A user who may see some DAGs, and edit some; ``variables`` are the methods that they may use on variables."""

    reads: frozenset[str]
    edits: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()

    def get_name(self) -> str:
        return "reader"


class Manager:
    """As much of an auth manager as the API asks."""

    def is_authorized_dag(self, *, method: str, user: Reader, access_entity: Any = None, details: Any = None) -> bool:
        allowed = user.reads if method == "GET" else user.edits
        return details.id in allowed if details and details.id else False

    def is_authorized_variable(self, *, method: str, user: Reader, details: Any = None) -> bool:
        return method in user.variables and details.key.startswith("ft_quarantine")

    def get_authorized_dag_ids(self, *, user: Reader, method: str = "GET", session: Any = None) -> set[str]:
        return set(user.reads)


@dataclass
class Site:
    """The application, its tables, and who is logged in."""

    http: Any
    tables: Tables
    app: Any
    user: Reader | None

    def get(self, path: str, **more: Any) -> Any:
        return self.http.get(path, **more)
