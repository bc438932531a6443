"""The checker that every run of these tests passes: no duplicate job, none lost, none killed, the chain tells why."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_ft.attempts.record import NOTIFIED
from airflow_ft.core.chain import AttemptState, Chain
from airflow_ft.core.decisions import Action
from tests.airflow.harness import Harness, Run

GONE_SECONDS = 15.0  # an agent that was released needs a moment to end


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; none if there is no such file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(
    airflow: Harness,
    run: Run,
    *,
    state: str = "success",
    attempts: int = 1,
    in_place: int = 0,
    restarts: int = 0,
    killed: int = 0,
    nodes: int = 1,
    segments: int = 1,
) -> Chain:
    """Check a run that has ended, and return its chain.

    :param attempts: how many jobs were created in all, one for each attempt number.
    :param in_place: how many restarts in place there were.
    :param restarts: what was charged to ``max_restarts`` in the last segment.
    :param killed: how many starts of rank 0 had an end that they did not choose (a hang, a person's stop).
    """
    try:
        return _checked(airflow, run, state, attempts, in_place, restarts, killed, nodes, segments)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{airflow.explain(run)}") from None


def _checked(
    airflow: Harness,
    run: Run,
    state: str,
    attempts: int,
    in_place: int,
    restarts: int,
    killed: int,
    nodes: int,
    segments: int,
) -> Chain:
    assert airflow.state(run) == state
    chain = airflow.chain(run)
    jobs = airflow.jobs(run)
    assert [job.attempt for job in jobs] == list(range(attempts)), "one job for each attempt number"
    assert {job.chain_id for job in jobs} <= {chain.chain_id}, "no job of another chain"
    assert all(job.closed for job in jobs), "no job can start anything any more"
    _nothing_lives(airflow, run)
    _lives(airflow.told(run), attempts, in_place, killed, nodes)
    _records(airflow, run, chain, attempts, in_place)
    assert chain.ledger.restarts == restarts, "what was charged"
    assert chain.segment == segments - 1
    assert not chain.debts
    _told_once(airflow, chain)
    return chain


def _nothing_lives(airflow: Harness, run: Run) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while left := airflow.processes(run):
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.2)


def _lives(told: list[dict[str, Any]], attempts: int, in_place: int, killed: int, nodes: int) -> None:
    """Each start of the training ended by itself, and no two were alive at once."""
    assert not [one for one in told if one["what"] == "double"], "two attempts at once"
    first = [one for one in told if one["rank"] == 0]
    starts, ends = (Counter(one["pid"] for one in first if one["what"] == what) for what in ("start", "end"))
    assert len(starts) == attempts + in_place, f"{len(starts)} starts of training"
    assert len({(one["attempt"], one["generation"]) for one in first if one["what"] == "start"}) == len(starts)
    own = [one for one in first if one["what"] == "end" and one["code"] != 143]
    assert len(starts) - len(own) == killed, f"{len(starts)} starts and {len(own)} ends of their own"
    assert not ends - starts
    if not killed:
        assert not [one for one in first if one["what"] == "term"], "a healthy training was told to stop"
    ranks = {one["rank"] for one in told}
    assert ranks == set(range(nodes)), f"ranks {ranks}"


def _records(airflow: Harness, run: Run, chain: Chain, attempts: int, in_place: int) -> None:
    shown = airflow.client.retry_chain(*run.key, map_index=run.map_index)
    assert not shown["unreadable"]
    assert chain.open is None, "no attempt is left open"
    assert chain.attempts == attempts
    records = shown["attempts"]
    assert [record.get("state") for record in records] == [AttemptState.CONCLUDED.value] * attempts
    assert all(record.get("fenced") and record.get("outcome") for record in records), records
    incidents = [incident for record in records for incident in record.get("incidents", ())]
    restarted = [one for one in incidents if one["decision"]["action"] == Action.RESTART_IN_PLACE.value]
    assert [(one.get("recovery") or {}).get("state") for one in restarted] == ["recovered"] * in_place, "recoveries"
    names = [job.name for job in airflow.jobs(run)]
    assert [record["ref"]["name"] for record in records if record.get("ref")] == names, "every job's id is in the chain"


def _told_once(airflow: Harness, chain: Chain) -> None:
    """One message for each event that is worth one, none for the others."""
    told = [message["key"] for message in read_lines(airflow.story / f"{chain.chain_id}.told")]
    worth = [f"{chain.chain_id}/{event.id}" for event in chain.events if event.kind in NOTIFIED]
    assert told == worth, "notifications"


def kinds(chain: Chain) -> list[str]:
    """The kinds of a chain's events, in order."""
    return [event.kind for event in chain.events]
