"""What a person reads from the tab at 3 a.m., of chains that real runs have made: every question of mission S12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.looking import Looker
from tests.browser.stories import Stories
from tests.browser.website import CANARY, Website

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def answer(page: Any, key: str) -> str:
    return " ".join(page.locator(f'.ft [data-answer="{key}"]').inner_text().split())


def headline(page: Any) -> str:
    return " ".join(page.locator(".ft .head h2").inner_text().split())


@pytest.mark.row("S12")
@pytest.mark.row("S15")
def test_a_crash_that_was_restarted_in_place_and_recovered(
    story: Stories, look: Looker, picture: Callable[..., None]
) -> None:
    page = look.chain(story("crash"))
    assert headline(page).startswith("Recovered Attempt 0 / 1 is training again, past step 11 where attempt 0 died.")
    assert "Attempt 0," in answer(page, "began")
    assert "at step 11" in answer(page, "began")
    assert "UNKNOWN" in answer(page, "began")
    assert "One fault only" in answer(page, "gather")
    assert "0 of 3 used, 3 left" in answer(page, "restarts")
    assert "not charged: 1 in place" in answer(page, "restarts")
    assert "Restart in place no new nodes · same config" in answer(page, "retry")
    assert "Yes" in answer(page, "recovered")
    assert "without new steps" in answer(page, "cost")
    assert "What to do Nothing." in " ".join(page.locator(".ft .todo").inner_text().split())
    assert page.locator(".ft .lane").count() == 2
    page.locator(".ft .exp").first.click()
    page.get_by_text("Did training recover?").wait_for()
    opened = page.locator(".ft .opened").inner_text()
    for words in (
        "10 expected",
        "10 loaded",
        "died at 11",
        "not a confirmed root cause",
        "Restarted in place: look at",
    ):
        assert words in opened, words
    picture(page, "recovered-opened")


@pytest.mark.row("S12")
def test_a_lost_node_is_named_left_out_and_replaced(story: Stories, look: Looker, picture: Callable[..., None]) -> None:
    key = story("lost_node")
    page = look.chain(key)
    lost = look.site.view(key)["runs"][0]["fault"]["node"]
    assert headline(page).startswith("Recovered Attempt 1 is training again, past step ")
    assert "HW_NODE" in answer(page, "began")
    assert "1 of 3 used, 2 left" in answer(page, "restarts")
    assert f"Resubmit without {lost}" in answer(page, "retry")
    assert "new node" in answer(page, "retry")
    assert f"Have {lost} (1 of 1 faults) checked." in page.locator(".ft .todo").inner_text()
    row = page.locator('.ft [data-run="1-0"]').inner_text()
    assert f"− {lost}" in row
    picture(page, "lost-node")


@pytest.mark.row("S12")
def test_a_hang_is_silence_and_not_charged(story: Stories, look: Looker, picture: Callable[..., None]) -> None:
    page = look.chain(story("hang"), dark=True)
    assert headline(page).startswith("Succeeded Done at step 60 after 1 attempt; 0 of 3 restarts used.")
    assert "COMM_HANG" in answer(page, "began")
    assert "not charged: 1 hang" in answer(page, "restarts")
    assert "Yes" in answer(page, "recovered")
    assert page.evaluate("document.documentElement.classList.contains('dark')")
    picture(page, "hang-dark")


@pytest.mark.row("S12")
@pytest.mark.row("M12")
def test_a_budget_that_is_used_up_stops_and_says_so(story: Stories, look: Looker) -> None:
    page = look.chain(story("budget"))
    assert headline(page).startswith(
        "Stopped by fault tolerance The budget is used up: 1 of 1 restarts, the last fault"
    )
    assert "1 of 1 used, 0 left" in answer(page, "restarts")
    assert "2 of 2 faults" in answer(page, "gather")
    assert "Then clear the task; budgets start afresh." in page.locator(".ft .todo").inner_text()


@pytest.mark.row("S12")
@pytest.mark.row("S14")
def test_memory_of_a_gpu_stops_at_once_and_says_what_to_mend(
    story: Stories, look: Looker, picture: Callable[..., None]
) -> None:
    page = look.chain(story("oom"))
    assert headline(page).startswith("Stopped by fault tolerance GPU memory ran out")
    assert "0 of 3 used, 3 left unspent" in answer(page, "restarts")
    assert "stopped by a rule, not by the budget" in answer(page, "restarts")
    assert "None yet" in answer(page, "retry")
    assert "Use a smaller batch" in page.locator(".ft .todo").inner_text()
    page.locator(".ft .exp").first.click()
    page.get_by_text("Stopped: read the fault text above and mend that first.").wait_for()
    picture(page, "stopped-opened")


@pytest.mark.row("S12")
def test_failed_by_a_person_is_not_stopped_by_fault_tolerance(story: Stories, look: Looker) -> None:
    page = look.chain(story("marked"))
    assert headline(page).startswith("Failed ")
    assert "Fault tolerance did not decide this." in headline(page)


@pytest.mark.story("LIF-11")
def test_a_clear_is_a_line_through_the_chain_with_fresh_budgets(story: Stories, look: Looker) -> None:
    page = look.chain(story("cleared"))
    assert page.locator(".ft .chart").get_by_text("cleared by a person").first.is_visible()
    assert page.locator(".ft .lane").count() == 2
    assert "0 of 3 used, 3 left" in answer(page, "restarts")
    assert "None; cleared by a person" in answer(page, "retry")
    assert "segment 1, begun by a person" in page.locator(".ft .sub").inner_text()


@pytest.mark.row("S11")
def test_mapped_tasks_have_chains_of_their_own_and_the_run_shows_them_all(
    site: Website, look: Looker, picture: Callable[..., None]
) -> None:
    key = ("sweep", "run", "distill")
    for index in range(4):
        site.wait_state(key, "success", "failed", map_index=index)
    page = look.chain(key, 2)
    assert headline(page).startswith("Stopped by fault tolerance GPU memory ran out")
    page.goto(f"{site.stack.url}/dags/sweep/runs/run/plugin/retry-chains")
    page.wait_for_selector('.ft [data-chain="distill [3]"]')
    assert headline(page) == "4 chains: 1 stopped by fault tolerance, 3 succeeded."
    rows = page.locator(".ft [data-chain]")
    assert next(rows.nth(n).get_attribute("data-chain") for n in range(4)) == "distill [2]"
    assert "Open distill [2]" in page.locator(".ft .todo").inner_text()
    picture(page, "run-tab")
    page.locator(".ft").get_by_role("link", name="distill [1]", exact=True).click()
    page.wait_for_selector(".ft .answers")
    assert "Done at step 60" in headline(page)


@pytest.mark.story("UIO-02")
def test_128_attempts_are_told_by_class_and_node(story: Stories, look: Looker, picture: Callable[..., None]) -> None:
    """Lanes would hide what people ask, so there are rows by class and node; the table shows 25 and more on demand."""
    page = look.chain(story("long"))
    assert "128 attempts in" in page.locator(".ft .sub").inner_text()
    assert "127 of 128 used, 1 left" in answer(page, "restarts")
    chart = page.locator(".ft .chart").get_attribute("aria-label")
    assert chart.startswith("128 runs. NET_FABRIC: ")
    assert "on gpu-n04: " in chart
    assert page.locator(".ft .t tr.r").count() == 25
    page.get_by_role("button", name="Show 25 more").click()
    assert page.locator(".ft .t tr.r").count() == 50
    page.get_by_role("button", name="NET_FABRIC").click()
    assert page.locator(".ft .t tr.r").first.inner_text().count("NET_FABRIC") == 1
    assert page.locator(".ft").get_by_text("faults in").first.is_visible(), "the burst"
    page.get_by_role("button", name="All 128").click()
    picture(page, "many")
    page.get_by_role("button", name="Attempt 126, details").click()
    stacks = page.locator(".ft .stack")
    stacks.first.wait_for()
    first, second = (" ".join(text.split()) for text in stacks.all_inner_texts())
    assert first == "Rank 3 on gpu-n04 not where the others are read_shard (data/reader.py:44) <module> (train.py:90)"
    assert second.startswith("15 ranks: 0-2, 4-15 on 16 nodes all_reduce")
    item = page.locator(".ft .opened tr", has_text="disk-free root").inner_text()
    assert all(words in item for words in ("on gpu-n04", "2.1 GB", "> 10 GB", "Clean the disk of <b>the node</b>."))


@pytest.mark.story("SEC-02")
def test_a_hostile_log_line_is_text_cut_and_without_the_secret(story: Stories, look: Looker) -> None:
    """HTML, ANSI and 1 MB in one line, with a token in it."""
    page = look.chain(story("markup"))
    page.locator(".ft .exp").first.click()
    page.get_by_text("Where to look next").wait_for()
    assert page.locator(".ft img, .ft script").count() == 0
    assert "document.title" in page.locator(".ft").inner_text()
    assert page.title() not in ("1", "owned")
    content = page.content()
    assert CANARY not in content
    assert "\x1b[" not in content
    assert "[31m" not in page.locator(".ft").inner_text()
    assert len(page.locator(".ft").inner_text()) < 30_000
    key = story("markup")
    training = look.site.get(f"/fault-tolerance/log/{key[0]}?run_id={key[1]}&task_id={key[2]}&attempt=0")
    assert CANARY not in training.text
    assert training.headers["content-type"].startswith("text/plain")
    assert max(map(len, training.text.splitlines())) <= 2_100
