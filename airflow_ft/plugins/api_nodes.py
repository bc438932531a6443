"""The part of the API that is about nodes: figures, faults on nodes, and their quarantine.

Quarantine is of no DAG: it is kept in Airflow's variables, and who may write those may change it. Figures and faults
are of the DAGs that the user may read.

(No ``from __future__ import annotations`` here: FastAPI resolves these annotations at run time.)
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import VariableDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Path, Query

from airflow_ft.attempts.quarantine import PREFIX
from airflow_ft.plugins.api import ID_LENGTH, MOST_ITEMS, NODE, Session, own_page, readable_dags, utc_now
from airflow_ft.views import nodes as quarantine
from airflow_ft.views.figures import figures
from airflow_ft.views.given import ExtensionGiven, QuarantineGiven, ReleaseGiven
from airflow_ft.views.models import Figures, MayNodes, NodePage, NodeState
from airflow_ft.views.variables import DatabaseStore

CLUSTER = r"^[a-z][a-z0-9_]{0,40}:[^/\x00-\x1f\x7f]{1,100}$"  # as ``cluster_of`` makes them: backend:name

router = APIRouter(prefix="/api/v1", tags=["Fault tolerance"])
Node = Annotated[str, Path(pattern=NODE)]
Cluster = Annotated[str, Query(pattern=CLUSTER)]
Days = Annotated[int, Query(ge=1, le=366)]


def _may(user: Any, method: Literal["GET", "POST", "PUT"], key: str) -> bool:
    return bool(get_auth_manager().is_authorized_variable(method=method, details=VariableDetails(key=key), user=user))


def _may_edit(user: Any, key: str) -> bool:
    return _may(user, "POST", key) and _may(user, "PUT", key)  # a word is a new variable, or replaces an older one


def editable(node: Node, cluster: Cluster, user: GetUserDep) -> None:
    """Refuse who may not write the variables that keep the words about this node."""
    key = quarantine.variable_key(cluster, node)
    if not _may_edit(user, key):
        raise HTTPException(403, "Changing a node's quarantine needs the right to edit variables.")
    if len(key) + len("/0123456789ab") > ID_LENGTH:
        raise HTTPException(422, f"cluster and node: {key!r:.80} is too long for a variable's key.")


changing: dict[str, Any] = {
    "dependencies": [own_page, Depends(editable)],
    "responses": {404: {"description": "Nothing keeps this node out."}},
}


@router.get("/figures")
def sums(db: Session, user: GetUserDep, days: Days = 30) -> Figures:
    """Return what fault tolerance came to in the DAGs that the user may read, and their nodes."""
    return _figures(db, user, days)


@router.get("/nodes")
def nodes(
    db: Session,
    user: GetUserDep,
    days: Days = 30,
    offset: Annotated[int, Query(ge=0, le=quarantine.MOST_ROWS)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = 25,
) -> NodePage:
    """Return a page of nodes: those in quarantine, then those that diagnoses named, most faults first."""
    found = _figures(db, user, days)
    more = offset + limit if offset + limit < len(found.nodes) else None
    items = found.nodes[offset : offset + limit]
    return NodePage(days=days, total=len(found.nodes), items=items, next=more, may=found.may)


@router.post("/nodes/{node}/quarantine", **changing)
def put_in(node: Node, cluster: Cluster, given: QuarantineGiven, db: Session, user: GetUserDep) -> NodeState:
    """Keep a node out of all submissions to a cluster, by this user's word. A later word replaces it."""
    quarantine.put_in(DatabaseStore(db), cluster, node, given.hours, given.why, _name(user), utc_now())
    return _state(db, user, node)


@router.post("/nodes/{node}/extend", **changing)
def extend(node: Node, cluster: Cluster, given: ExtensionGiven, db: Session, user: GetUserDep) -> NodeState:
    """Keep a node so many hours longer in quarantine than it would be."""
    _changed(lambda: quarantine.extend(DatabaseStore(db), cluster, node, given.hours, _name(user), utc_now()))
    return _state(db, user, node)


@router.post("/nodes/{node}/release", **changing)
def release(node: Node, cluster: Cluster, given: ReleaseGiven, db: Session, user: GetUserDep) -> NodeState:
    """Make void what was said of a node until now."""
    _changed(lambda: quarantine.release(DatabaseStore(db), cluster, node, _name(user), utc_now()))
    return _state(db, user, node)


def _changed(change: Callable[[], None]) -> None:
    try:
        change()
    except quarantine.NotInQuarantineError as error:
        raise HTTPException(404, str(error)) from None


def _figures(db: Any, user: Any, days: int) -> Figures:
    now, readable = utc_now(), readable_dags(user, db)
    words = quarantine.all_words(DatabaseStore(db))
    kept = quarantine.in_quarantine(words, now, _may_hear(user, readable))
    found = figures(db, sorted(readable), now, days)
    clusters = tuple(sorted({*quarantine.clusters(words), *found.may.clusters}))
    edit = _may_edit(user, PREFIX)
    may = MayNodes(edit=edit, clusters=clusters if edit else ())
    return found.model_copy(update={"nodes": quarantine.with_quarantine(found.nodes, kept), "may": may})


def _may_hear(user: Any, readable: set[str]) -> quarantine.MayHear:
    all_of_them = _may(user, "GET", PREFIX)
    return lambda entry: all_of_them or entry.word == "person" or entry.dag_id in readable


def _state(db: Any, user: Any, node: str) -> NodeState:
    words, readable = quarantine.all_words(DatabaseStore(db)), readable_dags(user, db)
    kept = quarantine.in_quarantine(words, utc_now(), _may_hear(user, readable))
    return NodeState(name=node, quarantine=kept.get(node, ()))


def _name(user: Any) -> str:
    return str(user.get_name())[:ID_LENGTH]
