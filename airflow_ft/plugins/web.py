"""The plugin's web application: the API, the files of the tabs, and pages of plain text that links lead to.

All but the files ask Airflow whether the user may read task instances of this DAG. Logs are written by strangers: they
are sent as ``text/plain`` with ``nosniff``, never as markup.

(No ``from __future__ import annotations`` here: FastAPI resolves these annotations at run time.)
"""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.backends.base import BackendError
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.chain import Attempt
from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.diagnosis.tails import tail_lines
from airflow_ft.views.chain_table import as_text, to_json
from airflow_ft.views.records import ChainNotFoundError, StoredChain, read_chain

STATIC = Path(__file__).parent / "static"
TAIL_BYTES = 256_000
TAIL_LINES = 2_000


def build_app() -> FastAPI:
    """Build the application."""
    from airflow_ft.plugins import api_nodes
    from airflow_ft.plugins.api import HEADERS, DagId, Id, MapIndex, Session, readable, router

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    app.include_router(api_nodes.router)
    app.add_exception_handler(RequestValidationError, refused)
    number = Annotated[int | None, Query(ge=0, le=1_000_000)]

    @app.get("/chain/{dag_id}", dependencies=[readable], include_in_schema=False)
    def chain(dag_id: DagId, run_id: Id, task_id: Id, index: MapIndex, db: Session, format: str = "text") -> Response:
        stored = _stored(db, dag_id, run_id, task_id, index)
        if format == "json":
            return JSONResponse(to_json(stored), headers=HEADERS)
        return PlainTextResponse(as_text(stored), headers=HEADERS)

    @app.get("/log/{dag_id}", dependencies=[readable], include_in_schema=False)
    def log(dag_id: DagId, run_id: Id, task_id: Id, index: MapIndex, db: Session, attempt: number = None) -> Response:
        return PlainTextResponse(_log(_stored(db, dag_id, run_id, task_id, index), attempt), headers=HEADERS)

    @app.get("/job/{dag_id}", dependencies=[readable], include_in_schema=False)
    def job(dag_id: DagId, run_id: Id, task_id: Id, index: MapIndex, db: Session, attempt: number = None) -> Response:
        return PlainTextResponse(_job(_stored(db, dag_id, run_id, task_id, index), attempt), headers=HEADERS)

    app.mount("/static", Files(directory=STATIC), name="airflow-ft-static")
    return app


def refused(request: Request, error: Exception) -> Response:
    """Say what is wrong with a request, without what was sent: half a character or a NaN fits into no answer."""
    told = error.errors() if isinstance(error, RequestValidationError) else ()
    detail = [{name: one[name] for name in ("loc", "msg", "type")} for one in told]
    return JSONResponse({"detail": detail}, 422)


class Files(StaticFiles):
    """The files of the tabs. A browser asks each time whether they are still the same: an upgrade shows at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return a file."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def _stored(db: Any, dag_id: str, run_id: str, task_id: str, map_index: int) -> StoredChain:
    try:
        return read_chain(db, dag_id, run_id, task_id, map_index)
    except ChainNotFoundError as error:
        raise HTTPException(404, str(error)) from None
    except UnreadableRecordError as error:
        raise HTTPException(409, str(error)) from None


def _attempt(stored: StoredChain, number: int | None) -> Attempt | None:
    """The attempt with this number, or the newest one that has a job."""
    of_jobs = [attempt for attempt in stored.attempts if attempt.ref is not None]
    if number is None:
        return of_jobs[-1] if of_jobs else None
    return next((attempt for attempt in of_jobs if attempt.number == number), None)


def _job(stored: StoredChain, number: int | None) -> str:
    attempt = _attempt(stored, number)
    if attempt is None or attempt.ref is None:
        return "No such attempt has been submitted."
    ref = attempt.ref
    lines = [
        f"Job {ref.name} of attempt {ref.attempt}, backend {ref.backend}",
        *([f"somebody else's: {ref.foreign}; {ref.not_ours or 'taken over'}"] if ref.foreign else []),
        f"uid: {ref.uid}",
        f"submitted: {ref.submitted_at:%Y-%m-%d %H:%M:%S} UTC",
        f"nodes: {', '.join(attempt.nodes) or 'not known yet'}",
        f"where: {json.dumps(ref.where, indent=1, sort_keys=True)}",
        f"outcome: {attempt.outcome.text if attempt.outcome else 'it has not ended'}",
    ]
    return "\n".join(lines) + "\n"


def _log(stored: StoredChain, number: int | None) -> str:
    attempt = _attempt(stored, number)
    if attempt is None or attempt.ref is None:
        return "No such attempt has been submitted yet."
    ref = attempt.ref
    backend = create_backend(ref.backend)
    call: Any = backend.log_tails(ref, TAIL_BYTES)
    try:
        known = backend.secrets(ref)
        tails = asyncio.run(limited(call, LOOK_SECONDS, "reading logs"))
    except BackendError as error:
        return f"The log of {ref.name} can't be read from here: {error}"
    parts = [f"--- {one.source} {one.path}\n" + "\n".join(tail_lines(one.data, TAIL_LINES, known)) for one in tails]
    return "\n\n".join(parts) or f"{ref.name} has written nothing yet."
