"""Which nodes a preflight or a bisect takes, and what the quarantine learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest

from airflow_ft.agent.preflight_result import Result, failed, ok
from airflow_ft.attempts.checkups import Choice, Witness, bisect_entries, chosen, remember_preflight
from airflow_ft.attempts.quarantine import Quarantine
from airflow_ft.backends.base import Backend, PoolView
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.backends.preflight_reports import evidence
from airflow_ft.core.bisect import BisectResult
from airflow_ft.core.preflight import diagnosis_of
from airflow_ft.core.quarantine import Entry
from airflow_ft.diagnosis.preflighting import PreflightReport
from tests.attempts.dict_store import DictStore

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
WITNESS = Witness("health", "health.test", "health.test, preflight", NOW)


class Pool:
    def __init__(self, nodes: Sequence[str], free: Sequence[str] | None) -> None:
        self._view = PoolView(nodes=tuple(nodes), free=None if free is None else tuple(free))

    async def pool(self, job: object) -> PoolView:
        return self._view


def quarantined(*nodes: str, word: str = "platform", since: datetime = NOW - timedelta(hours=1)) -> Quarantine:
    quarantine = Quarantine(DictStore(), "local:default")
    for node in nodes:
        quarantine.add(Entry(node=node, word=word, since=since, until=NOW + timedelta(days=1), by="somebody"))
    return quarantine


def choice(wanted: str | list[str], quarantine: Quarantine, free: Sequence[str] | None = ("n1", "n2", "n3")) -> Choice:
    backend = cast("Backend", Pool(["n1", "n2", "n3", "n4"], free))
    return asyncio.run(chosen(wanted, backend, LocalJob(command="true"), quarantine, NOW, lambda text: None))


def report(*bad: str, nodes: Sequence[str] = ("n1", "n2", "n3")) -> PreflightReport:
    def items(node: str) -> tuple[Result, ...]:
        found = failed("0 GB", "> 1 GB", "Make room.") if node in bad else ok("9 GB")
        return (found._replace(item="disk-free root"),)

    found = {node: items(node) for node in nodes}
    said = [one for node in nodes for one in evidence(node, {"items": [list(item) for item in found[node]]})]
    return PreflightReport(nodes=found, diagnosis=diagnosis_of(said, nodes))


@pytest.mark.parametrize(
    ("wanted", "bad", "free", "nodes"),
    [
        ("free", [], ["n1", "n3"], ("n1", "n3")),
        ("free", ["n3"], ["n1", "n3"], ("n1",)),
        ("free", ["n3"], None, ("n1", "n2", "n4")),  # the backend can't tell who is free
        ("quarantined", [], ["n1", "n2", "n3"], ()),
        ("quarantined", ["n3"], ["n1", "n2", "n3", "n4"], ("n3", "n1", "n2")),
        ("quarantined", ["n3"], ["n1", "n2"], ()),  # it is in use
        (["n4", "n1"], [], ["n1"], ("n4", "n1")),  # one that is in use is waited for
        (["n4", "n1"], ["n4"], ["n1"], ("n1",)),
    ],
)
def test_the_nodes_that_are_looked_at(
    wanted: str | list[str], bad: list[str], free: list[str] | None, nodes: tuple[str, ...]
) -> None:
    assert choice(wanted, quarantined(*bad), free).nodes == nodes


def test_what_was_asked_for_and_is_not_looked_at_is_told() -> None:
    found = choice(["n1", "n3", "n9"], quarantined("n3"))
    assert (found.nodes, found.left_out, found.unusable) == (("n1",), ("n3",), ("n9",))


@pytest.mark.row("S4")
def test_a_bad_node_goes_into_quarantine_with_its_evidence() -> None:
    quarantine = quarantined()
    remember_preflight(quarantine, report("n2"), (), True, WITNESS, lambda text: None)
    (kept,) = quarantine.in_force(NOW)
    assert kept.node == "n2"
    assert "item=disk-free root status=failed" in kept.entries[0].evidence


def test_an_item_that_fails_on_every_node_puts_none_into_quarantine() -> None:
    quarantine = quarantined()
    remember_preflight(quarantine, report("n1", "n2", "n3"), (), True, WITNESS, lambda text: None)
    assert quarantine.in_force(NOW) == []


@pytest.mark.parametrize(
    ("word", "bad", "deep", "released"),
    [
        ("platform", (), True, ("n2",)),
        ("platform", (), False, ()),
        ("platform", ("n2",), True, ()),
        ("platform", ("n1", "n2", "n3"), True, ()),  # nobody's fault, but no pass either
        ("person", (), True, ()),
    ],
)
def test_who_passes_a_deep_preflight_is_released(
    word: str, bad: tuple[str, ...], deep: bool, released: tuple[str, ...]
) -> None:
    quarantine = quarantined("n2", word=word)
    kept = quarantine.in_force(NOW)
    assert remember_preflight(quarantine, report(*bad), kept, deep, WITNESS, lambda text: None) == released
    assert [one.node for one in quarantine.in_force(NOW)] == [one for one in ("n2",) if one not in released]


def test_a_node_that_was_not_tested_stays() -> None:
    quarantine = quarantined("n4")
    assert remember_preflight(quarantine, report(), quarantine.in_force(NOW), True, WITNESS, lambda text: None) == ()


def test_what_ended_long_ago_is_removed_and_a_store_that_is_away_stops_nothing() -> None:
    store = DictStore()
    quarantine = Quarantine(store, "local:default")
    old = NOW - timedelta(days=9)
    quarantine.add(Entry(node="n1", word="platform", since=old, until=old + timedelta(days=3), by="somebody"))
    remember_preflight(quarantine, report(), (), True, WITNESS, lambda text: None)
    assert store.values == {}

    class Away(DictStore):
        def keys(self, prefix: str) -> list[str]:
            raise ConnectionError("api-server away")

        def set(self, key: str, value: object) -> None:
            raise ConnectionError("api-server away")

    said: list[str] = []
    kept = quarantined("n3").in_force(NOW)
    assert remember_preflight(Quarantine(Away(), "c"), report("n2"), kept, True, WITNESS, said.append) == ()
    assert [text.split(" ")[0] for text in said] == ["n2", "n3", "What"]


def test_what_is_said_of_a_node_while_it_is_tested_outlives_its_release() -> None:
    quarantine = quarantined("n2")
    kept = quarantine.in_force(NOW)
    later = NOW + timedelta(seconds=5)
    quarantine.add(Entry(node="n2", word="platform", since=later, until=NOW + timedelta(days=1), by="another"))
    remember_preflight(quarantine, report(), kept, True, WITNESS, lambda text: None)
    (left,) = quarantine.in_force(later)
    assert [entry.by for entry in left.entries] == ["another"]


@pytest.mark.row("S4")
def test_what_a_users_own_program_says_counts_like_a_jobs_word() -> None:
    result = BisectResult(faulty_nodes=("n2",), confidence={"n2": 0.99}, details={1: "code 7"})
    said: list[Any] = [(entry.node, entry.word, entry.evidence) for entry in bisect_entries(result, True, WITNESS)]
    said += [(entry.node, entry.word, entry.evidence) for entry in bisect_entries(result, False, WITNESS)]
    assert said == [("n2", "job", "code 7"), ("n2", "platform", "code 7")]
