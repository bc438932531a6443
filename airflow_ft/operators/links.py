"""Buttons on the task instance: the training's log, its job, and the retry chain. The pages are the plugin's."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

PREFIX = "/fault-tolerance"
ROUTE = "fault-tolerance"


def page(kind: str, ti_key: Any) -> str:
    """Return the address of a page about one task instance."""
    query = {"run_id": ti_key.run_id, "task_id": ti_key.task_id, "map_index": ti_key.map_index}
    return _address(f"{PREFIX}/{kind}/{quote(ti_key.dag_id, safe='')}", query)


def own_page(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """Return the address of a chain's own page in the menu *Fault tolerance*: notifications and Markdown lead there."""
    query = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
    return _address(f"/plugin/{ROUTE}", query)


def _address(path: str, query: dict[str, Any]) -> str:
    from airflow.sdk.configuration import conf

    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}{path}?{urlencode(query)}"


class TrainingLogLink(BaseOperatorLink):
    """The training's own log, the end of it."""

    name = "Training log"

    @property
    def xcom_key(self) -> str:
        """The XCom that holds the link."""
        return "ft_link_log"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link."""
        return page("log", ti_key)


class TrainingJobLink(BaseOperatorLink):
    """The job in its own system: backend, name, id, and where it is."""

    name = "Training job"

    @property
    def xcom_key(self) -> str:
        """The XCom that holds the link."""
        return "ft_link_job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link."""
        return page("job", ti_key)


class RetryChainLink(BaseOperatorLink):
    """The retry chain on its own page."""

    name = "Retry chain"

    @property
    def xcom_key(self) -> str:
        """The XCom that holds the link."""
        return "ft_link_chain"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link."""
        return own_page(ti_key.dag_id, ti_key.run_id, ti_key.task_id, ti_key.map_index)
