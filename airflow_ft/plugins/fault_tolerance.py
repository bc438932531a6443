"""The plugin's entry point: a web application that is built when the first request comes, and a listener.

The listener closes a gap of deferral: a person who ends a task in the second between its deferral and the start of its
trigger, or while no triggerer runs, is heard by nobody else (a trigger that never started gets no ``on_kill``).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from airflow_ft.plugins.pages import REACT_APPS


class LazyApp:
    """An ASGI application that is imported on its first request: other components never pay for it."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._app: Any = None

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer a request."""
        if self._app is None:
            self._app = self._build()
        await self._app(scope, receive, send)


def _build() -> Any:
    from airflow_ft.plugins.web import build_app

    return build_app()


class EndedTaskListener:
    """Sees to it that nothing of a task goes on running that was ended outside of its own process."""

    @hookimpl
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        """A task failed: marked by a person, or given up by the scheduler."""
        _ended(task_instance)

    @hookimpl
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """A task succeeded: marked by a person."""
        _ended(task_instance)

    @hookimpl
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None:
        """A run failed: also by ``dagrun_timeout``, which skips its tasks without a word to anybody else."""
        from airflow_ft.plugins.ended_tasks import stop_all_later

        stop_all_later(dag_run)

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """A component starts: the triggerer's supervisor collects what nobody answers for."""
        if sys.argv[1:2] == ["triggerer"]:  # the component itself doesn't know yet what it is
            from airflow_ft.plugins.collector import start

            start()


def _ended(task_instance: Any) -> None:
    # In the task's own process it is no row of the database, and the task itself has seen to its job.
    if type(task_instance).__module__ == "airflow.models.taskinstance":
        from airflow_ft.plugins.ended_tasks import stop_later

        stop_later(task_instance)


class FaultTolerancePlugin(AirflowPlugin):
    """Pages about retry chains."""

    name = "airflow_ft"
    fastapi_apps = [{"app": LazyApp(_build), "url_prefix": "/fault-tolerance", "name": "Fault tolerance"}]  # noqa: RUF012
    react_apps = REACT_APPS
    listeners = [EndedTaskListener()]  # noqa: RUF012
