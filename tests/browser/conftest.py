"""One real Airflow, one Chromium, and chains that real runs have made: all tests of this folder look at them.

A browser is taken from ``AIRFLOW_FT_CHROMIUM``, the path, or Playwright's own; without one the tests skip and say how
to get it. ``AIRFLOW_FT_PICTURES=docs/images`` writes the pictures of the documentation while the tests run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.looking import OURS, Looker
from tests.browser.stories import Stories
from tests.browser.website import Website

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "apt-get install chromium, or playwright install chromium"


def chromium(playwright: Any) -> str | None:
    """The path of a Chromium."""
    found = os.environ.get("AIRFLOW_FT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    return found or (own if Path(own).exists() else None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("playwright is not installed: pip install 'airflow-ft[dev]'")
    with sync_playwright() as playwright:
        path = chromium(playwright)
        if path is None:
            pytest.skip(f"there is no Chromium: {HOW}")
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def site(browser: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Website]:
    """A healthy Airflow, and every story under way."""
    cache = getattr(request.config, "cache", None)  # shared with the other tests of a real Airflow, if there is one
    template = cache.mkdir("airflow-template") if cache else None
    made = Website(tmp_path_factory.mktemp("website") / "site", template)
    try:
        made.boot()
        for dag_id in ("crash", "lost_node", "hang", "budget", "oom", "cleared", "markup", "marked", "long"):
            made.start(dag_id)
        made.start("sweep", task_id="distill")
        yield made
    finally:
        made.shut_down()


@pytest.fixture(scope="session")
def story(site: Website) -> Stories:
    """The stories."""
    return Stories(site)


@pytest.fixture
def look(browser: Any, site: Website) -> Iterator[Looker]:
    """Look at pages. At the end no page may have had an error."""
    made = Looker(browser, site)
    yield made
    for context in made.opened:
        context.close()
    assert not made.troubles


@pytest.fixture
def picture() -> Callable[..., None]:
    """Take a picture for the documentation, if pictures are wanted."""
    folder = os.environ.get("AIRFLOW_FT_PICTURES")

    def take(page: Any, name: str) -> None:
        if folder is None:
            return
        bounds = page.locator(OURS).bounding_box() or {"y": 0, "height": 900}
        size = page.viewport_size
        height = int(bounds["y"] + page.locator(OURS).evaluate("element => element.scrollHeight") + 24)
        page.set_viewport_size({"width": size["width"], "height": max(700, min(2400, height))})
        page.locator(OURS).evaluate("element => { for (let e = element; e; e = e.parentElement) e.scrollTop = 0; }")
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        page.screenshot(path=str(Path(folder) / f"{name}.png"))
        page.set_viewport_size(size)

    return take
