"""``airflow-ft classify``: what a failed run's logs say, for people and (``--json``) for scripts.

Reads files, a folder of per-rank logs, or standard input; needs no Airflow and no cluster. The exit status says only
whether an answer could be given: 0, or 2 for an input or a signature file that can't be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import replace
from typing import Any

from airflow_ft.core.classify import classify
from airflow_ft.core.facts import Facts, LogText
from airflow_ft.core.loglines import lines_of
from airflow_ft.core.rules import SignatureError
from airflow_ft.diagnosis.answers import NOT_CONFIRMED, as_answer
from airflow_ft.diagnosis.inputs import KINDS, InputError, read_inputs
from airflow_ft.diagnosis.redaction import redact
from airflow_ft.diagnosis.signature_files import load_rules

AROUND, WIDTH = 3, 110
CANNOT = 2


def add_parser(commands: Any, *parents: argparse.ArgumentParser) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("classify", parents=list(parents), help="say what the logs of a failed run mean")
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="logs, a folder of them, or - for standard input")
    parser.add_argument("--kind", choices=KINDS, default="auto", help="what kind of text it is (default: %(default)s)")
    parser.add_argument("--exit-code", type=int, metavar="N", help="how the command ended; negative for a signal")
    parser.add_argument("--good", action="append", default=[], metavar="PATH", help="logs of a run that went well")
    parser.add_argument("--signatures", action="append", default=[], metavar="PATH", help="signatures of your own")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Classify and print. Returns the exit status."""
    try:
        rules = load_rules(args.signatures)
        facts = read_inputs(args.inputs, rules, kind=args.kind, exit_code=args.exit_code)
        if args.good:
            facts = replace(facts, good_logs=read_inputs(args.good, rules).logs)
    except (InputError, SignatureError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return CANNOT
    answer = as_answer(classify(facts, rules))
    if args.json:
        print(json.dumps({key: answer[key] for key in answer if key != "text"}, indent=1, ensure_ascii=False))
    else:
        print("\n".join(_for_people(answer, facts)))
    return 0


# --- for people ----------------------------------------------------------------------------------------------------


def _for_people(answer: dict[str, Any], facts: Facts) -> list[str]:
    second = f", perhaps {answer['second_class']}" if answer["second_class"] else ""
    what = "Disruption, nobody's fault" if answer["disruption"] else f"{answer['fault_class']}{second}"
    retry = {"useful": "running again can help", "useless": "running again won't help"}.get(answer["retry"])
    lines = [f"{what}  (confidence {answer['confidence']:.2f}; {retry or 'it is open whether running again helps'})"]
    lines += ["", *textwrap.wrap(answer["text"], WIDTH)]
    if answer["root"]:
        lines += ["", *_in_context(answer["root"], facts)]
    if answer["suspects"]:
        named = ", ".join(f"{suspect['kind']} {suspect['name']}" for suspect in answer["suspects"])
        lines += ["", f"Suspected: {named}"]
    if answer["exclude"]:
        lines.append(f"May be excluded: {', '.join(answer['exclude'])}")
    if answer["candidates"]:
        lines += ["", "Also seen:" if answer["confidence"] >= 0.5 else "Candidates for the cause:"]
        lines += [f"  {_place(line)}  {line['text'].strip()[:WIDTH]}" for line in answer["candidates"][:5]]
    return [*lines, "", *textwrap.wrap(f"What to do: {answer['advice']}", WIDTH), "", NOT_CONFIRMED]


def _in_context(root: dict[str, Any], facts: Facts) -> list[str]:
    """Return the root line with its neighbours, as far as they were kept."""
    log = next((log for log in facts.logs if log.source == root["source"]), None)
    if log is None or root["line"] is None:
        return [f"  {_place(root)}  {root['text'][:WIDTH]}"]
    near = [(n, text) for n, text in _numbered(log) if abs(n - root["line"]) <= AROUND]
    head = f"{root['source']}, line {root['line']}"
    return [head, *(f"{'>' if n == root['line'] else ' '} {n:6d} | {redact(text)[:WIDTH]}" for n, text in near)]


def _numbered(log: LogText) -> list[tuple[int, str]]:
    return list(log.lines) if log.lines is not None else list(enumerate(lines_of(log.data), 1))


def _place(line: dict[str, Any]) -> str:
    return f"{line['source']}:{line['line']}" if line["line"] else str(line["source"])
