"""Lists of chains as pages show them: a row for each, from its head alone; and the chains of a DAG run together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from airflow_ft.core.chain import Incident
from airflow_ft.core.story import WAITS
from airflow_ft.views import answers
from airflow_ft.views.chain_view import cut, task_key
from airflow_ft.views.listing import Batch, Filter, Head, Place, heads, with_published_of
from airflow_ft.views.models import ChainPage, ChainRow, RunChains, Todo
from airflow_ft.views.records import LIVE_STATES, StoredChain
from airflow_ft.views.runs import DISRUPTION

MOST_MARKS = 40
MOST_OF_RUN = 200
SEARCHED = 1_000  # heads that are looked at for one page: 10 MB at most; the page says if there is more to look at
SEARCHED_AT_ONCE = 250
NOTHING = Batch((), 0, None, False)
ENDED_BADLY = ("stopped by fault tolerance", "failed")
ORDER = (*ENDED_BADLY, WAITS, "unreadable", "recovering", "recovered", "running", "starting")
HEADLINE = 200


def chain_page(
    session: Any, wanted: Filter, now: datetime, *, state: str | None, after: str | None, limit: int
) -> ChainPage:
    """Return a page of chains, those that go on first. Raises ``ValueError`` for an ``after`` that isn't ours."""
    going_on, place = _read_place(after)
    rows: list[ChainRow] = []
    looked = 0

    def page(further: str | None) -> ChainPage:
        return ChainPage(now=now.timestamp(), items=tuple(rows), next=further, looked_at=looked)

    at_once = min(limit + 1, SEARCHED_AT_ONCE)
    while looked < SEARCHED:
        possible = _can_have(going_on, state)
        batch = heads(session, wanted, going_on=going_on, after=place, limit=at_once) if possible else NOTHING
        for head in with_published_of(session, batch.heads):
            if not _fits(head.stored, wanted, state):
                continue
            rows.append(chain_row(head))
            if len(rows) == limit:
                return page(_write_place(going_on, head.place))
        looked += batch.read
        if batch.full:  # what is wanted is rare: look at more at once
            place, at_once = batch.last, min(4 * at_once, SEARCHED_AT_ONCE)
        elif going_on:
            going_on, place = False, None
        else:
            return page(None)
    return page(_write_place(going_on, place))


def _can_have(going_on: bool, state: str | None) -> bool:
    return state is None or going_on == (state in LIVE_STATES) or state in ("failed", "succeeded")


def _fits(stored: StoredChain, wanted: Filter, state: str | None) -> bool:
    faults = list(_faults(stored))
    return (
        (state is None or stored.state == state)
        and (wanted.fault_class is None or any(kind == wanted.fault_class for kind, _ in faults))
        and (wanted.node is None or any(wanted.node in nodes for _, nodes in faults))
    )


def _faults(stored: StoredChain) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Class and nodes of each fault: those in the head, then the restarts in place of the attempt that runs."""
    for fault in stored.chain.faults:
        yield fault.cause[0], fault.nodes
    for incident in stored.live_incidents:
        if not incident.again:
            yield _kind(incident), incident.diagnosis.suspect_nodes


def _kind(incident: Incident) -> str:
    return DISRUPTION if incident.diagnosis.disruption else incident.diagnosis.fault_class.value


def _write_place(going_on: bool, place: Place | None) -> str:
    return f"{int(going_on)}:" + ("" if place is None else f"{place[0]}:{place[2]}:{place[1]}")


def _read_place(after: str | None) -> tuple[bool, Place | None]:
    if not after:
        return True, None
    going_on, _, rest = after.partition(":")
    if going_on not in ("0", "1"):
        raise ValueError(f"after: {after!r:.80} is not allowed. Give what the page before said as next.")
    if not rest:
        return going_on == "1", None
    run, _, rest = rest.partition(":")
    index, _, task_id = rest.partition(":")
    return going_on == "1", (int(run), task_id, int(index))


def chain_row(head: Head) -> ChainRow:
    """Return a chain's row."""
    stored, chain = head.stored, head.stored.chain
    faults = list(_faults(stored))
    kind, nodes = faults[-1] if faults else (None, ())
    marks = tuple(_marks(stored))
    return ChainRow(
        task=task_key(chain),
        state=stored.state,
        headline=cut(answers.headline(stored), HEADLINE),
        started=chain.created_at.timestamp(),
        updated=head.updated.timestamp(),
        attempts=chain.attempts,
        used=(chain.ledger.restarts, chain.max_restarts),
        marks=marks,
        last_class=kind or (marks[-1][1] if marks else None),  # of the segment, else of the chain
        last_node=nodes[0] if nodes else None,
    )


def _marks(stored: StoredChain) -> list[tuple[float, str]]:
    """When its faults were, and of which class: the head's events have the times, and what runs has published more."""
    found = []
    for event in stored.chain.events:
        if event.kind in ("fault", "stopped"):
            said = event.text.split(": ")
            kind = said[1] if len(said) > 1 and said[0].startswith("Attempt ") else "UNKNOWN"
            found.append((event.at.timestamp(), kind if kind.isupper() else DISRUPTION))
    for incident in stored.live_incidents:
        if incident.generation > stored.chain.told_generation and not incident.again:
            found.append((incident.detected_at.timestamp(), _kind(incident)))
    return found[-MOST_MARKS:]


def run_chains(session: Any, dag_id: str, run_id: str, now: datetime) -> RunChains:
    """Return the chains of a DAG run: those that need a person first."""
    wanted = Filter(dag_ids=(dag_id,), run_id=run_id)
    both = [heads(session, wanted, going_on=kind, after=None, limit=MOST_OF_RUN + 1) for kind in (True, False)]
    found = [head for batch in both for head in batch.heads]
    more = len(found) > MOST_OF_RUN
    rows = [chain_row(head) for head in with_published_of(session, found)[:MOST_OF_RUN]]
    rows.sort(key=lambda row: (_rank(row.state), row.task.task_id, row.task.map_index))
    counts = Counter(row.state for row in rows)
    return RunChains(
        now=now.timestamp(),
        live=any(row.state in LIVE_STATES for row in rows),
        headline=_headline(counts),
        sub=_sub(rows),
        todo=_todo(rows),
        items=tuple(rows),
        more=more,
    )


def _rank(state: str) -> int:
    return ORDER.index(state) if state in ORDER else len(ORDER)


def _headline(counts: Counter[Any]) -> str:
    total = sum(counts.values())
    parts = [f"{counts[state]} {state}" for state in (*ORDER, "succeeded") if counts[state]]
    return f"{total} {'chain' if total == 1 else 'chains'}: {', '.join(parts)}." if total else "No retry chain."


def _sub(rows: Sequence[ChainRow]) -> str:
    used, most = sum(row.used[0] for row in rows), sum(row.used[1] for row in rows)
    nodes = Counter(row.last_node for row in rows if row.last_node)
    gather = [f"last faults gather on {name}: {count}" for name, count in nodes.most_common(1) if count > 1]
    attempts = sum(row.attempts for row in rows)
    return " · ".join([f"{attempts} attempts", f"{used} of {most} restarts used", *gather])


def _todo(rows: Sequence[ChainRow]) -> Todo:
    hot = [row for row in rows if row.state in ENDED_BADLY]
    waiting = [row for row in rows if row.state == WAITS]
    if hot:
        return Todo(tone="bad", text=f"Open {_names(hot)}: read the fault, mend that, then clear the task.")
    if waiting:
        return Todo(tone="warn", text=f"Answer the required action of {_names(waiting)}: nothing is done before.")
    return Todo(tone="calm", text="Nothing.")


def _names(rows: Sequence[ChainRow]) -> str:
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return ", ".join(map(_name, rows[:4])) + more


def _name(row: ChainRow) -> str:
    return row.task.task_id + (f" [{row.task.map_index}]" if row.task.map_index >= 0 else "")
