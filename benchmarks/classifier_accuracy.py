"""The published accuracy of the classifier: for each true class, what was said, and whom it blamed.

Written by ``python -m benchmarks.classifier --publish`` into the package, as data: a simulation of policies draws from
it how often a fault is taken for another, and how often the right, a wrong or no node is blamed for it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.classifier_scores import CLASSES, Scored, by_round, share

TARGET = Path(__file__).resolve().parents[1] / "airflow_ft" / "core" / "classifier_accuracy.json"
HOW = (
    "Labelled excerpts of failure logs (those of the corpus are real, the project's own are written as the programs "
    "print them), classified one by one by kind, exit code and text alone. `unseen`: what "
    "was said at first sight of cases that were labelled before the classifier read them, in rounds: what one round "
    "showed was mended before the next (rounds 1 and 2 look for odd messages, 3 and 4 for everyday ones, 5 to 7 for "
    "logs of several ranks together, 6 with prefixes and launchers that no round had before, 8 for launchers, "
    "watchers and log formats chosen to be unlike all before, 9 and 10 for more of these, 11 and 12 for siblings "
    "of the corpus; labels by the project itself, so a little kind to it). "
    "`in_sample`: cases that "
    "signatures were written with. `said`: of the cases with this true class, how many were called what. `blame`: of "
    "the cases whose label names a rank, node, GPU or address, how many had it among the suspects (`right`), others "
    "only (`wrong`), or nobody (`nobody`). `false_exclude`: a node was proposed for exclusion that the label does not "
    "blame."
)


def publish(in_sample: list[Scored], unseen: list[Scored], measured: str) -> dict[str, Any]:
    """Write the file and return its content."""
    table = {
        "how": HOW,
        "command": "python -m benchmarks.classifier --publish",
        "measured": measured,
        "unseen": accuracy(unseen) if unseen else None,
        "rounds": {name: _in_short(items) for name, items in by_round(unseen).items()},
        "in_sample": accuracy(in_sample),
    }
    TARGET.write_text(json.dumps(table, indent=1) + "\n")
    return table


def _in_short(scored: list[Scored]) -> dict[str, Any]:
    return {name: value for name, value in accuracy(scored).items() if name != "classes"}


def accuracy(scored: list[Scored]) -> dict[str, Any]:
    """Return the table of one set of cases."""
    return {
        "cases": len(scored),
        "strict": round(share(item.strict for item in scored), 4),
        "lenient": round(share(item.lenient for item in scored), 4),
        "false_stop": round(share(item.false_stop for item in scored), 4),
        "false_exclude": round(share(item.false_exclude for item in scored), 4),
        "classes": {name: _of_class([item for item in scored if item.label == name]) for name in CLASSES},
    }


def _of_class(items: list[Scored]) -> dict[str, Any]:
    said = Counter(item.said for item in items)
    blamed = [item for item in items if item.culprit is not None]
    return {
        "cases": len(items),
        "said": {name: said[name] for name in CLASSES if said[name]},
        "blame": {
            "named_by_label": len(blamed),
            "right": sum(item.culprit is True for item in blamed),
            "wrong": sum(item.culprit is False and bool(item.answer["suspects"]) for item in blamed),
            "nobody": sum(not item.answer["suspects"] for item in blamed),
        },
        "false_exclude": sum(item.false_exclude for item in items),
        "retry_said": dict(sorted(Counter(item.answer["retry"] for item in items).items())),
    }
