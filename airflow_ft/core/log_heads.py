"""Whose line it is when a program's own logger says so: heads of many forms, and whole records. Feeds ``prefixes``.

Launchers write few kinds of prefix (``prefixes``); programs write any. They have in common that the rank or the host
stands in a *head* that the logger's format puts before each message, so the forms are a table of heads, tried in turn:
brackets (``[R12]``, ``<node 2, global rank 19>``, ``[2025-06-01 10:03:12 TP5]``), columns (``ERROR | rank 6 |
train:91 |``, ``nid005123:3  olmo.util:158  CRITICAL``), pairs (``rank=77 host=n19 FATAL``), and a place
(``task.2.7xk@host |``).

A *record* is a line that is a whole JSON object or a list of pairs (logfmt): its fields tell who, its message what.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

MAX_RECORD = 16_384
MESSAGE = ("message", "msg", "log", "text", "event", "error", "exception", "textPayload")
RANK = ("rank", "global_rank", "world_rank", "rank_id", "process_index", "process_id")
LOCAL = ("local_rank",)
NODE = ("host", "hostname", "node", "node_name", "nodename", "pod", "pod_name", "instance", "worker")
INNER = ("jsonPayload", "labels", "resource", "kubernetes", "fields", "extra", "context", "record")

_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_HOSTNAME = r"[A-Za-z][\w.-]*\d[\w.-]*"
_HEADS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?:\d\d/\d\d/\d{{4}} [\d:]{{8}} )?\[{_LEVEL}(?:\|\w+=\d+)+\|(?P<node>{_HOSTNAME})\]: ",  # Nanotron
        r"(?:DP\d+ )?(?:TP|R|[Rr]ank[ _]?)(?P<rank>\d{1,6})(?: [A-Z]+\d+)*\] ",  # SGLang, behind its clock
        r"(?:[\d:.,]{8,15} )?[\[(<](?:R|r|W|[Ww]orker[ _-]?|[Pp]roc(?:ess)?[ _-]?|(?:global[ _])?[Rr]ank[ _:=-]{0,2})"
        r"(?P<rank>\d{1,6})[\])>]:? ",
        r"[<{](?:[^<>{}\n]{0,80}?\b)?global[ _]rank[ =:](?P<rank>\d{1,6})\b[^<>{}\n]{0,40}[>}]:? ",
        r"[<{](?:[^<>{}\n]{0,80}?\b)?(?<!local )(?<!local_)rank[ =:](?P<rank>\d{1,6})\b[^<>{}\n]{0,40}[>}]:? ",
        r"(?:[\w .:,/-]{1,40}\| ?){0,4}(?:[Rr]ank|R) ?[=:]? ?(?P<rank>\d{1,6}) ?\|(?: ?[\w.:/-]{1,40} ?\|){0,3} ?",
        r"(?:[\w.-]+=\S+ ){0,5}rank=(?P<rank>\d{1,6})(?: host=(?P<node>[\w.-]+))?(?: [a-z_]+=[\w.:-]+)* ",
        rf"(?P<node>{_HOSTNAME}):(?P<local>\d{{1,2}})\s+[\w.]+:\d+\s+{_LEVEL}\s+(?:Uncaught )?",  # OLMo
        rf"<(?P<node>{_HOSTNAME})> ",  # blaunch
        rf"[\w-]+(?:\.\w+){{1,3}}@(?P<node>{_HOSTNAME}) +\| ?",  # docker service logs
        r"(?:worker|rank|proc)\[(?P<rank>\d{1,6})\]:? ",
        rf"(?:\[\d{{10}}\.\d+\] )?\[(?P<node>{_HOSTNAME}):\d+:\d+\] +",  # UCX
        rf"\[(?P<node>{_HOSTNAME}):mpi_rank_(?P<rank>\d+)\](?:\[\w+\])? ",  # MVAPICH2
        r"\[(?:ERROR|WARNING|INFO)\] [\d.:-]{15,32} \(PID:\d+, Device:-?\d+, RankID:(?P<rank>\d+)\) ",  # Ascend
        r"\[NeMo E [^\]]{10,80}\] ",
    )
)
_TAGGED = re.compile(rf"(?:[\w:.+-]+ )?(?:[\w-]+\.)*(?P<node>{_HOSTNAME.replace('.', '')}):? (?=\{{\")")  # fluentd
_LABELLED = re.compile(r"\{((?:[A-Za-z_]\w*=\"[^\"]*\",? ?)+)\} ?")  # Loki
_PAIRS = re.compile(r'(?:^| )([A-Za-z_][\w.]*)=("(?:[^"\\]|\\.)*"|\S+)')
_TAILS = (
    re.compile(
        r"\[(?:error|critical|info|warning|debug) *\] (?P<text>.*?)(?: +[\w.]+=\S+)*? +rank=(?P<rank>\d{1,6})\b.*$"
    ),
)
_BLOCKS = (  # a heading, and whether only another heading ends what stands below it
    (
        re.compile(r"^\s*\[Rank (\d{1,6}) Error Snippet\]|Traceback \(most recent call last\): \(RANK (\d{1,6})\)"),
        False,
    ),
    (re.compile(r"^-+ ?Begin (?:global )?rank (\d{1,6}) STD(?:ERR|OUT) ?-+"), True),  # Composer
    (
        re.compile(r"^==> \S*?(?:rank|worker(?:log)?|task|proc)[_.-]?(\d{1,6})[^/\s\d]*\S* <=="),
        True,
    ),  # tail of many files
    (
        re.compile(
            r"^[-=#* ]*(?i:stderr|stdout|log|output|traceback) (?i:of|from) (?i:rank|worker) (\d{1,6})[-=#* :]*$"
        ),
        True,
    ),
)
_END = re.compile(r"^-+ ?End (?:global )?rank \d+|^==> \S+ <==")


class Head(NamedTuple):
    """Who wrote a line, as far as its head tells, and the message behind it."""

    node: str | None
    rank: int | None
    local_rank: int | None
    text: str


class Block(NamedTuple):
    """Whose words the next lines are; ``lasting``: over empty lines too."""

    rank: int
    lasting: bool


def read_head(line: str) -> Head | None:
    """Return the head of a line, if its form is known."""
    for form in _HEADS:
        if (found := form.match(line)) is not None:
            told = found.groupdict()
            rank, local = (int(told[key]) if told.get(key) else None for key in ("rank", "local"))
            return Head(told.get("node"), rank, local, line[found.end() :])
    for form in _TAILS:
        if (found := form.match(line)) is not None:
            return Head(None, int(found["rank"]), None, found["text"])
    return None


def read_record(line: str) -> Head | None:
    """Return what a line says that is a whole record. A traceback in a message is told by its last line."""
    if (labels := _LABELLED.match(line)) is not None:
        told = dict(re.findall(r'(\w+)="([^"]*)"', labels[1]))
        return Head(_first(told, NODE), _number(_first(told, RANK)), None, line[labels.end() :])
    tag = _TAGGED.match(line[:200])
    fields = _fields(line[tag.end() :] if tag else line)
    message = _first(fields, MESSAGE) if fields else None
    if not isinstance(message, str):
        return None
    said = [part for part in message.splitlines() if part.strip()]
    text = said[-1 if "Traceback (most recent" in message else 0] if said else ""
    node = _first(fields, NODE) or (tag["node"] if tag else None)
    return Head(str(node) if node else None, _number(_first(fields, RANK)), _number(_first(fields, LOCAL)), text)


def next_block(line: str, block: Block | None, *, known: bool) -> Block | None:
    """Return whose words a launcher copies here, from a heading on.

    :param block: whose they were so far.
    :param known: whether the line itself tells its writer: then the copy is over.
    """
    for heading, lasting in _BLOCKS:
        if (found := heading.search(line)) is not None:
            return Block(int(next(filter(None, found.groups()))), lasting)
    if block is None or known or _END.search(line) is not None:
        return None
    return block if block.lasting or line.strip() else None


def _fields(line: str) -> dict[str, Any]:
    if line[:1] == "{" and line[-1:] == "}" and len(line) <= MAX_RECORD:
        try:
            loaded = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        return loaded if isinstance(loaded, dict) else {}
    if "msg=" not in line and "message=" not in line:
        return {}
    pairs = _PAIRS.findall(line[:MAX_RECORD])
    return {key: value.strip('"') for key, value in pairs} if len(pairs) >= 3 else {}


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    places = [fields, *(fields[key] for key in INNER if isinstance(fields.get(key), dict))]
    places += [place["labels"] for place in places[1:] if isinstance(place.get("labels"), dict)]
    return next((place[name] for place in places for name in names if place.get(name) not in (None, "")), None)


def _number(value: object) -> int | None:
    return int(str(value)) if str(value).isdigit() and len(str(value)) < 7 else None
