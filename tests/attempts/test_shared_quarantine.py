"""The quarantine between chains: written by one, respected by another, lost by none."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import JsonValue

from airflow_ft.attempts.quarantine import Quarantine, cluster_of, entries_of, kept_out, written
from airflow_ft.backends.base import PoolView, UnreachableError
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import Chain, Incident, PastFault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Suspect, Trust
from airflow_ft.core.quarantine import Entry
from tests.attempts.dict_store import DictStore

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
JOB = LocalJob(command="true", nodes=2)
pytestmark = pytest.mark.row("P5")


class Nodes:
    """A backend of which only the pool is asked."""

    def __init__(self, *names: str, reachable: bool = True) -> None:
        self._names, self._reachable = names, reachable

    async def pool(self, job: object) -> PoolView:
        if not self._reachable:
            raise UnreachableError("no answer")
        return PoolView(nodes=self._names)


def chain(name: str = "a", **more: Any) -> Chain:
    return Chain(chain_id=name, dag_id=f"dag_{name}", run_id="r", task_id="t", created_at=NOW, **more)


def incident(node: str = "n3", trust: Trust = Trust.PLATFORM, **diagnosis: Any) -> Incident:
    root = Evidence(source="node", text=f"{node} lost power", node=node, trust=trust)
    given = {"fault_class": FaultClass.HW_NODE, "text": f"{node} is lost.", "root": root, "signature": "platform.lost"}
    return Incident(
        attempt=0,
        detected_at=NOW,
        diagnosis=Diagnosis(**{**given, "suspects": (Suspect(kind="node", name=node),), **diagnosis}),
        decision=Decision(action=Action.RESUBMIT_EXCLUDING, reason="", excluded_nodes=(node,)),
    )


def asked(quarantine: Quarantine | None, backend: Any, now: datetime = NOW) -> tuple[list[str], list[str], list[str]]:
    said: list[str] = []
    out, avoided = asyncio.run(kept_out(quarantine, backend, JOB, (), now, said.append))
    return out, avoided, said


@pytest.mark.story("EXC-06")
def test_what_one_chain_excluded_another_avoids_and_says_why_until_it_ends_or_a_person_releases_it() -> None:
    quarantine, nodes = Quarantine(DictStore(), cluster_of(JOB)), Nodes("n1", "n2", "n3", "n4")
    written(quarantine, entries_of(chain("a"), [incident("n3")], timedelta(hours=2)), lambda text: None)
    out, _, said = asked(quarantine, nodes, NOW + timedelta(hours=1))
    assert out == ["n3"]
    assert said == ["n3 is in quarantine until 2026-03-01 14:00 UTC: n3 is lost. (dag_a.t, attempt 0)."]
    assert asked(quarantine, nodes, NOW + timedelta(hours=2))[0] == []
    quarantine.release("n3", "ada", NOW + timedelta(minutes=5))
    assert asked(quarantine, nodes, NOW + timedelta(hours=1))[0] == []


@pytest.mark.story("EXC-06")
def test_writers_at_the_same_moment_lose_no_entry() -> None:
    store = DictStore()
    ready = threading.Barrier(16)

    def write(number: int) -> None:
        ready.wait()
        entry = Entry(node="n3", word="job", chain_id=f"c{number}", since=NOW, until=NOW + timedelta(hours=1))
        Quarantine(store, "local:default").add(entry)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (kept,) = Quarantine(store, "local:default").in_force(NOW)
    assert len(kept.entries) == 16


def test_the_same_word_written_twice_is_one() -> None:
    store = DictStore()
    for _ in range(2):
        written(Quarantine(store, "c"), entries_of(chain(), [incident()]), lambda text: None)
    assert len(store.values) == 1


def test_a_node_of_the_same_name_in_another_cluster_is_another_node() -> None:
    store = DictStore()
    written(Quarantine(store, "local:default"), entries_of(chain(), [incident("n3")]), lambda text: None)
    assert asked(Quarantine(store, "local:other"), Nodes("n3", "n4", "n5", "n6"))[0] == []


def test_a_job_that_makes_many_nodes_look_bad_puts_none_of_them_into_quarantine() -> None:
    cause = incident().diagnosis.cause()
    earlier = tuple(PastFault(cause=cause, action="RESUBMIT_EXCLUDING", nodes=(node,)) for node in ("n1", "n2"))
    assert entries_of(chain(faults=earlier), [incident("n3")]) == []


@pytest.mark.parametrize("fault_class", [FaultClass.APP_ERROR, FaultClass.OOM_HOST, FaultClass.UNKNOWN])
def test_only_hardware_and_network_say_something_about_a_node(fault_class: FaultClass) -> None:
    assert entries_of(chain(), [incident(fault_class=fault_class)]) == []


def test_a_shared_store_that_is_away_keeps_nobody_out_and_stops_nothing() -> None:
    class Away(DictStore):
        def keys(self, prefix: str) -> list[str]:
            raise ConnectionError("api-server away")

        def set(self, key: str, value: JsonValue) -> None:
            raise ConnectionError("api-server away")

    out, avoided, said = asked(Quarantine(Away(), "c"), Nodes("n1"))
    assert (out, avoided) == ([], [])
    assert "can't be read" in said[0]
    written(Quarantine(Away(), "c"), entries_of(chain(), [incident()]), said.append)
    assert "could not be put into quarantine" in said[1]


def test_where_the_pool_cannot_be_seen_nodes_are_only_avoided() -> None:
    quarantine = Quarantine(DictStore(), "c")
    written(quarantine, entries_of(chain(), [incident("n3")]), lambda text: None)
    out, avoided, _ = asked(quarantine, Nodes(reachable=False))
    assert (out, avoided) == ([], ["n3"])


def test_a_record_that_cannot_be_read_is_left_out_and_what_ended_is_swept() -> None:
    store = DictStore()
    quarantine = Quarantine(store, "c")
    store.set("ft_quarantine/c/n9/x", {"version": "?"})
    written(quarantine, entries_of(chain(), [incident("n3")], timedelta(hours=1)), lambda text: None)
    assert [one.node for one in quarantine.in_force(NOW)] == ["n3"]
    assert quarantine.sweep(NOW + timedelta(hours=2)) == 0
    assert quarantine.sweep(NOW + timedelta(days=3)) == 1
