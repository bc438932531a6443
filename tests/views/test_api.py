"""The API's own rules, on Airflow's tables in a sqlite of their own: who may see what, pages, and what is refused."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import event

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.views.records import PUBLISHED
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_task import Task
from tests.views.api_site import Reader, Site
from tests.views.chains import BUG

CHAIN = "/api/v1/chain/{}?run_id=run&task_id=train"


def test_a_chain_has_its_answers_and_an_etag_that_makes_the_next_look_cheap(site: Site) -> None:
    first = site.get(CHAIN.format("a"))
    assert first.status_code == 200
    shown = first.json()
    assert (shown["version"], shown["state"], len(shown["runs"])) == (1, "succeeded", 2)
    assert [answer["key"] for answer in shown["text"]["answers"]] == [
        "began",
        "gather",
        "restarts",
        "retry",
        "recovered",
        "cost",
    ]
    assert site.get(CHAIN.format("a"), headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert site.get(CHAIN.format("a"), headers={"If-None-Match": '"other"'}).status_code == 200


def test_two_requests_on_one_thread_never_share_a_session(site: Site) -> None:
    """The server enters and leaves on any of its threads: a session of a thread would be two requests' at once."""
    from airflow_ft.plugins.api import session

    one, other = session(), session()
    assert next(one) is not next(other)
    for opened in (one, other):
        opened.close()


def test_one_look_costs_one_query_of_ours(site: Site) -> None:
    """Airflow's own authorisation comes on top; three a poll are the limit."""
    asked: list[str] = []
    event.listen(site.tables.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    site.get(CHAIN.format("a"))
    assert len(asked) == 1, asked


def test_a_run_opens_with_evidence_judgement_decision_and_where_to_look(site: Site) -> None:
    detail = site.get("/api/v1/chain/a/runs/0-0?run_id=run&task_id=train").json()
    assert detail["fault_class"] == "HW_NODE"
    assert detail["evidence"][0]["role"] == "root"
    assert "uncorrectable ECC" in detail["evidence"][0]["text"]
    assert detail["decision"]["ledger"][0] == {"name": "restarts, charged", "before": 0, "after": 1, "maximum": 3}
    assert [row["what"] for row in detail["recovery"]] == ["Checkpoint", "Step", "Loss", "New checkpoint"]
    assert all(row["ok"] for row in detail["recovery"])
    assert "look at attempt 1" in detail["next"][0]
    assert next(link["text"] for link in detail["links"]) == "Log of try 1"
    assert site.get("/api/v1/chain/a/runs/7-0?run_id=run&task_id=train").status_code == 404


def test_runs_are_paged_from_the_newest_on(site: Site) -> None:
    page = site.get("/api/v1/chain/a/runs?run_id=run&task_id=train&limit=1").json()
    assert (page["total"], page["items"][0]["id"], page["next"]) == (2, "1-0", 1)
    last = site.get("/api/v1/chain/a/runs?run_id=run&task_id=train&limit=1&before=1").json()
    assert (last["items"][0]["id"], last["next"]) == ("0-0", None)


def test_nothing_of_another_dag_is_seen_anywhere(site: Site) -> None:
    for path in (
        CHAIN.format("b"),
        "/api/v1/chain/b/runs?run_id=run&task_id=train",
        "/api/v1/chain/b/runs/0-0?run_id=run&task_id=train",
        "/api/v1/chain/b/markdown?run_id=run&task_id=train",
        "/api/v1/chains/b?run_id=run",
        "/chain/b?run_id=run&task_id=train",
        "/log/b?run_id=run&task_id=train",
        "/job/b?run_id=run&task_id=train",
    ):
        assert site.get(path).status_code == 403, path
    # A DAG in the query doesn't change whose rights are asked for.
    assert site.get("/api/v1/chain/b?dag_id=a&run_id=run&task_id=train").status_code == 403
    everywhere = [
        site.get(f"/api/v1/{path}").text for path in ("chains", "chains?dag_id=b", "figures", "nodes", "chains?limit=1")
    ]
    assert not any("secret-run" in text or '"b"' in text for text in everywhere)
    figures = site.get("/api/v1/figures").json()
    assert (figures["dags"], figures["chains"]) == (1, 3)
    site.user = Reader(frozenset())
    assert site.get("/api/v1/chains").json()["items"] == []
    assert site.get("/api/v1/figures").json()["attempts"] == 0


def test_lists_are_cut_to_what_may_be_read_before_they_are_paged(site: Site) -> None:
    """Each page is full until the last one, although the DAG that may not be read lies between."""
    seen, after = [], None
    for _ in range(9):
        page = site.get("/api/v1/chains", params={"limit": 1} | ({"after": after} if after else {})).json()
        seen += [row["task"]["run_id"] for row in page["items"]]
        after = page["next"]
        if after is None:
            break
        assert len(page["items"]) == 1
    assert seen == ["run3", "run2", "run"]


def test_nodes_are_paged_with_most_faults_first(site: Site) -> None:
    page = site.get("/api/v1/nodes?limit=1").json()
    assert page["items"][0]["faults"] >= 1
    assert page["items"][0]["name"].startswith("n")
    beyond = site.get(f"/api/v1/nodes?offset={page['total']}").json()
    assert (beyond["items"], beyond["next"]) == ([], None)


def test_lists_can_be_narrowed(site: Site) -> None:
    def runs(query: str) -> list[str]:
        return [row["task"]["run_id"] for row in site.get(f"/api/v1/chains?{query}").json()["items"]]

    assert runs("state=stopped by fault tolerance") == ["run2"]
    assert runs("fault_class=HW_NODE") == ["run"]
    assert runs("fault_class=OOM_GPU") == []
    assert runs("dag_id=a&state=succeeded") == ["run3", "run"]
    of_run = site.get("/api/v1/chains/a?run_id=run2").json()
    assert of_run["headline"] == "1 chain: 1 stopped by fault tolerance."
    assert of_run["todo"]["tone"] == "bad"


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/chains?node=' OR 1=1 --",
        "/api/v1/chains?node=n1%25",
        "/api/v1/chains?state=anything",
        "/api/v1/chains?fault_class=HW",
        "/api/v1/chains?after=1:1 OR 1",
        "/api/v1/chains?after=x",
        "/api/v1/chains?limit=100000",
        "/api/v1/chains?limit=-1",
        "/api/v1/figures?days=0",
        "/api/v1/figures?days=x",
        "/api/v1/chain/a/runs/0-0;DROP?run_id=run&task_id=train",
        "/api/v1/chain/a/runs/..%2f..?run_id=run&task_id=train",
        "/api/v1/chain/a",
        "/api/v1/chain/a?run_id=run' OR '1'='1&task_id=train",
        "/api/v1/chain/a?run_id=run&task_id=train%00",
        f"/api/v1/chain/a?run_id={'x' * 300}&task_id=train",
        "/api/v1/chain/..%2f..%2fetc?run_id=run&task_id=train",
        "/static/..%2f..%2fapi.py",
        "/static/%2e%2e/web.py",
        "/static//etc/passwd",
        "/static/main.js/../../web.py",
        "/nowhere",
    ],
)
def test_path_tricks_and_sql_in_parameters_are_refused(site: Site, path: str) -> None:
    assert 400 <= site.get(path).status_code < 500


def test_feedback_needs_the_right_to_edit_and_is_shown_counted_and_replaced(site: Site) -> None:
    path = "/api/v1/chain/a/runs/0-0/feedback?run_id=run&task_id=train"
    wrong = {"right": False, "fault_class": "NET_FABRIC", "note": "the switch"}
    site.user = Reader(frozenset("ab"))
    assert site.http.post(path, json=wrong).status_code == 403
    assert not site.get(CHAIN.format("a")).json()["may"]["feedback"]
    site.user = Reader(frozenset("a"), frozenset("a"))
    assert site.get(CHAIN.format("a")).json()["may"]["feedback"]
    assert site.http.post(path, json=wrong).status_code == 200
    shown = site.get("/api/v1/chain/a/runs/0-0?run_id=run&task_id=train").json()["feedback"]
    assert (shown["right"], shown["fault_class"], shown["note"], shown["by"]) == (
        False,
        "NET_FABRIC",
        "the switch",
        "reader",
    )
    figures = site.get("/api/v1/figures").json()
    assert (figures["marked"], figures["marked_wrong"]) == (1, 1)
    assert site.http.post(path, json={"right": True}).status_code == 200
    figures = site.get("/api/v1/figures").json()
    assert (figures["marked"], figures["marked_wrong"]) == (1, 0)
    assert site.http.post(path, json={"right": False, "fault_class": "MADE_UP"}).status_code == 422
    assert site.http.post(path, json={"right": True, "note": "x" * 501}).status_code == 422
    assert site.http.post(path.replace("0-0", "1-0"), json={"right": True}).status_code == 404, "it has no fault"


def test_who_is_not_logged_in_gets_nothing_but_the_files(site: Site) -> None:
    from airflow.api_fastapi.core_api import security

    del site.app.dependency_overrides[security.get_user]
    for path in (
        CHAIN.format("a"),
        "/api/v1/chains",
        "/api/v1/figures",
        "/api/v1/openapi.json",
        "/log/a?run_id=run&task_id=train",
    ):
        assert site.get(path).status_code == 401, path
    assert (
        site.http.post("/api/v1/chain/a/runs/0-0/feedback?run_id=run&task_id=train", json={"right": True}).status_code
        == 401
    )
    assert site.get("/static/main.js").status_code == 200
    assert site.get("/openapi.json").status_code == 404


def test_the_api_describes_itself_with_types(site: Site) -> None:
    described = site.get("/api/v1/openapi.json").json()
    assert "/api/v1/chain/{dag_id}" in described["paths"]
    assert {"ChainView", "RunDetail", "ChainPage", "Figures", "FeedbackGiven"} <= described["components"][
        "schemas"
    ].keys()


def test_what_can_not_be_shown_says_why(site: Site) -> None:
    missing = site.get("/api/v1/chain/a?run_id=none&task_id=train")
    assert (missing.status_code, missing.json()["detail"]["reason"]) == (404, "not_begun")
    site.tables.put({"ft/chain": json.dumps({"__airflow_state_ref__": "s3://x"})}, "a", "elsewhere")
    outside = site.get("/api/v1/chain/a?run_id=elsewhere&task_id=train")
    assert (outside.status_code, outside.json()["detail"]["reason"]) == (409, "unreadable")


@pytest.mark.story("UIO-02")
def test_a_long_chain_with_heavy_evidence_is_a_small_answer(site: Site, records: dict[str, dict[str, str]]) -> None:
    """300 attempts, each with the longest record that is stored: what is sent stays below 300 kB."""
    attempt = json.loads(records["recovered"]["ft/attempt/0000"])
    incident = attempt["incidents"][0]
    incident["diagnosis"]["text"] = incident["diagnosis"]["root"]["text"] = "<b>" + "x" * 6_000
    head = json.loads(records["recovered"]["ft/chain"]) | {"attempts": 300, "open": None}
    values = {"ft/chain": json.dumps(head)}
    for number in range(300):
        values[f"ft/attempt/{number:04d}"] = json.dumps(attempt | {"number": number, "name": f"job-a{number}"})
    site.tables.put(values, "a", "long")
    answer = site.get("/api/v1/chain/a?run_id=long&task_id=train")
    assert answer.json()["total_runs"] == 300
    assert len(answer.content) < 300_000
    detail = site.get("/api/v1/chain/a/runs/3-0?run_id=long&task_id=train").json()
    assert len(detail["evidence"][0]["text"]) == 2_000
    assert detail["evidence"][0]["cut"]


def test_a_search_is_bounded_and_says_where_it_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare class is looked for in so many chains at once; the next page looks further back."""
    from airflow_ft.views import lists

    monkeypatch.setattr(lists, "SEARCHED", 1)
    monkeypatch.setattr(lists, "SEARCHED_AT_ONCE", 1)
    found, after, pages = [], None, 0
    while pages < 9:
        query = {"fault_class": "HW_NODE"} | ({"after": after} if after else {})
        page = site.get("/api/v1/chains", params=query).json()
        assert page["looked_at"] <= 1
        found += [row["task"]["run_id"] for row in page["items"]]
        pages, after = pages + 1, page["next"]
        if after is None:
            break
    assert found == ["run"]
    assert pages > 1


@pytest.mark.row("S12")
def test_a_chain_that_waits_for_a_person_is_shown_and_says_where_to_answer(site: Site) -> None:
    task = Task([Run(code=1, words=BUG)], policy=FaultTolerancePolicy.full(on_fault="ask"))
    task.run_try()
    site.tables.put(task.values, "a", "asks", state="awaiting_input")
    shown = site.get("/api/v1/chain/a?run_id=asks&task_id=train").json()
    assert (shown["state"], shown["live"]) == ("waits for a person", True)
    assert "required actions" in shown["text"]["todo"]["text"]
    detail = site.get("/api/v1/chain/a/runs/0-0?run_id=asks&task_id=train").json()
    assert detail["links"][0]["href"] == "dags/a/runs/asks/tasks/train/required_actions"
    of_run = site.get("/api/v1/chains/a?run_id=asks").json()
    assert of_run["headline"] == "1 chain: 1 waits for a person."
    assert (of_run["live"], of_run["todo"]["text"]) == (
        True,
        "Answer the required action of train: nothing is done before.",
    )
    (row,) = site.get("/api/v1/chains?state=waits for a person").json()["items"]
    assert row["task"]["run_id"] == "asks"


@pytest.mark.row("S12")
def test_lists_show_the_restarts_in_place_of_an_attempt_that_runs(site: Site) -> None:
    """The head knows of them only when the attempt is over; until then its try has published them."""
    task = Task([Run(last=30, code=-9), Run(first=31, last=60)])
    task.begin_try()
    task.execute()
    task.watch()
    assert task.chain.faults == ()
    assert task.chain.events == ()
    published = {key: task.xcoms[key] for key in PUBLISHED if key in task.xcoms}
    site.tables.put(task.values, "a", "live", state="deferred", xcoms=published)
    (row,) = site.get("/api/v1/chains?fault_class=UNKNOWN").json()["items"]
    assert (row["task"]["run_id"], row["last_class"], [kind for _, kind in row["marks"]]) == (
        "live",
        "UNKNOWN",
        ["UNKNOWN"],
    )
    assert "step 30 where the last one died" in row["headline"]
    (of_run,) = site.get("/api/v1/chains/a?run_id=live").json()["items"]
    assert of_run["marks"] == row["marks"]
    assert site.get("/api/v1/chains?fault_class=OOM_HOST").json()["items"] == []
