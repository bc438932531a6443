"""Using the pages: keyboard, narrow and dark, axe's rules, copying, judging, errors, polling, quick changes of task."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.looking import Looker
from tests.browser.stories import Stories
from tests.browser.website import Website

SLOW = """
const real = window.fetch;
window.fetch = async (...given) => {
  if (String(given[0]).includes("/chain/oom")) await new Promise((done) => setTimeout(done, 150));
  return real(...given);
};
"""
GO = "path => { history.pushState({}, '', path); dispatchEvent(new PopStateEvent('popstate')) }"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def serious(page: Any) -> list[str]:
    """What axe-core takes for serious or critical within our part of the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=".ft").response["violations"]
    return [
        f"{one['id']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(story: Stories, look: Looker, dark: bool) -> None:
    page = look.chain(story("crash"), dark=dark)
    page.locator(".ft .exp").first.click()
    page.get_by_text("Where to look next").wait_for()
    assert serious(page) == []
    for path in ("dags/sweep/runs/run/plugin/retry-chains", "plugin/fault-tolerance"):
        page.goto(f"{look.site.stack.url}/{path}")
        page.wait_for_selector(".ft .rows")
        assert serious(page) == [], path
    page.goto(f"{look.site.stack.url}/dags/long/runs/run/tasks/{story('long')[2]}/plugin/retry-chain")
    page.wait_for_selector(".ft .answers")
    assert serious(page) == []


def test_a_phone_shows_the_chain_on_its_own_page_without_a_scroll_bar_of_its_own(
    story: Stories, look: Looker, picture: Callable[..., None]
) -> None:
    page = look.own(story("crash"), width=390)
    assert page.locator(".ft .card").count() == 2
    wide = page.locator(".ft").evaluate("element => [element.scrollWidth, element.clientWidth]")
    assert wide[0] <= wide[1]
    assert serious(page) == []
    picture(page, "phone")


def test_everything_can_be_done_with_the_keyboard(story: Stories, look: Looker) -> None:
    page = look.chain(story("crash"))
    lanes = page.locator(".ft .lane")
    lanes.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.lane") == "1"
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Attempt 0, ")
    page.keyboard.press("Enter")
    page.get_by_text("Where to look next").wait_for()
    page.wait_for_function("document.activeElement.getAttribute('aria-expanded') === 'true'")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('.ft .opened')")
    assert page.evaluate("document.activeElement.id") == "ft-row-0-0"
    page.keyboard.press("Enter")
    page.get_by_text("Where to look next").wait_for()


def test_the_chain_is_copied_as_markdown(story: Stories, look: Looker) -> None:
    page = look.chain(story("oom"))
    page.get_by_role("button", name="Copy as Markdown").click()
    page.get_by_role("button", name="Copied").wait_for()
    text = page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("**Stopped by fault tolerance: GPU memory ran out")
    assert "not a confirmed root cause" in text
    assert f"{look.site.stack.url}/plugin/fault-tolerance?dag_id=oom&run_id=run" in text


def test_a_person_judges_a_diagnosis_a_viewer_can_not_and_it_is_exported(
    story: Stories, look: Looker, site: Website
) -> None:
    key = story("budget")
    page = look.chain(key)
    page.locator(".ft .exp").first.click()
    page.get_by_role("button", name="Wrong…").click()
    page.locator(".ft").get_by_label("The right class").select_option("NET_FABRIC")
    page.locator(".ft").get_by_label("Note").fill("the resolver was down")
    page.get_by_role("button", name="Save").click()
    page.get_by_text("Marked wrong by admin: it was NET_FABRIC. the resolver was down").wait_for()
    viewed = look.chain(key, user="viewer")
    viewed.locator(".ft .exp").first.click()
    viewed.get_by_text("Marked wrong by admin").wait_for()
    assert viewed.get_by_role("button", name="Wrong…").count() == 0
    path = f"/fault-tolerance/api/v1/chain/{key[0]}/runs/0-0/feedback?run_id={key[1]}&task_id={key[2]}"
    assert site.request("POST", path, "viewer", json={"right": True}).status_code == 403
    exported = [
        json.loads(line) for line in site.command("ft", "feedback", "--json").stdout.splitlines() if line[:1] == "{"
    ]
    (mine,) = [one for one in exported if one["dag_id"] == "budget"]
    assert (mine["diagnosed"], mine["right"], mine["fault_class"]) == ("ENV_ERROR", False, "NET_FABRIC")


def test_what_is_missing_is_said_kindly(story: Stories, look: Looker, site: Website) -> None:
    look.allowed = ("Failed to load resource",)
    story("crash")
    page = look.page()
    page.goto(f"{site.stack.url}/dags/crash/runs/run/tasks/stage_data/plugin/retry-chain")
    page.get_by_text("This task has no fault tolerance").wait_for()
    page = look.own(("crash", "run", "pretrain"), user="only-oom")
    page.get_by_text("You may not read this DAG").wait_for()
    page = look.page()
    page.route("**/api/v1/chain/**", lambda route: route.fulfill(status=503, body="{}"))
    page.goto(f"{site.stack.url}/dags/crash/runs/run/tasks/pretrain/plugin/retry-chain")
    page.get_by_text("The chain could not be loaded").wait_for()
    assert page.get_by_text("The server answered 503.").is_visible()
    page.unroute("**/api/v1/chain/**")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".ft .answers")
    page.route("**/api/v1/chain/**", lambda route: route.abort())
    page.get_by_text("Could not be loaded anew").wait_for()
    assert page.locator(".ft .answers").is_visible(), "what was seen stays"


def test_a_page_that_nobody_sees_asks_less_and_an_ended_chain_asks_no_more(story: Stories, look: Looker) -> None:
    asked: list[str] = []

    def watched(key: Any) -> Any:
        page = look.page()
        page.on("request", lambda request: asked.append(request.url) if "/api/v1/chain/" in request.url else None)
        page.clock.install()
        page.goto(f"{look.site.stack.url}/dags/{key[0]}/runs/run/tasks/pretrain/plugin/retry-chain")
        page.wait_for_selector(".ft .answers")
        return page

    def during(page: Any, seconds: int) -> int:
        before = len(asked)
        for _ in range(seconds):
            page.clock.run_for(1000)
            page.wait_for_timeout(60)  # the answer is real
        return len(asked) - before

    page = watched(story("crash"))
    assert during(page, 30) >= 2
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    during(page, 8)
    assert during(page, 20) <= 1
    page.close()
    assert during(watched(story("oom")), 30) == 0


@pytest.mark.story("UIO-01")
def test_quick_changes_of_the_task_never_show_another_ones_chain(story: Stories, look: Looker, site: Website) -> None:
    """A → B → run tab → A …, faster than the answers come, the slow one of A last."""
    story("oom"), story("crash")
    page = look.page()
    page.add_init_script(SLOW)
    page.goto(f"{site.stack.url}/dags/oom/runs/run/tasks/pretrain/plugin/retry-chain")
    page.wait_for_selector(".ft")
    paths = [f"/dags/{dag}/runs/run/tasks/pretrain/plugin/retry-chain" for dag in ("oom", "crash")]
    paths.append("/dags/sweep/runs/run/plugin/retry-chains")
    for turn in range(20):
        page.evaluate(GO, paths[turn % 3])
        page.wait_for_timeout(60)
    page.evaluate(GO, paths[1])
    page.wait_for_selector('.ft[data-state="recovered"]')
    page.wait_for_timeout(600)
    assert "past step 11" in page.locator(".ft .head h2").inner_text()
    assert "GPU memory" not in page.locator(".ft").inner_text()


def test_the_page_of_all_chains_shows_what_may_be_read_and_can_be_narrowed(
    story: Stories, look: Looker, site: Website, picture: Callable[..., None]
) -> None:
    for name in ("crash", "lost_node", "hang", "oom", "budget", "markup", "marked", "long"):
        story(name)
    for index in range(4):
        site.wait_state(("sweep", "run", "distill"), "success", "failed", map_index=index)
    page = look.page()
    page.goto(f"{site.stack.url}/plugin/fault-tolerance")
    page.wait_for_selector(".ft [data-node]")
    assert page.locator(".ft [data-chain]").count() >= 10
    states = page.locator(".ft [data-chain] .badge").all_inner_texts()
    going_on = [state in ("Running", "Recovering", "Recovered", "Starting") for state in states]
    assert going_on == sorted(going_on, reverse=True), "what runs comes first"
    page.locator(".ft").get_by_label("Class", exact=True).select_option("OOM_GPU")
    page.wait_for_function("[...document.querySelectorAll('.ft [data-chain]')].length === 2")
    page.locator(".ft").get_by_label("Class", exact=True).select_option("")
    page.wait_for_function("[...document.querySelectorAll('.ft [data-chain]')].length >= 10")
    picture(page, "page")
    narrow = look.page("only-oom")
    narrow.goto(f"{site.stack.url}/plugin/fault-tolerance")
    narrow.wait_for_selector(".ft [data-chain]")
    assert narrow.locator(".ft [data-chain]").count() == 1
    text = narrow.locator(".ft").inner_text()
    assert "1 with 1 chains" in text
    assert not any(name in text for name in ("crash", "sweep", "lost_node"))
    assert narrow.locator(".ft [data-node]").count() == 1


@pytest.mark.row("P5")
def test_who_may_puts_nodes_into_quarantine_extends_and_releases_them(
    story: Stories, look: Looker, site: Website
) -> None:
    key = story("lost_node")
    lost = site.view(key)["runs"][0]["fault"]["node"]
    page = look.page()
    page.goto(f"{site.stack.url}/plugin/fault-tolerance")
    row = page.locator(f'.ft [data-node="{lost}"]')
    row.get_by_text("by fault tolerance: lost_node.pretrain, attempt 0").wait_for()
    page.get_by_role("button", name="Quarantine a node…").click()
    page.locator(".ft").get_by_label("Node name").fill("n39")
    assert page.locator(".ft").get_by_label("Cluster").input_value() == "local:default"
    page.locator(".ft").get_by_label("Why").fill("its fan <b>rattles</b>")
    assert serious(page) == []
    page.get_by_role("button", name="Quarantine", exact=True).click()
    mine = page.locator('.ft [data-node="n39"]')
    mine.get_by_text("by a person: admin").wait_for()
    assert "its fan <b>rattles</b>" in mine.inner_text()
    until = mine.locator(".b", has_text="until").inner_text()
    mine.get_by_role("button", name="Extend the quarantine of n39").click()
    mine.get_by_role("button", name="Extend", exact=True).click()
    mine.get_by_text("extended: its fan").wait_for()
    assert mine.locator(".b", has_text="until").inner_text() != until
    viewed = look.page("viewer")
    viewed.goto(f"{site.stack.url}/plugin/fault-tolerance")
    viewed.locator('.ft [data-node="n39"]').get_by_text("by a person: admin").wait_for()
    assert viewed.get_by_role("button", name="Release").count() == 0
    assert viewed.get_by_role("button", name="Quarantine").count() == 0
    path = "/fault-tolerance/api/v1/nodes/n39/release?cluster=local:default"
    assert site.request("POST", path, "viewer", json={}).status_code == 403
    assert lost not in site.get("/fault-tolerance/api/v1/nodes", "only-oom").text, "of a DAG that may not be read"
    mine.get_by_role("button", name="Release n39").click()
    page.keyboard.press("Escape")
    mine.get_by_role("button", name="Release n39").click()
    mine.get_by_role("button", name="Release", exact=True).click()
    mine.wait_for(state="detached")
    assert "n39" not in site.command("ft", "nodes", "--cluster", "local:default").stdout


def test_nobody_sees_anything_without_rights(story: Stories, site: Website) -> None:
    """On the real server: anonymous 401, no rights 403, another DAG nowhere, tricks 4xx."""
    story("oom")
    api = "/fault-tolerance/api/v1"
    chain = f"{api}/chain/crash?run_id=run&task_id=pretrain"
    for path in (
        chain,
        f"{api}/chains",
        f"{api}/figures",
        f"{api}/openapi.json",
        "/fault-tolerance/log/crash?run_id=run&task_id=pretrain",
    ):
        assert site.get(path, None).status_code == 401, path
    assert site.get(chain, "outsider").status_code == 403
    assert site.get(chain, "only-oom").status_code == 403
    assert site.get(f"{api}/chain/oom?run_id=run&task_id=pretrain", "only-oom").status_code == 200
    seen = site.get(f"{api}/chains", "only-oom").json()["items"]
    assert {row["task"]["dag_id"] for row in seen} == {"oom"}
    assert "/api/v1/chains" in site.get(f"{api}/openapi.json", "viewer").json()["paths"]
    for trick in (
        f"{api}/chain/..%2f..%2fetc?run_id=x&task_id=y",
        f"{api}/chains?node=' OR 1=1",
        "/fault-tolerance/static/..%2fapi.py",
    ):
        assert 400 <= site.get(trick).status_code < 500, trick
