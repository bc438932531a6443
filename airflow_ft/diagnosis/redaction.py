"""Redaction: secrets are taken out where text is stored (DESIGN §5).

Three kinds are replaced by ``***``: values that are known to be secret (handed in), strings that look like a token of a
well-known service, and the value behind a key that names a secret (``HF_TOKEN=…``, ``password: …``,
``Authorization: Bearer …``, the password in a URL).

It must not break ordinary log lines: training is full of tokens. So ``tokens: 8,812``, ``pad_token='<pad>'``,
``tokens_per_second=12`` and hashes of files stay as they are; a key named only ``token`` needs a value that looks
random.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from airflow_ft.core.records import Record

STARS = "***"
SHORTEST_KNOWN = 6  # a shorter "secret" would hit ordinary words

_R = TypeVar("_R", bound=Record)

_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,}"
    r"|glpat-[A-Za-z0-9_-]{18,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|sk-(?:[a-z]+-)*[A-Za-z0-9_-]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{20,}|pypi-[A-Za-z0-9_-]{40,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,})"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL)
_URL = re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(?=@)")
_BEARER = re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9+/._~=-]{12,}")
_ASSIGNMENT = re.compile(
    r"(?P<keep>(?P<key>[A-Za-z][\w.-]*)[\"']?\s*(?:=>|[=:])\s*[\"']?)(?P<value>[^\s\"',;&)}\]]{4,})"
)
_SURE_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|credentials?|(?:secret|api|access|private)[_-]?key(?:[_-]?id)?"
    r"|client[_-]?secret|(?:access|auth|api|hf|hub|gh|github|gitlab|wandb|session|refresh|bearer|oauth|slack|bot"
    r"|registry|vault|jwt|csrf|security|service[_-]?account)[_-]?token)"
)
_SURE_KEY = re.compile(rf"(?i)(?:^|[_.-]){_SURE_NAMES}$")
_FLAG = re.compile(rf"(?i)(?P<keep>--(?:[\w-]*-)?(?:{_SURE_NAMES}|token)\s+[\"']?)[^\s\"'-][^\s\"']{{5,}}")
_ENV_KEY = re.compile(r"^[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD|PASS)$")
_VAGUE_KEY = re.compile(r"(?i)^(?:token|auth|authorization|key)$")
_PLAIN_VALUE = re.compile(
    r"(?i)^(?:none|null|true|false|\*+|<.*>?|\[.*|\{.*|\d+(?:[.,_]\d+)*|not|is|was|required|missing)$"
)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without secrets.

    :param known: values that are secret for sure; longer ones are replaced first.
    """
    for value in sorted({value for value in known if len(value) >= SHORTEST_KNOWN}, key=len, reverse=True):
        text = text.replace(value, STARS)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(STARS, text)
    text = _TOKENS.sub(STARS, text)
    if "://" in text:
        text = _URL.sub(rf"\g<keep>{STARS}", text)
    text = _BEARER.sub(rf"\g<keep>{STARS}", text)
    text = _FLAG.sub(rf"\g<keep>{STARS}", text) if "--" in text else text
    return _ASSIGNMENT.sub(_redact_assignment, text)


def redact_value(value: object, known: Iterable[str] = ()) -> object:
    """Return plain data (dictionaries, lists, strings) with every string redacted. Keys stay."""
    known = tuple(known)
    if isinstance(value, str):
        return redact(value, known)
    if isinstance(value, dict):
        return {key: redact_value(item, known) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redact_value(item, known) for item in value)
    return value


def redacted(record: _R, known: Iterable[str] = ()) -> _R:
    """Return a record with every string redacted."""
    return record.from_record(redact_value(record.model_dump(), known))


def _redact_assignment(found: re.Match[str]) -> str:
    key, value = found["key"], found["value"]
    if _PLAIN_VALUE.match(value):
        return found[0]
    if _SURE_KEY.search(key) or _ENV_KEY.match(key) or (_VAGUE_KEY.match(key) and _looks_random(value)):
        return found["keep"] + STARS
    return found[0]


def _looks_random(value: str) -> bool:
    kinds = sum(bool(re.search(kind, value)) for kind in (r"[a-z]", r"[A-Z]", r"\d"))
    return len(value) >= 16 and kinds >= 2 and "/" not in value
