"""The files of the tabs: small, complete, and without a way for a log to become markup."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from airflow_ft.plugins.pages import BUNDLE, REACT_APPS
from airflow_ft.plugins.web import STATIC

FILES = sorted(STATIC.glob("*.js"))
LIMIT_BYTES = 60_000


def test_all_of_it_is_small() -> None:
    """What a browser loads is at most 60 kB, compressed file by file."""
    assert sum(len(gzip.compress(file.read_bytes())) for file in FILES) <= LIMIT_BYTES


def test_every_file_is_reached_from_the_entry_and_every_import_is_there() -> None:
    seen: set[Path] = set()
    waiting = [STATIC / Path(BUNDLE).name]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += [STATIC / name for name in re.findall(r'from "\./([\w.]+)"', file.read_text())]
    assert sorted(seen) == FILES


def test_the_entry_names_a_component_for_each_app() -> None:
    entry = (STATIC / "main.js").read_text()
    assert all(f'"{app["name"]}": ' in entry for app in REACT_APPS)


@pytest.mark.row("S11")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_makes_markup_of_a_text_and_nothing_comes_from_elsewhere(file: Path) -> None:
    text = file.read_text()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "dangerouslySetInnerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
    ):
        assert forbidden not in text
    assert not re.search(r"https?://", text)
