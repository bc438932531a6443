"""How often the classifier is right, how honest its confidence is, and how fast it reads.

    python -m benchmarks.classifier [--shared FOLDER] [--json FILE] [--misses] [--sources] [--publish] [--record]
                                    [--speed MEGABYTES] [--memory MEGABYTES]

Scored on labelled cases (``benchmarks.classifier_scores``) through the same two functions as ``airflow-ft classify``:
each case's text with its kind and its exit code, nothing else.

- *strict*: the class is the label's. *lenient*: it is the label's or its second best.
- *false stop*: said that a retry is useless where the label's class is cured by one (broken node, fabric, hang, main
  memory, unknown). *false exclude*: a node may be excluded although the label is no hardware or fabric fault.
- *culprit*: of the labels that name a rank, a node, a GPU or an address as the culprit, how often a suspect is one.
- *unseen*: the answers that were kept at first sight of a case (``--record`` keeps those of new cases).
- *by source*: how much is lost when all signatures of one file are missing (leave one *signature* source out).
- *speed* and *memory*: ``benchmarks.classifier_speed``.
- *published*: ``--publish`` writes what a simulation needs (``benchmarks.classifier_accuracy``).
"""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_ft.core.rules import RuleSet, compile_signatures
from airflow_ft.diagnosis.signature_files import load_rules
from benchmarks.classifier_accuracy import publish
from benchmarks.classifier_scores import (
    FIRST_TRIES,
    SHARED,
    Scored,
    by_round,
    cross_validated,
    evidence,
    first_tries,
    read_cases,
    read_corpus,
    score,
    share,
    summary,
    torch_logs,
)
from benchmarks.classifier_speed import memory, speed


def without_each_source(cases: list[dict[str, Any]], rules: RuleSet) -> dict[str, Any]:
    """Return strict and lenient accuracy without the signatures of one file, for every file."""
    results = {}
    for origin in sorted({signature.origin for signature in rules.signatures}):
        rest = compile_signatures([signature for signature in rules.signatures if signature.origin != origin])
        scored = score(cases, rest)
        results[origin] = {
            "strict": share(item.strict for item in scored),
            "lenient": share(item.lenient for item in scored),
            "false_stop": share(item.false_stop for item in scored),
        }
    return results


# --- the report ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--misses", action="store_true", help="print the cases that were missed")
    parser.add_argument("--sources", action="store_true", help="leave out the signatures of each file in turn")
    parser.add_argument("--record", action="store_true", help="keep what is said now of cases never seen before")
    parser.add_argument("--publish", action="store_true", help="write the table that a simulation reads")
    parser.add_argument("--speed", type=float, default=0.0, metavar="MB", help="measure on a log of this size (500)")
    parser.add_argument("--memory", type=float, default=0.0, metavar="MB", help="measure on a log of this size (10000)")
    arguments = parser.parse_args()
    rules = load_rules()
    corpus, cases = read_corpus(arguments.shared), read_cases()
    scored, own = score(corpus, rules), score(cases, rules)
    if arguments.record:
        record(own)
    unseen = first_tries(cases)
    report: dict[str, Any] = {"signatures": len(rules.signatures), **summary(scored)}
    report["torch_logs"] = torch_logs(arguments.shared, rules)
    report["own_cases_now"] = summary(own)
    report["unseen"] = {name: summary(items) for name, items in by_round(unseen).items()}
    report["evidence"] = evidence(unseen, rules)
    report["calibration_cross_validated"] = cross_validated(unseen, rules)
    if arguments.sources:
        report["without_source"] = without_each_source(corpus, rules)
    if arguments.speed:
        report["speed"] = speed(corpus, rules, arguments.speed)
    if arguments.memory:
        report["memory"] = memory(arguments.memory, corpus)
    if arguments.publish:
        publish(scored + own, unseen, datetime.now(timezone.utc).date().isoformat())
    if arguments.misses:
        _print_misses(scored + own)
    print(json.dumps(report, indent=1, default=str))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def record(scored: list[Scored]) -> None:
    """Keep the answers on cases that have none yet: what is said of a case at first sight is never written over."""
    kept = json.loads(FIRST_TRIES.read_text()) if FIRST_TRIES.exists() else {}
    keys = ("fault_class", "second_class", "retry", "suspects", "exclude", "disruption", "signature", "confidence")
    for item in scored:
        kept.setdefault(item.case["id"], {key: item.answer[key] for key in keys})
    FIRST_TRIES.write_text(json.dumps(kept, indent=0) + "\n")


def _print_misses(scored: list[Scored]) -> None:
    for item in scored:
        marks = [
            name
            for name, bad in (
                ("STRICT", not item.strict),
                ("LENIENT", not item.lenient),
                ("STOP", item.false_stop),
                ("EXCLUDE", item.false_exclude),
                ("CULPRIT", item.culprit is False),
            )
            if bad
        ]
        if marks:
            root, answer = (item.answer["root"] or {}).get("text", ""), item.answer
            print(
                f"{item.case['id']} {','.join(marks)}: {item.label}/{item.case['second_best_class']} said {item.said}"
                f"/{answer['second_class']} {answer['retry']} {answer['signature']} {answer['confidence']} culprit "
                f"{item.case['culprit_rank_or_node']!r} suspects {[s['name'] for s in answer['suspects']]} {root[:90]}"
            )


if __name__ == "__main__":
    main()
