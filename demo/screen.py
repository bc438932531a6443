"""What the demo shows in the terminal: where Airflow is, how training goes, the chain as it grows, the summary."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from airflow_ft.views.chain_table import RunTable, row_from_json
from demo.results import Result
from demo.training_log import TrainingLog

EVENTS_SHOWN = 8


class Screen:
    """The live view. Without a terminal the same events are printed as plain lines."""

    def __init__(self, console: Console, url: str, user: str, password: str) -> None:
        self.console = console
        self._where = f"[bold]{url}[/]   user [bold]{user}[/]   password [bold]{password}[/]"
        self._events: list[str] = []
        self._chain: dict[str, Any] | None = None
        self._bar = Progress(
            TextColumn("training"), BarColumn(bar_width=50), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=None, words="starting")

    def event(self, text: str, style: str = "") -> None:
        """Tell an event: it stays on the screen."""
        line = f"[dim]{datetime.now(timezone.utc).astimezone():%H:%M:%S}[/] {f'[{style}]{text}[/]' if style else text}"
        self._events = [*self._events, line][-EVENTS_SHOWN:]
        if not self.console.is_terminal:
            self.console.print(line)

    def update(self, log: TrainingLog, chain: dict[str, Any] | None) -> RenderableType:
        """Return the screen with the newest state."""
        self._chain = chain or self._chain
        words = f"loss {log.loss:.3f}, checkpoint {log.saved}" if log.step else "starting"
        self._bar.update(self._task, completed=log.step, total=log.total or None, words=words)
        return Group(
            Panel(self._where, title="Airflow, as its users see it", expand=False),
            self._bar,
            chain_table(self._chain),
            *self._events,
        )


def chain_table(chain: dict[str, Any] | None) -> RenderableType:
    """Return the retry chain, as `airflow ft chain` shows it."""
    if chain is None:
        return Text("no attempt yet", style="dim")
    return Group(Text(chain["headline"], style="bold"), RunTable([row_from_json(row) for row in chain["rows"]]))


def summary_table(made: list[Result]) -> Table:
    """Return the summary: every fault, its class, what was done, seconds to the next step, the checkpoint loaded."""
    table = Table(title="Faults and recoveries (seconds after the injection)", title_justify="left")
    for name in ("injected", "class", "what was done", "detected", "respawned", "next step", "checkpoint", "verified"):
        table.add_column(name)
    for one in made:
        seconds = [f"{value:.1f} s" if value is not None else "–" for value in
                   (one.detected_s, one.respawned_s, one.first_step_s)]  # fmt: skip
        checkpoint = str(one.checkpoint_step) if one.checkpoint_step is not None else "–"
        verified = "[green]yes[/]" if one.verified else "[red]no[/]"
        table.add_row(one.injected, one.fault_class or "–", one.action or "–", *seconds, checkpoint, verified)
    return table
