"""Buttons on the task instance: the training's log, and the retry chain. Both pages are the plugin's."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

PREFIX = "/fault-tolerance"


def page(kind: str, ti_key: Any) -> str:
    """Return the address of a page about one task instance."""
    from airflow.sdk.configuration import conf

    query = urlencode({"run_id": ti_key.run_id, "task_id": ti_key.task_id, "map_index": ti_key.map_index})
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{base}{PREFIX}/{kind}/{quote(ti_key.dag_id, safe='')}?{query}"


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


class RetryChainLink(BaseOperatorLink):
    """The retry chain as a table."""

    name = "Retry chain"

    @property
    def xcom_key(self) -> str:
        """The XCom that holds the link."""
        return "ft_link_chain"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the link."""
        return page("chain", ti_key)
