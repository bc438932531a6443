"""``airflow ft explain DAG RUN TASK [ATTEMPT]``: why was this decided, and does the same come out again?

The decision function is run again on what the chain has recorded, and has to give the same answer. Exit status: 0, 1
when a decision differs, 2 when there is nothing that could be explained.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from airflow_ft.cli.chain import asked_for
from airflow_ft.core.chain import Attempt, Incident
from airflow_ft.core.decisions import Decision, Proposal
from airflow_ft.core.explain import Explanation, NotExplainableError, earlier_faults, explained
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.story import action_words

CANNOT = 2
Answer = tuple[Attempt, Incident, Explanation | str]  # a string says why it can't be explained


def explain(args: Namespace) -> None:
    """Print the explanation of each decision of a chain, or of one attempt."""
    answers = list(explanations(asked_for(args).attempts, args.attempt))
    if not answers:
        what = f"attempt {args.attempt}" if args.attempt is not None else "this chain"
        print(f"No decision was made about {what}.")
        raise SystemExit(CANNOT)
    if args.json:
        print(json.dumps([as_record(answer) for answer in answers], indent=1))
    else:
        Console().print(Group(*(rendered(answer) for answer in answers)))
    if any(isinstance(answer, Explanation) and not answer.same for _, _, answer in answers):
        raise SystemExit(1)


def explanations(attempts: Sequence[Attempt], number: int | None = None) -> Iterator[Answer]:
    """Yield every decision of a chain (or of attempt ``number``), made again."""
    for attempt in attempts:
        for incident in attempt.incidents if number in (None, attempt.number) else ():
            if incident.past is None:  # a time limit, a person's cancel: no policy was asked
                continue
            try:
                faults = earlier_faults(attempts, attempt.number, incident.generation)
                yield attempt, incident, explained(attempt, incident, faults)
            except NotExplainableError as error:
                yield attempt, incident, str(error)


def as_record(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON."""
    attempt, incident, found = answer
    record: dict[str, Any] = {
        "attempt": attempt.number,
        "generation": incident.generation,
        "decision": incident.decision.to_record(),
        "inputs": incident.inputs.to_record() if incident.inputs is not None else None,
    }
    if isinstance(found, str):
        return {**record, "same": None, "why_not": found}
    again = found.again.to_record()
    return {**record, "policy": found.policy.to_dict(), "again": again, "same": found.same, "differs": found.differs}


def rendered(answer: Answer) -> RenderableType:
    """Return an answer for a terminal."""
    attempt, incident, found = answer
    decision = found.again if isinstance(found, Explanation) else incident.decision
    generation = f" / {incident.generation}" if incident.generation else ""
    step = incident.inputs.step if incident.inputs else None
    at = f" at step {step:,}" if step is not None else ""
    fault = incident.diagnosis.disruption or incident.diagnosis.fault_class.value
    head = Text.assemble((f"Attempt {attempt.number}{generation}", "bold"), f"{at}: {fault} → ")
    head.append(action_words(incident.decision), style="bold")
    parts: list[RenderableType] = [head, _inside(incident.decision.reason)]
    parts += [_inside(line) for line in _ledger(incident, incident.decision)]
    for told, proposal in (("Would have", decision.shadow), ("Proposed", decision.proposed)):
        if proposal is not None:
            parts.append(_inside(f"{told}: {_proposal(proposal)}"))
    for rule in decision.considered:
        mark = Text("→ ", style="bold green") if rule.applied else Text("  ")
        parts.append(_inside(Text.assemble(mark, rule.rule, (f": {rule.why}" if rule.why else ""))))
    parts.append(_inside(_verdict(found)))
    return Group(*parts, Text())


def _inside(text: str | Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 2))


def _ledger(incident: Incident, decision: Decision) -> Iterator[str]:
    before = incident.inputs.ledger if incident.inputs else None
    after = decision.ledger
    if before is None:
        yield f"Ledger after it: {_counts(after)}"
    else:
        yield f"Ledger: {_counts(before)} → {_counts(after)}" + (
            f" (charged: {decision.charged})" if decision.charged else ""
        )
    if decision.excluded_nodes or decision.soft_nodes:
        out = f"Excluded: {', '.join(decision.excluded_nodes) or 'nobody'}"
        yield out + (f"; rather not: {', '.join(decision.soft_nodes)}" if decision.soft_nodes else "")


def _counts(ledger: Ledger) -> str:
    names = ("restarts", "unprogressed", "hang_streak", "unconditional_streak", "pod_restarts", "disruptions")
    told = [f"{name.replace('_', ' ')} {value}" for name in names if (value := getattr(ledger, name))]
    return ", ".join(told) or "nothing spent"


def _proposal(proposal: Proposal) -> str:
    return f"{proposal.action.value}. {proposal.text}"


def _verdict(found: Explanation | str) -> Text:
    if isinstance(found, str):
        return Text(f"Can't be made again: {found}.", style="yellow")
    if found.same:
        return Text("Made again from the record: the same.", style="green")
    return Text(f"Made again from the record it is another: {'; '.join(found.differs)}.", style="bold red")
