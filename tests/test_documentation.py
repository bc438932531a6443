"""What the documents say is true: the code in them is code that is tested, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    """A relative link names a file that exists."""
    targets = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in targets if not (document.parent / link).exists()] == []


def test_the_readmes_dag_is_the_one_that_is_tested() -> None:
    """The ten lines that a user copies are those of dags/readme_example.py."""
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    _, _, code = (ROOT / "dags" / "readme_example.py").read_text().partition('"""\n\n')
    assert [line for line in shown.splitlines() if line] == [line for line in code.splitlines() if line]


def test_every_make_target_of_the_readme_exists() -> None:
    """README and CONTRIBUTING name no verb that the Makefile doesn't have."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {verb for document in DOCUMENTS for verb in re.findall(r"`?make ([a-z]+)", document.read_text())}
    assert named & {"demo", "test", "lint"} <= targets
    assert {verb for verb in named if f"`make {verb}" in (ROOT / "README.md").read_text()} <= targets
