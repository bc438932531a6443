"""One real Airflow, one Chromium, and chains that real runs have made: all tests of this folder look at them.

A browser is taken from ``AIRFLOW_FT_CHROMIUM``, the path, or Playwright's own; without one the tests skip and say how
to get it. ``AIRFLOW_FT_PICTURES=docs/images`` writes the pictures of the documentation while the tests run.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.backends.local import inventory
from tests.browser.website import Key, Website
from tests.views.long_chain import long_chain

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "apt-get install chromium, or playwright install chromium"
OURS = ".ft"


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


@dataclass
class Stories:
    """Each story is brought to the state that its tests look at, when the first of them asks for it."""

    site: Website
    ready: dict[str, Key] = field(default_factory=dict)

    def __call__(self, name: str) -> Key:
        """Return the task instance of a story, told to its end."""
        if name not in self.ready:
            key = (name, "run", "pretrain")
            getattr(self, f"_{name}", self._wait_ended)(key)
            self.ready[name] = key
        return self.ready[name]

    def _wait_ended(self, key: Key) -> None:
        self.site.wait_state(key, "success", "failed")

    def _crash(self, key: Key) -> None:
        self.site.wait_view(key, "recovered", runs=2)

    def _lost_node(self, key: Key) -> None:
        steps = lambda: (self.site.view(key)["runs"] or [{}])[0].get("last_step")  # noqa: E731
        self.site.client.wait(lambda: (steps() or 0) > 5, "steps on both nodes", 150)
        (job,) = [job for job in inventory.list_jobs(str(self.site.root)) if job.tags["dag_id"] == "lost_node"]
        inventory.lose_node(str(self.site.root), "default", job.nodes[-1])
        self.site.wait_view(key, "recovered", runs=2)

    def _cleared(self, key: Key) -> None:
        self.site.wait_state(key, "failed")
        self.site.client.clear(*key[:2], ["pretrain"])
        self.site.client.wait(lambda: (self.site.view(key).get("segment")) == 1, "a second segment", 150)

    def _marked(self, key: Key) -> None:
        self.site.wait_state(key, "deferred")
        self.site.client.wait(lambda: self.site.view(key)["runs"], "a chain", 150)
        self.site.client.mark(*key, "failed")
        self.site.wait_view(key, "failed")

    def _long(self, key: Key) -> None:
        """128 attempts are written into the state store, as their tries would have: they would take a month."""
        self.site.wait_state(key, "success")
        records = long_chain(128, datetime.now(timezone.utc) - timedelta(days=23))
        with sqlite3.connect(self.site.stack.home / "airflow.db", timeout=60) as database:
            (run,) = database.execute("SELECT id FROM dag_run WHERE dag_id = ?", (key[0],)).fetchone()
            database.execute("DELETE FROM task_state_store WHERE dag_run_id = ?", (run,))
            now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
            rows = [(run, key[2], -1, name, key[0], key[1], value, now) for name, value in records.items()]
            database.executemany(
                "INSERT INTO task_state_store (dag_run_id, task_id, map_index, key, dag_id, run_id, value, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )


@pytest.fixture(scope="session")
def story(site: Website) -> Stories:
    """The stories."""
    return Stories(site)


@dataclass
class Looker:
    """Opens pages, and remembers what went wrong on them."""

    browser: Any
    site: Website
    troubles: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    opened: list[Any] = field(default_factory=list)

    def page(self, user: str = "admin", *, dark: bool = False, width: int = 1280, height: int = 900) -> Any:
        """A page of a user who is logged in."""
        context = self.browser.new_context(viewport={"width": width, "height": height})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.add_cookies([{"name": "_token", "value": self.site.token(user), "url": self.site.stack.url}])
        if dark:
            context.add_init_script("localStorage.setItem('theme', 'dark')")
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        self.opened.append(context)
        return page

    def _console(self, message: Any) -> None:
        if message.type == "error" and not any(words in message.text for words in self.allowed):
            self.troubles.append(f"console: {message.text} {message.location}")

    def chain(self, key: Key, map_index: int = -1, **how: Any) -> Any:
        """The tab of a task instance, loaded."""
        dag_id, run_id, task_id = key
        mapped = f"/mapped/{map_index}" if map_index >= 0 else ""
        page = self.page(**how)
        page.goto(f"{self.site.stack.url}/dags/{dag_id}/runs/{run_id}/tasks/{task_id}{mapped}/plugin/retry-chain")
        page.wait_for_selector(f"{OURS} .answers")
        return page

    def own(self, key: Key, map_index: int = -1, **how: Any) -> Any:
        """The chain's own page, loaded."""
        dag_id, run_id, task_id = key
        page = self.page(**how)
        query = f"dag_id={dag_id}&run_id={run_id}&task_id={task_id}&map_index={map_index}"
        page.goto(f"{self.site.stack.url}/plugin/fault-tolerance?{query}")
        page.wait_for_selector(f"{OURS} .answers, {OURS} .empty")
        return page


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
