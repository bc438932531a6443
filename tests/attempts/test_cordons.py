"""What is in quarantine is cordoned on Kubernetes, where that is switched on: on an API server in memory.

How a real one answers such a patch is plain Kubernetes; that only what is ours is touched is what counts here.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_ft.attempts.cordons import DONE_PREFIX, carry_out
from airflow_ft.attempts.quarantine import Quarantine
from airflow_ft.backends.kubernetes import cluster
from airflow_ft.backends.kubernetes.cordon import LABEL, REASON
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.quarantine import Entry
from tests.attempts.dict_store import DictStore
from tests.backends.fake_kubernetes import FakeApi

pytestmark = [pytest.mark.row("P5"), pytest.mark.story("EXC-03")]
NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
CLUSTER = "kubernetes:gpus"


class World:
    """Eight nodes (two may be kept out), a quarantine, and whoever carries it out."""

    def __init__(self) -> None:
        self.api, self.store = FakeApi(pods=0), DictStore()
        for number in range(1, 9):
            self.api.add_node(f"n{number}")
        self.quarantine = Quarantine(self.store, CLUSTER)

    def put(self, node: str, hours: float = 1.0, word: str = "platform", age: float = 1.0) -> None:
        since, until = NOW - timedelta(minutes=age), NOW + timedelta(hours=hours)
        self.quarantine.add(Entry(node=node, word=word, reason="Xid 79", since=since, until=until, by="dag.train"))

    def look(self, at: datetime = NOW, on: bool = True) -> list[str]:
        async def story() -> list[str]:
            cluster.of("gpus").api = self.api  # type: ignore[assignment]
            backend = create_backend("kubernetes")
            told = await carry_out(self.store, on, at)
            await backend.close()  # type: ignore[attr-defined]
            return told

        return asyncio.run(story())

    def node(self, name: str) -> Any:
        return self.api.objects[f"/api/v1/nodes/{name}"]

    def cordoned(self) -> list[str]:
        names = (f"n{number}" for number in range(1, 9))
        return [name for name in names if self.node(name)["spec"].get("unschedulable")]


@pytest.fixture
def world() -> World:
    return World()


def test_a_node_in_quarantine_is_cordoned_with_the_reason_once(world: World) -> None:
    world.put("n3")
    assert world.look() == [f"{CLUSTER}: n3 is cordoned."]
    assert world.cordoned() == ["n3"]
    metadata = world.node("n3")["metadata"]
    assert metadata["labels"][LABEL] == "cordoned" and "Xid 79 (dag.train)" in metadata["annotations"][REASON]
    assert metadata["labels"]["kubernetes.io/hostname"] == "n3", "what it had stays"
    assert world.look() == [], "idempotent: nothing is changed twice"


def test_off_nothing_is_asked_of_the_cluster(world: World) -> None:
    world.put("n3")
    assert world.look(on=False) == []
    assert world.api.calls == 0 and world.cordoned() == []


@pytest.mark.parametrize("how", ["released", "ended", "switched off"])
def test_it_is_undone_when_the_node_is_let_go_or_the_option_is_switched_off(world: World, how: str) -> None:
    world.put("n3")
    world.look()
    later = NOW + timedelta(hours=2) if how == "ended" else NOW
    if how == "released":
        world.quarantine.release("n3", "ada", NOW)
    assert world.look(later, on=how != "switched off") == [f"{CLUSTER}: n3 is uncordoned."]
    assert world.cordoned() == []
    metadata = world.node("n3")["metadata"]
    assert LABEL not in metadata["labels"] and REASON not in metadata["annotations"]
    assert world.store.keys(DONE_PREFIX) == []


def test_never_more_than_the_cap(world: World) -> None:
    """A quarter of eight; a person's word goes first, then the newest."""
    for number in range(1, 5):
        world.put(f"n{number}", age=10.0 - number)
    world.put("n5", word="person", age=60.0)
    world.look()
    assert world.cordoned() == ["n4", "n5"]
    world.look()
    assert world.cordoned() == ["n4", "n5"], "those that are out already don't make room for more"


def test_what_somebody_else_has_cordoned_is_theirs(world: World) -> None:
    world.api.objects["/api/v1/nodes/n3"]["spec"]["unschedulable"] = True
    world.put("n3")
    assert world.look() == []
    world.quarantine.release("n3", "ada", NOW)
    assert world.look() == []
    assert world.cordoned() == ["n3"]


def test_a_node_that_a_person_brings_back_stays_back(world: World) -> None:
    world.put("n3")
    world.look()
    world.node("n3")["spec"]["unschedulable"] = False
    assert world.look() == []
    assert world.cordoned() == []


def test_a_node_that_changes_in_the_same_moment_is_looked_at_again(world: World) -> None:
    """The version that was read is named: nobody's change is written over."""
    world.put("n3")
    get = world.api.get

    async def changed_meanwhile(path: str, **query: Any) -> Any:
        found = await get(path, **query)
        read = {"items": [{**item, "metadata": dict(item["metadata"])} for item in found["items"]]}
        world.node("n3")["metadata"]["resourceVersion"] += "7"
        return read

    world.api.get = changed_meanwhile  # type: ignore[method-assign]
    (told,) = world.look()
    assert "n3 is not cordoned yet: 409" in told and world.cordoned() == []
    world.api.get = get  # type: ignore[method-assign]
    world.look()
    assert world.cordoned() == ["n3"]


def test_the_pool_still_counts_what_we_have_cordoned_ourselves(world: World) -> None:
    """Else the cap would shrink with every node that is kept out, and nobody could test one again."""
    from airflow_ft.backends.kubernetes.backend import _in_service

    world.put("n3")
    world.look()
    world.node("n4")["spec"]["unschedulable"] = True
    assert _in_service(world.node("n3")) and not _in_service(world.node("n4"))
