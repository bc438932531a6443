"""The API behind the tabs and the page, version 1: chains, their runs and evidence, lists, feedback.

Every route asks Airflow's auth manager. Routes about one DAG have its id in the path, so that ``requires_access_dag``
checks just that one; lists are cut to the DAGs that the user may read before they are paged. Feedback needs the right
to edit task instances. The description of it all is at ``openapi.json``, for who is logged in. Nodes and figures are in
``api_nodes``.

(No ``from __future__ import annotations`` here: FastAPI resolves these annotations at run time.)
"""

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from airflow_ft.core.records import UnreadableRecordError
from airflow_ft.views.chain_view import chain_view, run_page
from airflow_ft.views.chain_view import run_id as id_of_run
from airflow_ft.views.detail_models import Feedback, RunDetail
from airflow_ft.views.given import FeedbackGiven
from airflow_ft.views.listing import Filter, write_feedback
from airflow_ft.views.lists import chain_page, run_chains
from airflow_ft.views.markdown import as_markdown
from airflow_ft.views.models import ChainPage, ChainView, RunChains, RunPage, State
from airflow_ft.views.records import ChainNotFoundError, StoredChain, StoredRows, assembled, database, read_rows
from airflow_ft.views.run_detail import run_detail
from airflow_ft.views.runs import runs

ID_LENGTH = 250  # what Airflow allows
NODE = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$"
MOST_ITEMS = 100
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
FaultClassName = Literal[
    "HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN"
]


def session() -> Iterator[Any]:
    """One session of Airflow's database for a request."""
    with database() as opened:
        yield opened


def map_index(map_index: str = Query("-1", max_length=12)) -> int:
    """For tasks that aren't mapped, Airflow leaves its placeholder in some addresses."""
    try:
        return int(map_index)
    except ValueError:
        return -1


# "function": what was written is committed before the answer is sent, so that a page that looks again sees it.
Session = Annotated[Any, Depends(session, scope="function")]
DagId = Annotated[str, Path(min_length=1, max_length=ID_LENGTH)]
Id = Annotated[str, Query(min_length=1, max_length=ID_LENGTH)]
MapIndex = Annotated[int, Depends(map_index)]
readable = Depends(requires_access_dag(method="GET", access_entity=DagAccessEntity.TASK_INSTANCE))
editable = Depends(requires_access_dag(method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE))
router = APIRouter(prefix="/api/v1", tags=["Fault tolerance"])


def from_own_page(request: Request) -> None:
    """Refuse what another site makes a browser send.

    Airflow's cookie isn't sent then (SameSite=Lax); an auth manager's own may be. A form can't send JSON, and a script
    of another site may not without our consent, which nobody gets.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "A change has to come from Airflow's own pages.")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send JSON, with Content-Type: application/json.")


own_page = Depends(from_own_page)


class Missing(BaseModel):
    """Why there is nothing, for a friendly page: ``no_chain``, ``not_begun``, ``unreadable``."""

    detail: str
    reason: Literal["no_chain", "not_begun", "unreadable"]


def readable_dags(user: Any, db: Any) -> set[str]:
    """The ids of the DAGs that this user may read."""
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET", session=db))


def may_edit(user: Any, dag_id: str) -> bool:
    """Whether the user may edit task instances of this DAG."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=DagDetails(id=dag_id), user=user
        )
    )


def _chain(rows: StoredRows) -> StoredChain:
    try:
        return assembled(rows)
    except ChainNotFoundError as error:
        begun = rows.task_state not in (None, "scheduled", "queued")
        raise HTTPException(404, {"detail": str(error), "reason": "no_chain" if begun else "not_begun"}) from None
    except UnreadableRecordError as error:
        raise HTTPException(409, {"detail": str(error), "reason": "unreadable"}) from None


def utc_now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(timezone.utc)


@router.get(
    "/chain/{dag_id}",
    dependencies=[readable],
    response_model=ChainView,
    responses={304: {"description": "Nothing has changed since the given ETag."}, 404: {"model": Missing}},
)
def chain(
    dag_id: DagId, run_id: Id, task_id: Id, index: MapIndex, db: Session, user: GetUserDep, request: Request
) -> Response:
    """Return the retry chain of a task instance. Send the ETag back as If-None-Match: an unchanged one is cheap."""
    rows = read_rows(db, dag_id, run_id, task_id, index)
    tag = f'"{rows.mark}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=HEADERS | {"ETag": tag})
    view = chain_view(_chain(rows), utc_now(), may_judge=may_edit(user, dag_id))
    return Response(view.model_dump_json(), media_type="application/json", headers=HEADERS | {"ETag": tag})


@router.get("/chain/{dag_id}/runs", dependencies=[readable], responses={404: {"model": Missing}})
def chain_runs(
    dag_id: DagId,
    run_id: Id,
    task_id: Id,
    index: MapIndex,
    db: Session,
    before: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 25,
) -> RunPage:
    """Return a page of the chain's runs, the newest first."""
    return run_page(_chain(read_rows(db, dag_id, run_id, task_id, index)), utc_now(), before, limit)


@router.get("/chain/{dag_id}/runs/{run}", dependencies=[readable], responses={404: {"model": Missing}})
def chain_run(
    dag_id: DagId,
    run: Annotated[str, Path(pattern=r"^\d{1,6}-\d{1,6}$")],
    run_id: Id,
    task_id: Id,
    index: MapIndex,
    db: Session,
) -> RunDetail:
    """Return one run: evidence, judgement, decision, recovery. ``run`` is attempt and generation, as "3-0"."""
    stored = _chain(read_rows(db, dag_id, run_id, task_id, index))
    detail = run_detail(stored, run, _feedback(stored, run))
    if detail is None:
        raise HTTPException(404, {"detail": f"The chain has no run {run}.", "reason": "no_chain"})
    return detail


@router.get("/chain/{dag_id}/markdown", dependencies=[readable], responses={404: {"model": Missing}})
def chain_markdown(
    dag_id: DagId, run_id: Id, task_id: Id, index: MapIndex, db: Session, request: Request
) -> PlainTextResponse:
    """Return the chain as Markdown."""
    from airflow_ft.operators.links import own_page

    view = chain_view(_chain(read_rows(db, dag_id, run_id, task_id, index)), utc_now())
    return PlainTextResponse(as_markdown(view, own_page(dag_id, run_id, task_id, index)), headers=HEADERS)


@router.post(
    "/chain/{dag_id}/runs/{run}/feedback", dependencies=[own_page, editable], responses={404: {"model": Missing}}
)
def give_feedback(
    dag_id: DagId,
    run: Annotated[str, Path(pattern=r"^\d{1,6}-\d{1,6}$")],
    run_id: Id,
    task_id: Id,
    index: MapIndex,
    given: FeedbackGiven,
    db: Session,
    user: GetUserDep,
) -> Feedback:
    """Store whether the diagnosis of a run was right, and which class would have been. A later word replaces it."""
    stored = _chain(read_rows(db, dag_id, run_id, task_id, index))
    judged = next((one for one in runs(stored) if id_of_run(one) == run and one.incident is not None), None)
    if judged is None:
        raise HTTPException(404, {"detail": f"Run {run} has no diagnosis to judge.", "reason": "no_chain"})
    said = Feedback(
        right=given.right,
        fault_class=None if given.right else given.fault_class,
        note=given.note,
        by=str(user.get_name())[:ID_LENGTH],
        at=utc_now().timestamp(),
    )
    record = said.model_dump(mode="json") | {"diagnosed": judged.fault_class}
    write_feedback(db, dag_id, run_id, task_id, index, run, record)
    return said


def _feedback(stored: StoredChain, run: str) -> Feedback | None:
    said = stored.feedback.get(run)
    return Feedback.model_validate(said) if isinstance(said, dict) and "right" in said else None


@router.get("/chains/{dag_id}", dependencies=[readable])
def chains_of_run(dag_id: DagId, run_id: Id, db: Session) -> RunChains:
    """Return all chains of a DAG run, those that need a person first."""
    return run_chains(db, dag_id, run_id, utc_now())


@router.get("/chains")
def chains(
    db: Session,
    user: GetUserDep,
    state: State | None = None,
    fault_class: FaultClassName | None = None,
    node: Annotated[str | None, Query(pattern=NODE)] = None,
    dag_id: Annotated[str | None, Query(min_length=1, max_length=ID_LENGTH)] = None,
    days: Annotated[int | None, Query(ge=1, le=366)] = None,
    after: Annotated[str | None, Query(max_length=600)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 25,
) -> ChainPage:
    """Return a page of the chains of all DAGs that the user may read: those that go on first, then the newest."""
    now = utc_now()
    allowed = readable_dags(user, db)
    wanted = Filter(
        dag_ids=sorted(allowed & {dag_id} if dag_id is not None else allowed),
        fault_class=fault_class,
        node=node,
        since=now - timedelta(days=days) if days else None,
    )
    try:
        return chain_page(db, wanted, now, state=state, after=after, limit=limit)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, user: GetUserDep) -> JSONResponse:
    """Return the description of this API."""
    made = get_openapi(title="Fault tolerance", version="1", routes=request.app.routes)
    return JSONResponse(made, headers=HEADERS)
