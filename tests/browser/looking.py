"""Looking at pages with a browser, as a user; what goes wrong on them is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.browser.website import Key, Website

OURS = ".ft"


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
        # What the host asks for itself and this user may not see is the host's business.
        hosts = message.text.startswith("Failed to load") and "/fault-tolerance/" not in str(message.location)
        if message.type == "error" and not hosts and not any(words in message.text for words in self.allowed):
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
