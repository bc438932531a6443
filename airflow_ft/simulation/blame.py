"""Imperfect blame: what the diagnosis says of a fault whose truth the model knows.

Two ways to be wrong: another class, and another suspect (a healthy node, or nobody). With a single number (``blame``)
both are right that often, and otherwise one of the two is wrong, each half of the time; *which* wrong class follows the
classifier's published confusion, which wrong suspect its published blame. With ``table`` both are drawn from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Retry, Suspect, Trust

# What is said about running again, for each class, where the classifier is sure of it.
RETRY = {
    FaultClass.APP_ERROR: Retry.USELESS,
    FaultClass.OOM_GPU: Retry.USELESS,
    FaultClass.ENV_ERROR: Retry.USEFUL,
}
WRONG_NODE = 0.5  # of wrong suspects where no table says: half name another node, half nobody


@dataclass(frozen=True)
class Accuracy:
    """How often a class is called what, and how often the suspect is right, wrong, or nobody."""

    said: Mapping[FaultClass, tuple[tuple[FaultClass, float], ...]]
    suspects: Mapping[FaultClass, tuple[float, float, float]]

    @classmethod
    def from_table(cls, document: Mapping[str, Any]) -> Accuracy:
        """Read the classifier's published table: unseen cases if there are any, else those it was made with."""
        classes = (document.get("unseen") or document.get("in_sample") or {}).get("classes", {})
        said, suspects = {}, {}
        for name, row in classes.items():
            counts = {FaultClass(word): float(count) for word, count in row.get("said", {}).items()}
            total = sum(counts.values())
            blame = row.get("blame", {})
            named = float(blame.get("named_by_label", 0))
            if total:
                said[FaultClass(name)] = tuple((word, count / total) for word, count in sorted(counts.items()))
            if named:
                right, wrong, nobody = (float(blame.get(key, 0)) / named for key in ("right", "wrong", "nobody"))
                suspects[FaultClass(name)] = (right, wrong, nobody)
        return cls(said, suspects)


def diagnose(
    truth: FaultClass,
    node: str | None,
    kind: str,
    *,
    blame: float | str,
    accuracy: Accuracy,
    others: Sequence[str],
    chance: Random,
    by_platform: bool = False,
) -> Diagnosis:
    """Return what is said of a fault of class ``truth`` on ``node`` (``None``: nobody's).

    :param others: the other nodes of the job: whom a wrong blame can hit.
    """
    if by_platform and node is not None:
        return _diagnosis(truth, node, kind, Trust.PLATFORM)  # the platform names the node that is gone
    said, suspect = truth, node
    if blame == "table":
        said = _draw(accuracy.said.get(truth, ((truth, 1.0),)), chance)
        if node is not None:
            suspect = _suspect(node, accuracy.suspects.get(truth, (1.0, 0.0, 0.0)), others, chance)
    elif chance.random() >= float(blame):
        wrong = [(word, share) for word, share in accuracy.said.get(truth, ()) if word is not truth]
        if chance.random() < 0.5 or node is None:
            said = _draw(wrong, chance) if wrong else FaultClass.UNKNOWN
        else:
            _, missed, nobody = accuracy.suspects.get(truth, (0.0, 0.0, 0.0))
            share = missed / (missed + nobody) if missed + nobody else WRONG_NODE
            suspect = _suspect(node, (0.0, share, 1 - share), others, chance)
    if said in (FaultClass.APP_ERROR, FaultClass.UNKNOWN, FaultClass.OOM_GPU, FaultClass.OOM_HOST):
        suspect = None  # these classes blame no nodes
    return _diagnosis(said, suspect, kind, Trust.JOB)


def _suspect(node: str, shares: Sequence[float], others: Sequence[str], chance: Random) -> str | None:
    right, wrong, _ = shares
    at = chance.random()
    if at < right:
        return node
    return chance.choice(others) if at < right + wrong and others else None


def _draw(shares: Sequence[tuple[FaultClass, float]], chance: Random) -> FaultClass:
    return chance.choices([word for word, _ in shares], [share for _, share in shares])[0]


def _diagnosis(said: FaultClass, suspect: str | None, kind: str, trust: Trust) -> Diagnosis:
    return Diagnosis(
        fault_class=said,
        text=kind,
        root=Evidence(source="node" if trust is Trust.PLATFORM else "log", text=kind, trust=trust, node=suspect),
        suspects=(Suspect(kind="node", name=suspect),) if suspect else (),
        confidence=0.9 if trust is Trust.PLATFORM else 0.8,
        retry=RETRY.get(said, Retry.UNKNOWN),
        signature=kind,
    )
