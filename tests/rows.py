"""Which rows of the mission and which stories are proved by which tests: ``python -m tests.rows`` writes docs/rows.md.

Collected from the markers ``row`` and ``story``; nothing is run.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "rows.md"
HEAD = """# What is proved

Made by `python -m tests.rows` from the tests' markers. A row that isn't here isn't proved by a test yet.

| id | tests |
|---|---|
"""


class Collector:
    """A pytest plugin that remembers the markers of what was collected."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remember each marked test, without its parameters."""
        for item in items:
            for marker in [*item.iter_markers("row"), *item.iter_markers("story")]:
                for name in marker.args:
                    self.found[str(name)].add(item.nodeid.partition("[")[0])


def main() -> int:
    """Write the page."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-qq", str(ROOT / "tests")], plugins=[collector])
    if code:
        print(said.getvalue())
        return int(code)
    lines = [f"| {name} | {_tests(tests)} |" for name, tests in sorted(collector.found.items(), key=_order)]
    TARGET.write_text(HEAD + "\n".join(lines) + "\n")
    print(f"{TARGET.relative_to(ROOT)}: {len(lines)} rows and stories")
    return 0


def _order(entry: tuple[str, set[str]]) -> tuple[str, int]:
    letters, digits = re.fullmatch(r"([A-Z]+)-?(\d*)", entry[0]).groups()  # type: ignore[union-attr]
    return letters, int(digits or 0)


def _tests(tests: set[str]) -> str:
    shown = sorted(tests)
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return "<br>".join(f"`{test.removeprefix('tests/')}`" for test in shown[:4]) + more


if __name__ == "__main__":
    sys.exit(main())
