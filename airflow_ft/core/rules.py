"""Signatures: what is recognised in logs and exit codes, as data.

One YAML file per source of messages lies in ``signatures/``; users add files of their own, which are asked first. The
files are read by ``diagnosis.signature_files``, which hands in the loaded document: this module validates it, says
*every* mistake with file, entry and reason, and compiles the patterns. An empty or broken set is an error, never "no
match".

Patterns are RE2 (linear time: a user's pattern can be wrong, but it can't hang the supervisor) and are searched in one
line without its rank prefix. One alternation of all patterns is tried first; only a line that passes it is tried
against each pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import re2
from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from airflow_ft.core.faults import FaultClass, Retry, Role
from airflow_ft.core.records import Settings, explain

LINE_LIMIT = 4_000  # characters of a line that are searched


class Examples(Settings):
    """Lines that the pattern has to match, and near misses that it must not. A test walks all of them."""

    match: tuple[str, ...] = ()
    no_match: tuple[str, ...] = ()


class Signature(Settings):
    """One kind of message or exit code, and what it means.

    :param pattern: RE2, searched in a line. Either this or ``codes``.
    :param codes: exit codes of a rank or a command; negative for a signal.
    :param role: whether it is a cause (``root``), what a peer shows when someone else died (``cascade``), a cause only
        if nothing better is found (``ambiguous``), or only good to know (``advice``).
    :param says: what happened, for people, as the end of a sentence that begins with who: "ran out of memory".
    :param generic: whether it only catches what no other signature knows; then the line itself is the cause.
    :param hardware: whether a line of it, printed by a job, needs a second source before a node is suspected.
    """

    id: str = Field(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+)+$")
    pattern: str = ""
    codes: tuple[int, ...] = ()
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
        return data

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.pattern) == bool(self.codes):
            raise ValueError("give either a pattern or codes")
        if self.pattern:
            _compile(self.pattern)
        return self


class SignatureError(ValueError):
    """A signature file can't be used. The message lists every mistake with file, entry and reason."""


def parse_signatures(document: object, file_name: str, *, user: bool = False) -> list[Signature]:
    """Validate one loaded file: a mapping with the list ``signatures``. Raises ``SignatureError``."""
    entries = document.get("signatures") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise SignatureError(f"{file_name}: no entries. Write a list `signatures:` with at least one entry.")
    found: list[Signature] = []
    mistakes: list[str] = []
    for number, entry in enumerate(entries, 1):
        name = entry.get("id", f"entry {number}") if isinstance(entry, dict) else f"entry {number}"
        try:
            found.append(Signature.model_validate(entry).model_copy(update={"origin": file_name, "user": user}))
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
        self._patterns = [(signature, _compile(signature.pattern)) for signature in ordered if signature.pattern]
        if not self._patterns:
            raise SignatureError("signatures: none with a pattern is left. An empty set would see no fault at all.")
        self._any = _compile("|".join(f"(?:{signature.pattern})" for signature, _ in self._patterns))

    def match(self, line: str) -> Signature | None:
        """Return the signature that fits the line best: a user's before ours, then the one with most confidence."""
        line = line[:LINE_LIMIT]
        if self._any.search(line) is None:
            return None
        hits = [signature for signature, pattern in self._patterns if pattern.search(line) is not None]
        return max(hits, key=_rank, default=None)

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


def _rank(signature: Signature) -> tuple[bool, bool, float]:
    return signature.user, not signature.generic, signature.confidence


def _refuse_doubles(signatures: Sequence[Signature]) -> None:
    seen: dict[str, Signature] = {}
    doubles = []
    for signature in signatures:
        other = seen.setdefault(signature.id, signature)
        if other is not signature:
            doubles.append(f"{signature.origin}: {signature.id}: this id is taken by {other.origin}. Give another one.")
    if doubles:
        raise SignatureError("\n".join(doubles))


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20  # the alternation of all patterns; the default of 8 MB falls back to a slower way
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"pattern: {pattern!r} is no RE2 pattern: {error}") from error
