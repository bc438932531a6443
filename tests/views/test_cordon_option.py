"""Nodes are cordoned only where the installation says so."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.row("P5")]


@pytest.mark.parametrize(("given", "on"), [(None, False), ("False", False), ("True", True)])
def test_the_option_is_off_unless_it_is_switched_on(
    monkeypatch: pytest.MonkeyPatch, given: str | None, on: bool
) -> None:
    from airflow_ft.plugins import collector

    asked: list[bool] = []

    async def carry_out(store: Any, wanted: bool, now: Any) -> list[str]:
        asked.append(wanted)
        return ["kubernetes:gpus: n3 is cordoned."]

    monkeypatch.setattr(collector, "carry_out", carry_out)
    if given is not None:
        monkeypatch.setenv("AIRFLOW__FAULT_TOLERANCE__CORDON", given)
    collector.keep_nodes_out()
    assert asked == [on]
