"""How sure a diagnosis may be: the chance that its class is right, by the kind of evidence that it rests on. Pure.

The confidence that an author gives a signature orders signatures; it is no chance. What a person is told is how often
the same *kind of evidence* was right on cases that the classifier saw for the first time (``python -m
benchmarks.classifier``, "evidence"; a test keeps this table equal to what was recorded):

- ``sure``, ``likely``, ``weak``: a root line of a signature whose author gave it 0.82 and more, 0.7 and more, less;
- ``planned``: a line of a scheduler or a cloud that says that the end was wanted;
- ``code``: only the exit code or the signal of a rank;
- ``cascade``: only what peers print; ``ambiguous``: a line that is a cause only where nothing better is found;
- ``generic``: the last line of a traceback that no signature knows; ``words``: only plain words.

A kind's chance is its share of right answers, drawn by ``PRIOR`` cases towards the share of all, or towards one half
where there are fewer cases than that (the usual way of not believing a handful: the mean of a Beta distribution).
Rejected: isotonic regression over the authors' values, which needs more cases than there are; and calibrating on the
cases that signatures were written with, which flatters.
"""

from __future__ import annotations

from airflow_ft.core.faults import Role
from airflow_ft.core.rules import Signature

# kind of evidence: (right, of) at first sight
SEEN: dict[str, tuple[int, int]] = {
    "ambiguous": (39, 46),
    "cascade": (55, 69),
    "code": (30, 33),
    "generic": (56, 74),
    "likely": (124, 135),
    "planned": (33, 34),
    "sure": (273, 281),
    "weak": (13, 16),
    "words": (5, 7),
}
PRIOR = 4
NOT_SEEN = 0.5  # of a kind that no first sight rested on, nothing is known
SURE, LIKELY = 0.82, 0.7


def kind_of_evidence(signature: Signature) -> str:
    """Return what a diagnosis rests on that this signature gives."""
    if signature.disruption:
        return "planned"
    if signature.vague:
        return "words"
    if signature.generic:
        return "generic"
    if signature.codes:
        return "code"
    if signature.role is Role.ROOT:
        return "sure" if signature.confidence >= SURE else "likely" if signature.confidence >= LIKELY else "weak"
    return "cascade" if signature.role is Role.CASCADE else "ambiguous"


def chance(kind: str, seen: dict[str, tuple[int, int]] | None = None) -> float:
    """Return the chance that a class that rests on this kind of evidence is right."""
    table = SEEN if seen is None else seen
    if kind not in table:
        return NOT_SEEN
    all_right, all_of = sum(right for right, _ in table.values()), sum(of for _, of in table.values())
    right, of = table[kind]
    expected = all_right / all_of if of >= PRIOR else NOT_SEEN
    return (right + PRIOR * expected) / (of + PRIOR)


def confidence_of(signature: Signature) -> float:
    """Return how sure a diagnosis by this signature may be. A person's own signature is believed as they say."""
    return signature.confidence if signature.user else chance(kind_of_evidence(signature))
