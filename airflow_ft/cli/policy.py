"""``airflow-ft policy …``: policies as files. Check one, show a preset, print the schema for editors. Needs no Airflow.

Exit status: 0, or 2 for a policy that can't be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_schema import policy_schema
from airflow_ft.core.rules import SignatureError
from airflow_ft.core.settings import SettingsError, did_you_mean
from airflow_ft.diagnosis.signature_files import load_rules

CANNOT = 2


def add_parser(commands: Any) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("policy", help="check a policy file, show a preset, print the schema of policy files")
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="say what is wrong with policy files")
    check.add_argument("files", nargs="+", metavar="FILE", help="policies as YAML")
    check.add_argument("--signatures", action="append", default=[], metavar="PATH", help="signatures of your own")
    check.set_defaults(run=run_check)
    show = verbs.add_parser("show", help="print a preset or a policy file as YAML")
    show.add_argument("policy", help="off, basic, advanced, full, single_node, multi_node, long_running, or a file")
    show.add_argument(
        "--all", action="store_true", help="with every setting, not only those that aren't at their default"
    )
    show.set_defaults(run=run_show)
    schema = verbs.add_parser("schema", help="print the JSON schema of policy files")
    schema.set_defaults(run=run_schema)


def run_check(args: argparse.Namespace) -> int:
    """Check files; every mistake of every file is said."""
    try:
        known = {signature.id for signature in load_rules(args.signatures).signatures}
    except SignatureError as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return CANNOT
    wrong = 0
    for file in args.files:
        problems = _problems(file, known)
        wrong += bool(problems)
        for problem in problems:
            print(problem, file=sys.stderr)
        if not problems:
            print(f"{file}: {summary(FaultTolerancePolicy.named(_as_file(file)))}")
    return CANNOT if wrong else 0


def run_show(args: argparse.Namespace) -> int:
    """Print a policy."""
    try:
        policy = FaultTolerancePolicy.named(args.policy)
    except SettingsError as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return CANNOT
    if args.all:
        fields = policy.model_dump(mode="json")
        if policy.mode != "full":
            fields.pop("hang")
        print(FaultTolerancePolicy.dumped(fields), end="")
    else:
        print(policy.to_yaml(), end="")
    return 0


def run_schema(args: argparse.Namespace) -> int:
    """Print the schema."""
    print(json.dumps(policy_schema(), indent=1))
    return 0


def summary(policy: FaultTolerancePolicy) -> str:
    """Say a policy in one line."""
    if not policy.enabled:
        return "off: the first failure is the last"
    parts = [f"{policy.mode}, {policy.max_restarts} restarts"]
    if policy.unconditional:
        parts.append("unconditional")
    if policy.on_fault != "act":
        parts.append(f"{policy.on_fault} only" if policy.on_fault == "notify" else "asks before it acts")
    if policy.rules:
        parts.append(f"{len(policy.rules)} rules of yours")
    return ", ".join(parts)


def _as_file(file: str) -> str:
    return file if any(sign in file for sign in "./\\") else f"./{file}"


def _problems(file: str, known: set[str]) -> list[str]:
    try:
        policy = FaultTolerancePolicy.named(_as_file(file))
    except SettingsError as error:
        return list(error.problems)
    return [
        f"{file}: signature_ladders.{name}: there is no such signature. {did_you_mean(name, known)}"
        for name in policy.signature_ladders
        if name not in known
    ]
