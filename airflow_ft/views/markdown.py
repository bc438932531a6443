"""A chain as Markdown, for an incident channel or a ticket. What comes from a log is code: nothing renders it."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ft.views.models import ChainView

MOST_ROWS = 40


def as_markdown(view: ChainView, address: str) -> str:
    """Return the headline, what to do, the answers and the newest runs."""
    return "\n".join(_lines(view, address)) + "\n"


def _lines(view: ChainView, address: str) -> Iterator[str]:
    task, text = view.task, view.text
    mapped = f" [{task.map_index}]" if task.map_index >= 0 else ""
    yield f"**{view.state[0].upper()}{view.state[1:]}: {_plain(text.headline)}**"
    yield f"{_code(f'{task.dag_id} · {task.task_id}{mapped} · {task.run_id}')} · {_plain(text.sub)}"
    yield f"What to do: {_plain(text.todo.text)}"
    yield ""
    for answer in text.answers:
        kind = f"{answer.fault_class} · " if answer.fault_class else ""
        checks = ", ".join(f"{check.name} {_sign(check.ok)}" for check in answer.checks)
        detail = " · ".join(part for part in (kind + _plain(answer.detail), checks) if part)
        yield f"- {answer.label}: **{_plain(answer.value)}**{f' ({detail})' if detail else ''}"
    yield ""
    yield "| # | steps | fault | what was done | outcome |"
    yield "|---|---|---|---|---|"
    for run in view.runs[-MOST_ROWS:]:
        fault = f"{run.fault.fault_class} {_code(run.fault.text)}" if run.fault else "–"
        steps = f"{_step(run.first_step)} → {_step(run.last_step)}"
        done, outcome = _cell(_plain(run.done)) or "–", _cell(_plain(run.outcome))
        yield f"| {run.label} | {steps} | {_cell(fault)} | {done} | {outcome} |"
    if view.total_runs > MOST_ROWS:
        yield f"\n{view.total_runs - MOST_ROWS} older runs are not in this table."
    yield ""
    yield "A class is a help for the decision, not a confirmed root cause."
    yield address


def _sign(ok: bool | None) -> str:
    return "not known" if ok is None else "✓" if ok else "✗"


def _step(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Without the signs that would make links, pictures, headings or mentions of it."""
    return "".join(f"\\{sign}" if sign in "[]<>*_`#@!" else sign for sign in " ".join(text.split()))
