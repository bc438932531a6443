"""The plugin's entry point: a small web application that is built when the first request comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin


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


class FaultTolerancePlugin(AirflowPlugin):
    """Pages about retry chains."""

    name = "airflow_ft"
    fastapi_apps = [{"app": LazyApp(_build), "url_prefix": "/fault-tolerance", "name": "Fault tolerance"}]  # noqa: RUF012
