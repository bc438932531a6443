"""Nodes in quarantine through the API: who hears of it, who may change it, and what a change means."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.attempts.quarantine import Quarantine
from airflow_ft.core.quarantine import Entry
from airflow_ft.views.variables import DatabaseStore
from tests.views.api_site import Reader, Site

CLUSTER = "local:default"
RELEASE = f"/api/v1/nodes/n7/release?cluster={CLUSTER}"
FEEDBACK = "/api/v1/chain/a/runs/0-0/feedback?run_id=run&task_id=train"
EDITOR = Reader(frozenset("a"), frozenset("a"), frozenset({"GET", "POST", "PUT"}))
READER = Reader(frozenset("a"), frozenset("a"))


def quarantine(site: Site, cluster: str = CLUSTER) -> Quarantine:
    return Quarantine(DatabaseStore(site.tables.session), cluster)


def said(site: Site, node: str, word: str = "platform", dag_id: str = "a", hours: float = 24, **more: Any) -> Entry:
    """A chain of a DAG says a word about a node."""
    now = datetime.now(timezone.utc)
    entry = Entry(
        node=node,
        word=word,
        reason=f"lost, says {dag_id or 'somebody'}",
        chain_id=f"chain-of-{dag_id}",
        dag_id=dag_id,
        task=f"{dag_id}.train" if dag_id else "",
        since=now - timedelta(minutes=5),
        until=now + timedelta(hours=hours),
        by=f"{dag_id}.train, attempt 0" if dag_id else "ann",
        **more,
    )
    quarantine(site).add(entry)
    return entry


def post(site: Site, node: str, what: str, body: Any, cluster: str = CLUSTER, **more: Any) -> Any:
    return site.http.post(f"/api/v1/nodes/{node}/{what}", params={"cluster": cluster}, json=body, **more)


def kept_out(site: Site, cluster: str = CLUSTER) -> list[str]:
    return [one.node for one in quarantine(site, cluster).in_force(datetime.now(timezone.utc))]


def rows(site: Site) -> dict[str, Any]:
    return {row["name"]: row for row in site.get("/api/v1/nodes?limit=100").json()["items"]}


def test_a_node_in_quarantine_comes_first_and_says_until_when_why_and_by_whom(site: Site) -> None:
    entry = said(site, "quiet-node")
    site.user = READER
    page = site.get("/api/v1/nodes?limit=1").json()
    (row,) = page["items"]
    assert (row["name"], row["faults"]) == ("quiet-node", 0), "also without a fault in these days"
    (kept,) = row["quarantine"]
    assert kept == {
        "cluster": CLUSTER,
        "since": entry.since.timestamp(),
        "until": entry.until.timestamp(),
        "why": "lost, says a",
        "by": "a.train, attempt 0",
        "by_person": False,
        "words": 1,
    }
    assert page["may"] == {"edit": False, "clusters": []}
    assert site.get("/api/v1/figures").json()["nodes"][0]["name"] == "quiet-node"


def test_what_ended_or_does_not_count_yet_is_no_quarantine(site: Site) -> None:
    said(site, "over", hours=-1)
    said(site, "one-word", word="job")
    assert not {"over", "one-word"} & rows(site).keys()


def test_a_word_of_another_dag_is_told_to_nobody_who_may_not_read_it(site: Site) -> None:
    """Not the node, not a count, not a time. Who reads DAG "a" doesn't read "a.b", although its words begin so."""
    mine, _ = said(site, "both", hours=1), said(site, "both", dag_id="b", hours=50)
    said(site, "theirs", dag_id="b")
    said(site, "dotted", dag_id="a.b")
    site.user = READER
    seen = rows(site)
    assert not {"theirs", "dotted"} & seen.keys()
    (kept,) = seen["both"]["quarantine"]
    assert (kept["until"], kept["words"]) == (mine.until.timestamp(), 1)
    for path in ("nodes", "figures"):
        assert "says b" not in site.get(f"/api/v1/{path}").text
    site.user = EDITOR  # reads the variables themselves
    assert {"theirs", "dotted"} <= rows(site).keys()
    assert rows(site)["both"]["quarantine"][0]["words"] == 2


def test_a_person_s_word_is_told_to_everybody(site: Site) -> None:
    said(site, "fan", word="person", dag_id="")
    site.user = Reader(frozenset())
    (kept,) = rows(site)["fan"]["quarantine"]
    assert (kept["by"], kept["by_person"]) == ("ann", True)


def test_who_may_write_variables_puts_a_node_in_extends_it_and_lets_it_go(site: Site) -> None:
    site.user = EDITOR
    put = post(
        site, "n7", "quarantine", {"hours": 2, "why": "the fan\n is replaced, HF_TOKEN=hf_abcdefghijklmnopqrstuv"}
    )
    assert put.status_code == 200
    (kept,) = put.json()["quarantine"]
    assert (kept["why"], kept["by"], kept["by_person"]) == ("the fan is replaced, HF_TOKEN=***", "reader", True)
    assert kept["until"] - kept["since"] == pytest.approx(7200)
    (later,) = post(site, "n7", "extend", {"hours": 24}).json()["quarantine"]
    assert later["until"] - kept["until"] == pytest.approx(86_400)
    assert later["why"] == "extended: the fan is replaced, HF_TOKEN=***"
    assert post(site, "n7", "extend", {"hours": 1}).json()["quarantine"][0]["why"] == later["why"]
    assert [one.node for one in quarantine(site).in_force(datetime.now(timezone.utc))] == ["n7"], (
        "as submissions see it"
    )
    assert rows(site)["n7"]["quarantine"]
    may = site.get("/api/v1/nodes").json()["may"]
    assert may["edit"]
    assert set(may["clusters"]) == {CLUSTER, "fake:default"}, "of words, and of the jobs that ran"
    assert post(site, "n7", "release", {}).json()["quarantine"] == []
    assert kept_out(site) == []
    assert post(site, "n7", "release", {}).status_code == 404
    assert post(site, "n7", "extend", {"hours": 1}).status_code == 404


def test_a_chain_s_word_can_be_extended_by_a_person_who_then_answers_for_it(site: Site) -> None:
    entry = said(site, "n7", hours=1)
    site.user = EDITOR
    (kept,) = post(site, "n7", "extend", {"hours": 10}).json()["quarantine"]
    assert kept["until"] == pytest.approx((entry.until + timedelta(hours=10)).timestamp())
    assert (kept["by"], kept["words"], kept["why"]) == ("reader", 2, "extended: lost, says a")


def test_a_cluster_is_another_one_s_namesake_s_no_business(site: Site) -> None:
    site.user = EDITOR
    post(site, "n7", "quarantine", {"hours": 2})
    assert post(site, "n7", "quarantine", {"hours": 3}, "kubernetes:east").status_code == 200
    assert [kept["cluster"] for kept in rows(site)["n7"]["quarantine"]] == ["kubernetes:east", CLUSTER]
    (kept,) = post(site, "n7", "release", {}).json()["quarantine"]
    assert kept["cluster"] == "kubernetes:east"


@pytest.mark.parametrize("user", [READER, Reader(frozenset("a"), frozenset("a"), frozenset({"GET"}))], ids=["a", "b"])
@pytest.mark.parametrize(("what", "body"), [("quarantine", {"hours": 2}), ("extend", {"hours": 2}), ("release", {})])
def test_who_may_not_write_variables_changes_nothing(site: Site, user: Reader, what: str, body: Any) -> None:
    """Also not with the right to edit task instances: a node is of all DAGs."""
    entry = said(site, "n7")
    site.user = user
    assert post(site, "n7", what, body).status_code == 403
    (kept,) = quarantine(site).in_force(datetime.now(timezone.utc))
    assert kept.entries == (entry,)


def test_who_is_not_logged_in_changes_nothing(site: Site) -> None:
    from airflow.api_fastapi.core_api import security

    del site.app.dependency_overrides[security.get_user]
    assert post(site, "n7", "quarantine", {"hours": 2}).status_code == 401
    assert site.get("/api/v1/nodes").status_code == 401


@pytest.mark.parametrize("path", [RELEASE, FEEDBACK])
def test_another_site_can_not_make_a_browser_change_anything(site: Site, path: str) -> None:
    """A form can't send JSON, and a browser says where a request comes from."""
    said(site, "n7")
    site.user = EDITOR
    body = '{"right": true}' if "feedback" in path else "{}"
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        assert site.http.post(path, content=body, headers=headers).status_code == 415, headers
    for origin in ("cross-site", "same-site"):
        headers = {"Content-Type": "application/json", "Sec-Fetch-Site": origin}
        assert site.http.post(path, content=body, headers=headers).status_code == 403, origin
    assert site.get(path).status_code == 405
    assert rows(site)["n7"]["quarantine"]
    headers = {"Content-Type": "application/json; charset=utf-8", "Sec-Fetch-Site": "same-origin"}
    assert site.http.post(path, content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("node", "cluster", "body"),
    [
        ("n7", "nowhere", {"hours": 1}),
        ("n7", "local:a/b", {"hours": 1}),
        ("n7", "local:" + "x" * 101, {"hours": 1}),
        ("n" * 240, CLUSTER, {"hours": 1}),
        ("n7' OR 1=1", CLUSTER, {"hours": 1}),
        ("n7", CLUSTER, {"hours": 0}),
        ("n7", CLUSTER, {"hours": 1e9}),
        ("n7", CLUSTER, {"hours": "NaN"}),
        ("n7", CLUSTER, {}),
        ("n7", CLUSTER, {"hours": 1, "why": "x" * 301}),
        ("n7", CLUSTER, {"hours": 1, "until": "2030"}),
        ("n7", CLUSTER, [1]),
    ],
)
def test_what_can_not_be_meant_is_refused(site: Site, node: str, cluster: str, body: Any) -> None:
    site.user = EDITOR
    assert post(site, node, "quarantine", body, cluster).status_code == 422
    assert kept_out(site, cluster) == []


@pytest.mark.parametrize("body", [rb'{"hours": 1, "why": "\ud800"}', b'{"hours": NaN}', b'{"hours": Infinity}', b"{"])
def test_what_fits_into_no_answer_is_refused_without_being_repeated(site: Site, body: bytes) -> None:
    """Python's JSON takes half a character and NaN; no database and no answer does."""
    site.user = EDITOR
    path, headers = RELEASE.replace("release", "quarantine"), {"Content-Type": "application/json"}
    assert site.http.post(path, content=body, headers=headers).status_code == 422


def test_a_word_that_can_not_be_read_is_left_out(site: Site) -> None:
    from airflow.models import Variable

    said(site, "n7")
    Variable.set(f"ft_quarantine/{CLUSTER}/n8/x", "no json", session=site.tables.session)
    Variable.set(f"ft_quarantine/{CLUSTER}/n9/x", {"node": 1}, serialize_json=True, session=site.tables.session)
    assert [row["name"] for row in rows(site).values() if row["quarantine"]] == ["n7"]
