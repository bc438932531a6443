"""What an account has to be allowed in a namespace, what for, and what does not work without it.

One table: the Role of the documentation is made from it (``role``), and ``airflow ft doctor --conn`` asks the cluster
for every line of it (``findings``), beside which kinds it serves, its version and its clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from airflow_ft.backends.base import UnreachableError
from airflow_ft.backends.kubernetes.api import Api, ApiError, namespace_or_own
from airflow_ft.backends.kubernetes.kinds import KINDS, Json, walk

MAX_SKEW_SECONDS = 5.0  # time stamps of logs and ours are compared
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Permission(NamedTuple):
    """Verbs on one resource. ``without`` says what does not work; empty: nothing works."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    without: str = ""


class Finding(NamedTuple):
    """One thing that was looked at. ``ok`` is ``None`` for what only limits."""

    name: str
    ok: bool | None
    text: str


NAMESPACED = (
    Permission("", "pods", ("get", "list", "watch"), "the state of a job is that of its pods"),
    Permission("", "pods", ("delete",), "stop pods sooner than their own grace", "a cancel takes as long as pods want"),
    Permission("", "pods/log", ("get",), "progress and evidence", "no progress, no hang detection, no log evidence"),
    # Websocket clients asked for get in older servers, for create since 1.37.
    Permission("", "pods/exec", ("create", "get"), "orders to the agents", "no restart in place, no stacks"),
    Permission("", "configmaps", ("get", "create", "patch", "delete"), "the agent, and the record of each attempt"),
    Permission("", "events", ("list",), "evidence", "why pods can't start is told in less detail"),
    Permission("", "events", ("create",), "the story in kubectl describe", "kubectl describe tells no story"),
)
JOB_VERBS = ("get", "list", "watch", "create", "patch", "delete")
CLUSTER_WIDE = (
    Permission(
        "",
        "nodes",
        ("get", "list", "watch"),
        "lost nodes, and how many there are",
        "a lost node is seen late, and exclusions are limited to what the policy allows where the pool can't be seen",
    ),
)


def job_permissions() -> tuple[Permission, ...]:
    """Return the permissions on each kind of job."""
    found = dict.fromkeys((kind.group, kind.plural, kind.kind) for kind in KINDS.values())
    return tuple(Permission(group, plural, JOB_VERBS, f"a {kind}") for group, plural, kind in found)


def role(name: str = "airflow-ft") -> list[Json]:
    """Return the Role and the ClusterRole of worker and triggerer, as manifests."""
    rules = [_rule(one) for one in (*NAMESPACED, *job_permissions())]
    api = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": api, "kind": "Role", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": api,
            "kind": "ClusterRole",
            "metadata": {"name": f"{name}-nodes"},
            "rules": [_rule(one) for one in CLUSTER_WIDE],
        },
    ]


def _rule(permission: Permission) -> Json:
    return {"apiGroups": [permission.group], "resources": [permission.resource], "verbs": list(permission.verbs)}


async def findings(conn_id: str, namespace: str | None = None) -> list[Finding]:
    """Look at a cluster with the eyes of a connection. Changes nothing."""
    api = Api(conn_id)
    try:
        where = await namespace_or_own(api, namespace)
        reached = await _reached(api)
        if not reached.ok:
            return [reached]
        served = await asyncio.gather(*(_served(api, version) for version in {v for v, _ in KINDS}))
        groups = {version.partition("/")[0] for version in served if version}
        kinds = [one for one in job_permissions() if one.group in groups]
        permissions = [*NAMESPACED, *CLUSTER_WIDE, *kinds]
        allowed = await asyncio.gather(*(_allowed(api, where, one) for one in permissions))
        return [
            reached,
            await _clock(api),
            _kinds({version for version in served if version}),
            *allowed,
            *await _pod_security(api, where),
        ]
    finally:
        await api.close()


async def _reached(api: Api) -> Finding:
    try:
        version = await api.get("/version")
    except (ApiError, UnreachableError) as error:
        return Finding("cluster", ok=False, text=f"{error}. Check the connection {api.conn_id!r}")
    return Finding("cluster", ok=True, text=f"Kubernetes {version.get('gitVersion')}")


async def _clock(api: Api) -> Finding:
    async with api.stream("/version") as response:
        theirs = response.headers.get("Date")
    if theirs is None:
        return Finding("clock", ok=None, text="the server tells no time")
    skew = abs((parsedate_to_datetime(theirs) - datetime.now(timezone.utc)).total_seconds())
    text = f"{skew:.0f} s apart"
    text += "" if skew <= MAX_SKEW_SECONDS else "; set both by NTP, or times in chains are wrong"
    return Finding("clock", ok=skew <= MAX_SKEW_SECONDS, text=text)


async def _served(api: Api, version: str) -> str:
    try:
        await api.get(f"/apis/{version}")
    except ApiError:
        return ""
    return version


def _kinds(served: set[str]) -> Finding:
    there = sorted(f"{kind} ({version})" for version, kind in KINDS if version in served)
    missing = sorted(f"{kind} ({version})" for version, kind in KINDS if version not in served)
    text = f"served: {', '.join(there)}" + (f"; not served: {', '.join(missing)}" if missing else "")
    return Finding("kinds", ok=None if there else False, text=text)


async def _allowed(api: Api, namespace: str, permission: Permission) -> Finding:
    resource, _, part = permission.resource.partition("/")
    where = "" if permission in CLUSTER_WIDE else namespace
    missing = []
    for verb in permission.verbs:
        attributes = {"group": permission.group, "resource": resource, "verb": verb, "namespace": where}
        if part:
            attributes["subresource"] = part
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        try:
            answer = await api.create(REVIEW, {**body, "spec": {"resourceAttributes": attributes}})
        except ApiError as error:
            return Finding(permission.resource, ok=None, text=f"can't be asked: {error}")
        if walk(answer, ("status", "allowed")) is not True:
            missing.append(verb)
    name = f"{permission.resource} {'/'.join(permission.verbs)}"
    if not missing:
        return Finding(name, ok=True, text=permission.why)
    without = permission.without or f"without it {permission.why} can't be done: nothing works"
    return Finding(name, ok=False, text=f"{', '.join(missing)} is not allowed in {where or 'the cluster'}: {without}")


async def _pod_security(api: Api, namespace: str) -> Sequence[Finding]:
    """A namespace that enforces "restricted" refuses what training-operator adds to PyTorchJobs with a master."""
    try:
        found = await api.find(f"/api/v1/namespaces/{namespace}")
    except ApiError:
        return []
    level = walk(found, ("metadata", "labels", "pod-security.kubernetes.io/enforce"))
    if level != "restricted":
        return []
    text = (
        f"{namespace} enforces restricted: a PyTorchJob with a Master needs an init container template of "
        "training-operator's own that is allowed there; with workers only, and all other kinds, nothing is needed"
    )
    return [Finding("pod security", ok=None, text=text)]
