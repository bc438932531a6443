"""The lines that a policy's own rules are looked for in: all logs as they were gathered, then the platform's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_ft.core.facts import Facts
from airflow_ft.core.loglines import lines_of
from airflow_ft.core.user_rules import RuleHit, RuleMatcher, UserRule

Line = tuple[str, str, int | None, str | None]


def rule_hits(rules: Sequence[UserRule], facts: Facts) -> tuple[RuleHit, ...]:
    """Return the first line that sets each rule off."""
    return RuleMatcher(rules).hits(_lines(facts)) if rules else ()


def _lines(facts: Facts) -> Iterator[Line]:
    for log in facts.logs:
        numbered = log.lines if log.lines is not None else enumerate(lines_of(log.data), 1)
        for number, text in numbered:
            yield text, log.source, number, log.node
    for one in facts.evidence:
        if one.text:
            yield one.text, one.source, one.line, one.node
