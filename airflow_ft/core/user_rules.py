"""What a user knows better than any signature: patterns of lines, and what is done then (mission P3).

    rules:
      - match: "our_loader: shard .* is corrupt"
        action: stop
      - match: "PCIe link retrained on (?P<node>\\S+)"
        action: exclude_node
        times: 1
        then: bisect

Rules are looked at before the ladder, the first one that matches holds. Patterns are RE2: linear in time, so a wrong
one can't hang the supervisor. *The guard*: a log often shows its own configuration (the DAG, the policy, the command
line), and a pattern must not match its own echo. A line that shows the pattern itself is no hit: where it stands behind
``match:`` (or ``"match":``, ``match=``), and wherever a pattern that isn't plain text is spelled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import re2
from pydantic import field_validator

from airflow_ft.core.records import Record
from airflow_ft.core.settings import CheckedSettings, Whole, did_you_mean, setting

RuleAction = Literal["exclude_node", "stop", "resubmit", "restart_in_place", "bisect", "ask", "ladder"]
ACTIONS = ("exclude_node", "stop", "resubmit", "restart_in_place", "bisect", "ask")
LINE_LIMIT = 4_000  # characters of a line that are looked at
TEXT_KEPT = 300  # of the line that set a rule off
MAX_HITS = 8


class UserRule(CheckedSettings):
    """One rule.

    :param match: an RE2 pattern, searched in each line of the logs and in the platform's words.
        A group ``node`` names the node; else it is the one whose log has the line.
    :param action: what is done: exclude_node, stop, resubmit, restart_in_place, bisect or ask.
    :param times: how often in a segment of the chain; then ``then``. Nothing: always.
    :param then: what is done after ``times``, or when ``action`` isn't possible: an action, or ``ladder``.
    :param name: what it is called in decisions; nothing: "rule 1" and so on.
    """

    match: str = setting(..., allowed="Give an RE2 pattern.")
    action: RuleAction = setting(..., allowed=f"Give {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}.")
    times: Whole | None = setting(None, ge=1, le=128, allowed="Give a number from 1 to 128, or leave it out.")
    then: RuleAction = setting("ladder", allowed=f"Give {', '.join(ACTIONS)} or ladder.")
    name: str = setting("", max_length=80, allowed="Give a short name.")

    @field_validator("match")
    @classmethod
    def _a_pattern(cls, match: str) -> str:
        if not match.strip():
            raise ValueError(f"{match!r} is not allowed. Give a pattern: an empty one would match every line.")
        try:
            compiled = _compiled(match)
        except re2.error as error:
            why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
            raise ValueError(
                f"{match!r:.80} is no RE2 pattern: {why}. RE2 has no look-around, no back-references."
            ) from None
        if compiled.search("") is not None:
            raise ValueError(f"{match!r:.80} is not allowed. It matches an empty line, hence every line.")
        return match

    @field_validator("action", "then", mode="before")
    @classmethod
    def _known(cls, given: object) -> object:
        known = (*ACTIONS, "ladder")
        if not isinstance(given, str) or given not in known:
            raise ValueError(f"{given!r:.80} is not allowed. {did_you_mean(given, ACTIONS)}")
        return given

    @field_validator("action")
    @classmethod
    def _does_something(cls, action: RuleAction) -> RuleAction:
        if action == "ladder":
            raise ValueError("'ladder' is not allowed. The ladder follows anyway: leave the rule out.")
        return action

    @property
    def asks(self) -> bool:
        """Whether a person may be asked."""
        return "ask" in (self.action, self.then)


class RuleHit(Record):
    """A line that set a rule off. ``rule`` is its number in the policy, from 0; ``line`` is 1-based, if it is known."""

    rule: int
    text: str
    source: str = ""
    line: int | None = None
    node: str | None = None


class RuleMatcher:
    """The rules of one policy, compiled."""

    def __init__(self, rules: Sequence[UserRule]) -> None:
        self._rules = [(_compiled(rule.match), _echo(rule.match)) for rule in rules]
        self._set = re2.Set.SearchSet(_options())
        for rule in rules:
            self._set.Add(rule.match)
        if rules:
            self._set.Compile()

    def hits(self, lines: Iterable[tuple[str, str, int | None, str | None]]) -> tuple[RuleHit, ...]:
        """Return the first hit of each rule. ``lines`` are text, source, number and node of each line."""
        found: dict[int, RuleHit] = {}
        for text, source, number, node in lines if self._rules else ():
            seen = text[:LINE_LIMIT]
            for index in self._set.Match(seen) or ():
                pattern, echo = self._rules[index]
                if index in found or echo.search(seen):
                    continue
                said: dict[str, Any] = ((match := pattern.search(seen)) and match.groupdict()) or {}
                place = said.get("node") or node
                found[index] = RuleHit(rule=index, text=_around(seen, match), source=source, line=number, node=place)
        return tuple(found[index] for index in sorted(found))[:MAX_HITS]


def _around(line: str, match: Any) -> str:
    start = max(0, match.start() - TEXT_KEPT // 3) if match else 0
    return line[start : start + TEXT_KEPT].strip()


def _echo(pattern: str) -> Any:
    """Return the pattern that finds ``pattern`` spelled out in a line, as itself or as JSON and Python write it."""
    spellings = {pattern, json.dumps(pattern)[1:-1], json.dumps(json.dumps(pattern)[1:-1])[1:-1]}
    spelled = "|".join(re.escape(one) for one in sorted(spellings))
    plain = not re.search(r"[\\^$|?*+()\[\]{}]", pattern)  # a dot is in many a plain name
    behind = rf"""match\\*['"]?\s*[:=]\s*[rbu]?\\*['"]?(?:{spelled})"""
    return re.compile(behind if plain else f"{behind}|{spelled}")


def _compiled(pattern: str) -> Any:
    return re2.compile(pattern, _options())


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options
