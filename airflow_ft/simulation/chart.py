"""The study as one HTML file: bars with their confidence intervals as inline SVG, the table, and every assumption."""

from __future__ import annotations

from html import escape

from airflow_ft.simulation.study import MEASURES, Estimate, Study

WIDTH, ROW, LEFT, RIGHT = 860, 34, 130, 190
COLOURS = ("#98a2b3", "#7aa6da", "#4d7fc4", "#1f5fae", "#1b8a5a", "#c4781b", "#8a4fb0", "#b03a48")
WORDS = {
    "ettr": "effective training time ratio",
    "faults": "faults",
    "restarts": "resubmissions",
    "in_place": "restarts in place",
    "pages": "times a person was paged",
    "nodes_held": "nodes held in exclusion, on average",
    "healthy_nodes_held": "healthy ones among them",
    "hours_waited_for_nodes": "hours waited for nodes",
    "hours_hung": "hours hung unseen",
    "hours_of_work_lost": "hours of work lost",
}
DIGITS = {"ettr": 4}
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:900px;padding:0 1rem;color:#1d2939;background:#fff}
table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #e4e7ec}
td:first-child,th:first-child{text-align:left}svg text{font:13px
system-ui,sans-serif;fill:currentColor}small{color:#667085} @media
(prefers-color-scheme:dark){body{color:#e4e7ec;background:#101828}td,th{border-color:#344054}small{color:#98a2b3}}
"""


def as_html(study: Study, trace_name: str) -> str:
    """Return the page. It loads nothing from elsewhere."""
    assumed = study.assumed
    where = f"{assumed.days:g} days on {assumed.nodes} nodes with {assumed.spares} spares"
    head = f"{where}, {study.seeds} seeds, {trace_name}"
    charts = "".join(
        f"<h2>{escape(WORDS[measure].capitalize())}</h2>{bars(study, measure)}"
        for measure in ("ettr", "pages", "restarts", "healthy_nodes_held")
    )
    given = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in assumed.model_dump().items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Policies, simulated</title>'
        f"<style>{STYLE}</style><h1>Policies, simulated</h1><p>{escape(head)}.</p>{charts}"
        f"<h2>All numbers</h2>{_table(study)}<p><small>Means with 95 % confidence intervals over seeds. A model: every "
        f"number below is an assumption.</small></p><h2>Assumptions</h2><table>{given}</table></html>"
    )


def bars(study: Study, measure: str) -> str:
    """Return one measure of all policies as an SVG. The ETTR's axis begins near the lowest value, and says so."""
    found = {name: study.estimate(name, measure) for name in study.results}
    top = max([*(one.high for one in found.values()), 1e-9])
    low = 0.0
    if measure == "ettr":
        top, low = 1.0, max(0.0, min(one.low for one in found.values()) - 0.01)
    height = ROW * len(found) + 26

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (min(max(value, low), top) - low) / (top - low)

    parts = [f'<svg role="img" width="100%" viewBox="0 0 {WIDTH} {height}"><title>{escape(WORDS[measure])}</title>']
    for number, (name, one) in enumerate(found.items()):
        y = number * ROW + 6
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        width = max(1.0, x(one.mean) - LEFT)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="22" rx="3" fill="{colour}"/>')
        left, right = f"{x(one.low):.1f}", f"{x(one.high):.1f}"
        whisker = f"M{left} {y + 11}H{right}M{left} {y + 6}v10M{right} {y + 6}v10"
        parts.append(f'<path d="{whisker}" stroke="currentColor" fill="none"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{y + 16}">{_words(measure, one)}</text>')
    axis = f"{low:.3f} … {top:.3f}" if measure == "ettr" else f"0 … {top:.1f}"
    return "".join([*parts, f'<text x="{LEFT}" y="{height - 4}">{axis}</text></svg>'])


def _table(study: Study) -> str:
    names = list(study.results)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(WORDS[measure])}</td>"
        + "".join(f"<td>{_words(measure, study.estimate(name, measure))}</td>" for name in names)
        + "</tr>"
        for measure in MEASURES
    )
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def _words(measure: str, one: Estimate) -> str:
    digits = DIGITS.get(measure, 2)
    return f"{one.mean:.{digits}f} ± {(one.high - one.low) / 2:.{digits}f}"
