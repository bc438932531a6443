"""The retry chain as a table: a row for each run of the training, that is for each generation of each attempt.

An in-place restart is a row of its own ("0 / 1" is generation 1 of attempt 0): people ask what happened at each fault,
not which of Airflow's tries it fell into.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from airflow_ft.core.progress import Progress
from airflow_ft.core.story import WAITS, action_words, duration_words, recovery_words
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import Run, runs

TABLE_WIDTH = 120  # below it the texts would be torn into columns of a word

STATE_STYLES = {
    "running": "cyan",
    "recovering": "magenta",
    "recovered": "green",
    WAITS: "yellow",
    "succeeded": "green",
    "stopped by fault tolerance": "bold white on red",
    "failed": "red",
    "starting": "cyan",
}


@dataclass(frozen=True)
class Row:
    """One run of the training."""

    number: str
    started: datetime
    ran: timedelta | None  # None: it runs
    steps: str
    nodes: str
    fault: str
    fault_text: str
    done: str
    outcome: str


def rows(stored: StoredChain) -> list[Row]:
    """Return the chain's rows, the oldest first."""
    return [_row(run, stored) for run in runs(stored)]


def _row(run: Run, stored: StoredChain) -> Row:
    incident, attempt = run.incident, run.attempt
    ended = attempt.outcome.end.value.replace("_", " ") if attempt.outcome else ""
    if incident is None:
        outcome = ended or ("running" if attempt.number == stored.chain.open else "")
        fault_text = attempt.outcome.text if attempt.outcome else ""
    else:
        outcome = recovery_words(run.recovery) or (ended if incident.decision.ends_attempt else "")
        fault_text = incident.diagnosis.text
    return Row(
        number=run.label,
        started=run.started,
        ran=run.ended - run.started if run.ended else None,
        steps=_steps(run.progress),
        nodes=_nodes(run),
        fault=(incident.diagnosis.disruption or incident.diagnosis.fault_class.value) if incident else "",
        fault_text=fault_text,
        done=action_words(incident.decision) if incident else "",
        outcome=outcome,
    )


def _steps(progress: Progress | None) -> str:
    if progress is None or progress.step is None:
        return "–"
    return f"{progress.first_step if progress.first_step is not None else '?'} → {progress.step}"


def _nodes(run: Run) -> str:
    out = run.attempt.excluded_nodes
    without = f" without {', '.join(out)}" if out else ""
    return f"{', '.join(run.nodes[:8]) or '–'}{' …' if len(run.nodes) > 8 else ''}{without}"


def headline(stored: StoredChain) -> tuple[str, str]:
    """Return the state and one sentence."""
    chain = stored.chain
    state = stored.state
    left = max(0, chain.max_restarts - chain.ledger.restarts)
    budget = f"restarts {chain.ledger.restarts}/{chain.max_restarts} (left {left})"
    reason = ""
    if chain.decision is not None and chain.open is None:
        reason = f" · {chain.decision.reason}"
    elif stored.live is not None and stored.live.step is not None:
        reason = f" · at step {stored.live.step:,}"
    return state, f"{chain.dag_id} · {chain.task_id} · attempt {max(0, chain.attempts - 1)} of chain · {budget}{reason}"


def rendered(stored: StoredChain) -> RenderableType:
    """Return the chain for a terminal: the headline, a row for each run, and what else is to be told."""
    state, sentence = headline(stored)
    title = Text.assemble((f" {state} ", STATE_STYLES.get(state, "bold")), " ", sentence)
    told = [
        Text(f"{event.at:%H:%M:%S} {event.text}", style="dim") for event in stored.chain.events if _worth(event.kind)
    ]
    debts = [
        Text(f"{'held' if debt.held else 'cancel owed'}: {debt.ref.name}: {debt.why}", style="red")
        for debt in stored.chain.debts
    ]
    note = Text("A class is a help for the decision, not a confirmed root cause.", style="dim")
    return Group(title, Text(), RunTable(rows(stored)), Text(), *told, *debts, note)


@dataclass(frozen=True)
class RunTable:
    """The rows: a table where there is room for eight columns, else a few lines for each."""

    rows: list[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= TABLE_WIDTH:
            yield self._table()
        else:
            for row in self.rows:
                yield _lines(row)

    def _table(self) -> Table:
        table = Table(show_edge=False, pad_edge=False, header_style="dim")
        for name in ("#", "started", "ran", "steps", "nodes", "fault", "what was done", "outcome"):
            table.add_column(name, overflow="fold", no_wrap=name in ("#", "started", "ran"))
        for row in self.rows:
            table.add_row(
                row.number,
                f"{row.started:%H:%M:%S}",
                _ran(row),
                row.steps,
                row.nodes,
                _fault(row),
                row.done,
                row.outcome,
            )
        return table


def _lines(row: Row) -> RenderableType:
    first = Text.assemble(
        (f"{row.number:5}", "bold"), f" {row.started:%H:%M:%S}  {_ran(row)}  steps {row.steps}  {row.nodes}"
    )
    more = [_fault(row), Text(f"→ {row.done}") if row.done else Text(), Text(row.outcome)]
    return Group(first, *(Padding(text, (0, 0, 0, 6)) for text in more if text.plain))


def _ran(row: Row) -> str:
    return duration_words(row.ran) if row.ran is not None else "…"


def _fault(row: Row) -> Text:
    return Text.assemble((row.fault, "bold"), " " if row.fault else "", row.fault_text)


def _worth(kind: str) -> bool:
    return kind not in ("fault", "stopped", "succeeded")  # those are rows already


def row_from_json(shown: dict[str, Any]) -> Row:
    """Return a row as ``to_json`` showed it."""
    ran = timedelta(seconds=shown["ran"]) if shown["ran"] is not None else None
    return Row(**{**shown, "started": datetime.fromisoformat(shown["started"]), "ran": ran})


def to_json(stored: StoredChain) -> dict[str, Any]:
    """Return the chain as JSON: its records, and the rows as a person sees them."""
    state, sentence = headline(stored)
    shown = [asdict(row) for row in rows(stored)]
    for row in shown:
        row["started"] = row["started"].isoformat()
        row["ran"] = row["ran"].total_seconds() if row["ran"] is not None else None
    return {
        "version": 1,
        "state": state,
        "headline": sentence,
        "task_state": stored.task_state,
        "chain": stored.chain.to_record(),
        "attempts": [attempt.to_record() for attempt in stored.attempts],
        "live": stored.live.to_record() if stored.live is not None else None,
        "rows": shown,
        "unreadable": list(stored.unreadable),
    }


def as_text(stored: StoredChain, width: int = 160) -> str:
    """Return the table as plain text, for a browser or a ticket."""
    text = io.StringIO()
    Console(width=width, no_color=True, force_terminal=False, file=text).print(rendered(stored))
    return text.getvalue()
