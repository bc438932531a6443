"""An auth manager with rights for each DAG: Airflow's simple one knows only roles.

A user named ``only-DAG`` may see that DAG and no other, with the role's other rights.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class PerDagAuthManager(SimpleAuthManager):
    """The simple auth manager, narrowed."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        _, narrow, dag_id = user.username.partition("only-")
        if narrow and (details is None or details.id != dag_id):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
