"""Quarantine: whose word counts, how it ends, and how many nodes it may keep out."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_ft.core.quarantine import Entry, Kept, Release, in_force, under_the_cap

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
pytestmark = pytest.mark.row("P5")


def word(node: str, kind: str = "platform", chain: str = "a", hours_ago: float = 1, hours: float = 72) -> Entry:
    since = NOW - timedelta(hours=hours_ago)
    until = since + timedelta(hours=hours)
    return Entry(node=node, word=kind, chain_id=chain, task=f"dag.{chain}", since=since, until=until, reason="it broke")


def nodes(kept: list[Kept]) -> list[str]:
    return [one.node for one in kept]


@pytest.mark.parametrize("kind", ["person", "platform"])
def test_a_person_and_the_platform_are_believed_at_once(kind: str) -> None:
    assert nodes(in_force([word("n3", kind)], [], NOW)) == ["n3"]


def test_a_jobs_own_word_takes_two_unrelated_chains() -> None:
    once, again, other = word("n3", "job", "a"), word("n3", "job", "a", 0.5), word("n3", "job", "b")
    assert in_force([once], [], NOW) == []
    assert in_force([once, again], [], NOW) == []
    assert nodes(in_force([once, other], [], NOW)) == ["n3"]


@pytest.mark.story("EXC-03")
def test_a_ready_node_that_refuses_pods_is_out_after_three_chains_were_refused() -> None:
    refused = [word("n3", "refusal", chain) for chain in ("a", "b", "c")]
    assert in_force(refused[:1], [], NOW) == []
    assert in_force(refused[:2], [], NOW) == []
    (kept,) = in_force(refused, [], NOW)
    assert kept.node == "n3"
    assert kept.until > NOW, "it ends by itself"


@pytest.mark.story("EXC-06")
def test_an_entry_ends_by_itself() -> None:
    entry = word("n3", hours_ago=2, hours=2)
    assert in_force([entry], [], entry.until - timedelta(seconds=1)) != []
    assert in_force([entry], [], entry.until) == []


@pytest.mark.story("EXC-06")
def test_a_persons_release_voids_what_was_said_before_and_nothing_after() -> None:
    release = Release(node="n3", at=NOW - timedelta(hours=2), by="ada")
    assert in_force([word("n3", hours_ago=3)], [release], NOW) == []
    assert nodes(in_force([word("n3", hours_ago=3), word("n3", hours_ago=1)], [release], NOW)) == ["n3"]
    assert nodes(in_force([word("n4", hours_ago=3)], [release], NOW)) == ["n4"]


def test_a_node_says_why_until_when_and_by_whom() -> None:
    (kept,) = in_force([word("n3").but(by="dag.task, attempt 2")], [], NOW)
    assert kept.why == "n3 is in quarantine until 2026-03-04 11:00 UTC: it broke (dag.task, attempt 2)"


@pytest.mark.story("EXC-01")
def test_never_more_than_a_share_of_the_pool_and_never_so_many_that_the_job_finds_no_place() -> None:
    kept = in_force([word(f"n{number}", hours_ago=number) for number in range(1, 6)], [], NOW)
    pool = [f"n{number}" for number in range(1, 9)]
    out, avoided = under_the_cap(kept, pool, (), needed=2)
    assert (nodes(out), nodes(avoided)) == (["n1", "n2"], ["n3", "n4", "n5"])  # a quarter of eight; the newest first
    out, avoided = under_the_cap(kept, pool, (), needed=7)
    assert (len(out), len(avoided)) == (1, 4)
    out, _ = under_the_cap(kept, pool, excluded=("n8", "n7"), needed=6)
    assert out == []


@pytest.mark.story("EXC-02")
def test_a_name_that_no_longer_exists_is_dropped_and_an_unseen_pool_keeps_nobody_out() -> None:
    kept = in_force([word("gone"), word("n1")], [], NOW)
    out, avoided = under_the_cap(kept, ["n1", "n2", "n3", "n4"], (), needed=1)
    assert (nodes(out), nodes(avoided)) == (["n1"], [])
    out, avoided = under_the_cap(kept, (), (), needed=1)
    assert (nodes(out), sorted(nodes(avoided))) == ([], ["gone", "n1"])


def test_a_persons_word_has_precedence_under_the_cap() -> None:
    kept = in_force([word("n1", hours_ago=0.1), word("n2", "person", hours_ago=9)], [], NOW)
    out, _ = under_the_cap(kept, ["n1", "n2", "n3", "n4"], (), needed=1)
    assert nodes(out) == ["n2"]
