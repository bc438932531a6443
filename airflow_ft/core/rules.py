"""Signatures: what is recognised in logs and exit codes, as data.

One YAML file per source of messages lies in ``signatures/``; users add files of their own, which are asked first. The
files are read by ``diagnosis.signature_files``, which hands in the loaded document: this module validates it, says
*every* mistake with file, entry and reason, and compiles the patterns. An empty or broken set is an error, never "no
match".

Patterns are RE2 (linear time: a user's pattern can be wrong, but it can't hang the supervisor) and are searched in one
line without its prefixes. ``scan_pattern`` is the alternation of all patterns for whole blocks of a log: it finds the
few lines that are worth a closer look; ``match`` then asks all patterns at once (an RE2 set) which of them fit a line.

Named groups of a pattern (``node``, ``rank``, ``gpu``, ``address``, ``pid``) tell whom a line is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import re2
from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from airflow_ft.core.advice import ADVICE
from airflow_ft.core.faults import FaultClass, Retry, Role
from airflow_ft.core.records import Settings, explain

LINE_LIMIT = 4_000  # characters of a line that are searched

# Lines that no signature needs, but the order of events does: who ended, where a run began, who wrote.
EVENTS = (
    r"Traceback \(most recent call last\)",
    r"failed \(exitcode: ",
    r"Root Cause \(first",
    r"exited on signal",
    r"srun: error: ",
    r'"event": ?"start"',
    r"xit (?:with )?status code",
)


class Examples(Settings):
    """Lines that the pattern has to match, and near misses that it must not. A test walks all of them."""

    match: tuple[str, ...] = ()
    no_match: tuple[str, ...] = ()


class Signature(Settings):
    """One kind of message or exit code, and what it means.

    :param pattern: RE2, searched in a line. Either this, ``xids`` or ``codes``.
    :param codes: exit codes of a rank or a command; negative for a signal.
    :param xids: numbers of the NVIDIA driver's Xid messages with NVIDIA's words for them.
    :param bucket: the vendor's own name of what to do about it.
    :param role: whether it is a cause (``root``), what a peer shows when someone else died (``cascade``), a cause only
        if nothing better is found (``ambiguous``), or only good to know (``advice``).
    :param says: what happened, for people, as the end of a sentence that begins with who: "ran out of memory".
    :param generic: whether it only catches what no other signature knows; then the line itself is the cause.
    :param vague: whether it only knows plain words; dropped where any other line of the run is known.
    :param hardware: whether a line of it, printed by a job, needs a second source before a node is suspected.
    :param local: whether the trouble is on the node that prints the line, not at its peer.
    :param connects: whether it is a connection that was not made: after a loss in the same log it is a consequence.
    :param points_to_rank: the rank that such a line speaks of, when another one prints it.
    :param disruption: names an end that is nobody's fault (a preemption, a time limit); free, whatever else is there.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    pattern: str = ""
    codes: tuple[int, ...] = ()
    xids: dict[int, str] = Field(default_factory=dict)
    bucket: str = ""
    role: Role
    fault_class: FaultClass
    second_class: FaultClass | None = None
    retry: Retry = Retry.UNKNOWN
    confidence: float = Field(ge=0.0, le=1.0)
    says: str
    advice: str
    reference: str = ""
    hardware: bool = False
    generic: bool = False
    vague: bool = False
    disruption: str | None = None
    points_to_rank: int | None = None
    local: bool = False
    connects: bool = False
    examples: Examples = Examples()
    origin: str = ""  # the file, set when it is read
    user: bool = False

    @model_validator(mode="before")
    @classmethod
    def _known_words(cls, data: Any) -> Any:
        # In a record an unknown word of a newer version is tolerated; in a file that a person wrote it is a mistake.
        words = (("role", Role), ("fault_class", FaultClass), ("second_class", FaultClass), ("retry", Retry))
        for field, kind in words:
            word = data.get(field) if isinstance(data, dict) else None
            if isinstance(word, str) and word not in [member.value for member in kind]:
                raise ValueError(f"{field}: {word!r} is not one of {', '.join(member.value for member in kind)}")
        return _completed(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.pattern) == bool(self.codes):
            raise ValueError("give either a pattern or codes")
        if self.pattern:
            _compile(self.pattern)
        return self


def _completed(data: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with what follows from its other fields: the pattern of its Xids, its class's advice."""
    xids, fault_class = data.get("xids"), data.get("fault_class")
    completed = dict(data)
    if isinstance(xids, dict) and xids and "pattern" not in data:
        numbers = "|".join(str(number) for number in sorted(xids, key=str))
        completed["pattern"] = rf"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9A-Fa-f:.]+)\)?[^:]*: (?:{numbers})\b"
    if "advice" not in data and isinstance(fault_class, str) and fault_class in ADVICE:
        completed["advice"] = ADVICE[fault_class]
    return completed


class SignatureError(ValueError):
    """A signature file can't be used. The message lists every mistake with file, entry and reason."""


def parse_signatures(document: object, file_name: str, *, user: bool = False) -> list[Signature]:
    """Validate one loaded file: a mapping with the list ``signatures``. Raises ``SignatureError``."""
    entries = document.get("signatures") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise SignatureError(f"{file_name}: no entries. Write a list `signatures:` with at least one entry.")
    found: list[Signature] = []
    mistakes: list[str] = []
    common = document.get("reference", "") if isinstance(document, dict) else ""  # where all entries come from
    for number, entry in enumerate(entries, 1):
        name = entry.get("id", f"entry {number}") if isinstance(entry, dict) else f"entry {number}"
        try:
            signature = Signature.model_validate(entry)
            reference = signature.reference or str(common)
            found.append(signature.model_copy(update={"origin": file_name, "user": user, "reference": reference}))
        except ValidationError as error:
            mistakes.append(f"{file_name}: {name}: {explain(error)}")
    if mistakes:
        raise SignatureError("\n".join(mistakes))
    return found


class RuleSet:
    """Signatures, compiled. Users' signatures come first, then the order in which they were given."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        ordered = sorted(signatures, key=lambda signature: not signature.user)
        _refuse_doubles(ordered)
        self.signatures: tuple[Signature, ...] = tuple(ordered)
        self._with_pattern = [signature for signature in ordered if signature.pattern]
        if not self._with_pattern:
            raise SignatureError("signatures: none with a pattern is left. An empty set would see no fault at all.")
        self._patterns = {signature.id: _compile(signature.pattern) for signature in self._with_pattern}
        self._set = re2.Set.SearchSet(_options())
        for signature in self._with_pattern:
            self._set.Add(signature.pattern)
        self._set.Compile()

    @cached_property
    def scan_pattern(self) -> Any:
        """One pattern for blocks of bytes that matches in every line that any signature could match, and in events."""
        loose = [_without_anchors(signature.pattern) for signature in self._with_pattern]
        options = _options()
        options.encoding, options.never_nl, options.never_capture = re2.Options.Encoding.LATIN1, True, True
        return re2.compile("|".join(f"(?:{pattern})" for pattern in [*loose, *EVENTS]).encode("latin-1"), options)

    def match(self, line: str) -> Signature | None:
        """Return the signature that fits the line best: a user's before ours, then the one with most confidence."""
        return max(self.hits(line), key=_rank, default=None)

    def hits(self, line: str) -> list[Signature]:
        """Return all signatures that fit the line."""
        return [self._with_pattern[index] for index in self._set.Match(line[:LINE_LIMIT]) or ()]

    def captured(self, signature: Signature, line: str) -> dict[str, str]:
        """Return whom the line is about: the named groups of the signature's pattern that took part."""
        found = self._patterns[signature.id].search(line[:LINE_LIMIT])
        return {name: value for name, value in found.groupdict().items() if value} if found else {}

    @property
    def fallback(self) -> Signature | None:
        """The generic signature: what the end of any traceback is taken for."""
        return next((signature for signature in self.signatures if signature.generic), None)

    def for_code(self, code: int) -> Signature | None:
        """Return the signature of an exit code."""
        hits = [signature for signature in self.signatures if code in signature.codes]
        return max(hits, key=_rank, default=None)


def compile_signatures(signatures: Iterable[Signature]) -> RuleSet:
    """Compile signatures. Raises ``SignatureError`` for an empty set and for an id that is given twice."""
    return RuleSet(signatures)


def _rank(signature: Signature) -> tuple[bool, bool, bool, float]:
    return signature.user, not signature.generic, not signature.vague, signature.confidence


def _refuse_doubles(signatures: Sequence[Signature]) -> None:
    seen: dict[str, Signature] = {}
    doubles = []
    for signature in signatures:
        other = seen.setdefault(signature.id, signature)
        if other is not signature:
            doubles.append(f"{signature.origin}: {signature.id}: this id is taken by {other.origin}. Give another one.")
    if doubles:
        raise SignatureError("\n".join(doubles))


def _without_anchors(pattern: str) -> str:
    """Return the pattern without ``^``: in a raw line it may stand behind a prefix. ``$`` becomes the line's end."""
    plain = re.sub(r"[^\x00-\x7f]+", ".+", pattern)  # one character of the pattern is several bytes of the log
    return "(?m)" + re.sub(r"(?<!\\)(?<!\[)\^", "", plain)


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern, _options())
    except re2.error as error:
        raise ValueError(f"pattern: {pattern!r} is no RE2 pattern: {error}") from error


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 256 << 20  # of the automaton of all patterns; the default of 8 MB falls back to a slower way
    return options
