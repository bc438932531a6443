"""Two pages a task instance's links lead to: its retry chain, and the end of the training's log. Text only.

Both ask Airflow whether the user may read task instances of this DAG. Logs are written by strangers: they are sent as
``text/plain`` with ``nosniff``, never as markup.

(No ``from __future__ import annotations`` here: FastAPI resolves these annotations at run time.)
"""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.diagnosis.tails import tail_lines
from airflow_ft.views.chain_table import as_text, to_json
from airflow_ft.views.records import ChainNotFoundError, StoredChain, database, read_chain

TAIL_BYTES = 256_000
TAIL_LINES = 2_000
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def build_app() -> FastAPI:
    """Build the application."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.core_api.security import requires_access_dag

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    readable = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))

    @app.get("/chain/{dag_id}", dependencies=[readable])
    def chain(
        dag_id: str, run_id: str, task_id: str, map_index: Annotated[int, Depends(_map_index)], format: str = "text"
    ) -> Response:
        stored = _stored(dag_id, run_id, task_id, map_index)
        if format == "json":
            return JSONResponse(to_json(stored), headers=HEADERS)
        return PlainTextResponse(as_text(stored), headers=HEADERS)

    @app.get("/log/{dag_id}", dependencies=[readable])
    def log(dag_id: str, run_id: str, task_id: str, map_index: Annotated[int, Depends(_map_index)]) -> Response:
        return PlainTextResponse(_log(_stored(dag_id, run_id, task_id, map_index)), headers=HEADERS)

    return app


def _map_index(map_index: str = Query("-1")) -> int:
    """For tasks that aren't mapped Airflow leaves its placeholder in the address."""
    try:
        return int(map_index)
    except ValueError:
        return -1


def _stored(dag_id: str, run_id: str, task_id: str, map_index: int) -> StoredChain:
    try:
        with database() as session:
            return read_chain(session, dag_id, run_id, task_id, map_index)
    except ChainNotFoundError as error:
        raise HTTPException(404, str(error)) from None


def _log(stored: StoredChain) -> str:
    ref = next((attempt.ref for attempt in reversed(stored.attempts) if attempt.ref is not None), None)
    if ref is None:
        return "No attempt has been submitted yet."
    backend = create_backend(ref.backend)
    call: Any = backend.log_tails(ref, TAIL_BYTES)
    try:
        known = backend.secrets(ref)
        tails = asyncio.run(limited(call, LOOK_SECONDS, "reading logs"))
    except BackendError as error:
        return f"The log of {ref.name} can't be read from here: {error}"
    parts = [f"--- {one.source} {one.path}\n" + "\n".join(tail_lines(one.data, TAIL_LINES, known)) for one in tails]
    return "\n\n".join(parts) or f"{ref.name} has written nothing yet."
