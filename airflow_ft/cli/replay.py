"""``replay``: a policy over recorded chains. What would have been decided differently, and what would that have cost?

    airflow ft replay --policy new.yaml [--dag D] [--since 7d]      chains from Airflow's database
    airflow-ft replay --policy new.yaml FILE…                       chains that ``airflow ft chain --json`` printed

Exit status: 0, or 2 when the policy, a file or the time can't be used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.settings import SettingsError
from airflow_ft.core.story import action_words
from airflow_ft.simulation.rehearse import NOT_REACHED, ChainRehearsal, NotAChainError, Recorded, Rehearsed, rehearse

CANNOT = 2
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def add_parser(commands: Any, *parents: argparse.ArgumentParser) -> None:
    """Add the command to the parser of ``airflow-ft``."""
    parser = commands.add_parser("replay", parents=list(parents), help="play a policy over exported retry chains")
    parser.add_argument("--policy", required=True, metavar="POLICY", help="a policy file, or a preset")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="output of `airflow ft chain --json`, or folders of it"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rehearse on exported chains. Returns the exit status."""
    try:
        policy = FaultTolerancePolicy.named(args.policy)
        rehearsals = [rehearse(policy, recorded) for recorded in _exported(args.files)]
    except (SettingsError, NotAChainError) as error:
        print(f"airflow-ft: {error}", file=sys.stderr)
        return CANNOT
    show(rehearsals, as_json=args.json)
    return 0


def replay(args: argparse.Namespace) -> None:
    """Rehearse on the chains of Airflow's database."""
    from airflow_ft.views.records import ChainNotFoundError, all_chains, database, read_chain

    try:
        policy = FaultTolerancePolicy.named(args.policy)
        since = moment(args.since, datetime.now(timezone.utc)) if args.since else None
    except (SettingsError, ValueError) as error:
        print(f"airflow ft: {error}", file=sys.stderr)
        raise SystemExit(CANNOT) from None
    rehearsals = []
    with database() as session:
        for chain, _ in all_chains(session):
            if (args.dag and chain.dag_id != args.dag) or (since is not None and chain.created_at < since):
                continue
            try:
                stored = read_chain(session, chain.dag_id, chain.run_id, chain.task_id, chain.map_index)
            except ChainNotFoundError:
                continue
            rehearsals.append(rehearse(policy, Recorded(stored.chain, stored.attempts)))
    show(rehearsals, as_json=args.json)


def moment(text: str, now: datetime) -> datetime:
    """Return a point in time: ``7d``, ``36h``, or a date. Raises ``ValueError``."""
    span = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    if span:
        return now - timedelta(**{UNITS[span[2]]: int(span[1])})
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(
            f"since: {text!r:.40} is not allowed. Give a date (2026-03-01), or a span (7d, 36h)."
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def _exported(files: Sequence[str]) -> Iterator[Recorded]:
    for given in files:
        path = Path(given)
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            try:
                document = json.loads(sys.stdin.read() if given == "-" else file.read_text(encoding="utf-8"))
                for one in document if isinstance(document, list) else [document]:
                    yield Recorded.from_export(one)
            except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
                raise NotAChainError(f"{file}: can't be read: {error}") from None
            except NotAChainError as error:
                raise NotAChainError(f"{file}: {error}") from None


# --- showing -------------------------------------------------------------------------------------------------------


def show(rehearsals: Sequence[ChainRehearsal], *, as_json: bool) -> None:
    """Print what came out."""
    if as_json:
        print(json.dumps(as_record(rehearsals), indent=1))
        return
    console = Console()
    differing = [(one, decision) for one in rehearsals for decision in one.decisions if decision.differs]
    if differing:
        console.print(_table(differing))
        console.print()
    console.print("\n".join(sentences(totals(rehearsals))))


def totals(rehearsals: Sequence[ChainRehearsal]) -> dict[str, Any]:
    """Return the sums over all chains."""
    decisions = [decision for one in rehearsals for decision in one.decisions]
    return {
        "chains": len(rehearsals),
        "decisions": len(decisions),
        "differing": sum(one.differs for one in decisions),
        "not_reached": sum(one.now is None for one in decisions),
        "inexact": sum(not one.exact for one in decisions),
        "restarts": {"recorded": sum(o.restarts[0] for o in rehearsals), "new": sum(o.restarts[1] for o in rehearsals)},
        "in_place": {"recorded": sum(o.in_place[0] for o in rehearsals), "new": sum(o.in_place[1] for o in rehearsals)},
        "lost_recoveries": sum(one.lost_recoveries for one in rehearsals),
        "open_ends": sum(one.open_ends for one in rehearsals),
    }


def sentences(found: dict[str, Any]) -> Iterator[str]:
    """Say the sums."""
    yield f"{found['chains']} chains, {found['decisions']} decisions; {found['differing']} would have been others."
    for name, words in (("restarts", "Resubmissions"), ("in_place", "Restarts in place")):
        was, now = found[name]["recorded"], found[name]["new"]
        change = f"{was - now} saved" if now < was else f"{now - was} added" if now > was else "no change"
        yield f"{words}: {was} recorded, {now} under this policy ({change})."
    if found["lost_recoveries"]:
        yield (
            f"{found['lost_recoveries']} times it would have stopped a training that in fact got beyond that step: "
            "those saved restarts would have cost a training."
        )
    if found["open_ends"]:
        yield f"{found['open_ends']} times it would have gone on where the chain stopped; what came then is not known."
    if found["inexact"]:
        yield f"{found['inexact']} decisions were recorded without their inputs and are put together from what is left."


def as_record(rehearsals: Sequence[ChainRehearsal]) -> dict[str, Any]:
    """Return everything as JSON."""
    chains = [
        {
            "dag_id": one.recorded.chain.dag_id,
            "run_id": one.recorded.chain.run_id,
            "task_id": one.recorded.chain.task_id,
            "map_index": one.recorded.chain.map_index,
            "restarts": {"recorded": one.restarts[0], "new": one.restarts[1]},
            "lost_recoveries": one.lost_recoveries,
            "open_ends": one.open_ends,
            "decisions": [_decision_record(decision) for decision in one.decisions],
        }
        for one in rehearsals
    ]
    return {"version": 1, "totals": totals(rehearsals), "chains": chains}


def _decision_record(one: Rehearsed) -> dict[str, Any]:
    return {
        "attempt": one.attempt,
        "generation": one.generation,
        "at": one.at.isoformat(),
        "fault": one.fault,
        "step": one.step,
        "differs": one.differs,
        "exact": one.exact,
        "recorded": one.was.to_record(),
        "new": one.now.to_record() if one.now is not None else None,
    }


def _table(differing: Sequence[tuple[ChainRehearsal, Rehearsed]]) -> Table:
    table = Table(show_edge=False, pad_edge=False, header_style="dim")
    for name in ("chain", "#", "step", "fault", "recorded", "under this policy", "because"):
        table.add_column(name, overflow="fold")
    for rehearsal, one in differing:
        chain = rehearsal.recorded.chain
        number = f"{one.attempt} / {one.generation}" if one.generation else f"{one.attempt}"
        now = action_words(one.now) if one.now is not None else NOT_REACHED
        reason = one.now.reason if one.now is not None else "it had stopped before"
        step = f"{one.step:,}" if one.step is not None else "–"
        name = f"{chain.dag_id}.{chain.task_id} {chain.run_id}"
        table.add_row(name, number, step, one.fault, action_words(one.was), now, reason)
    return table
