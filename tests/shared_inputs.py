"""The inputs that lie beside the checkout (stories, real logs, the corpus): read from there, never copied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """Return a path beside the checkout, or skip the test with the reason."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not beside this checkout")
    return path


def story(name: str) -> Any:
    """Return what a story expects."""
    return json.loads(shared("stories", f"{name}.case.json").read_text())["expect"]
