"""Preflight, the pure part: what a policy says about it, and what its failed items mean for the attempt.

The items themselves run in the agent, on the very nodes that will train. Their verdict arrives as evidence of the
source ``preflight``; ``diagnosis_of`` makes one diagnosis of it:

- an item that fails on some nodes and not on others blames those nodes;
- one that fails on *every* node of several blames none of them: it is the environment;
- a pair that can't talk although each end can talk with others is the network's fault; the end that is left out next
  time is the one that is named last, because leaving out either is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Retry, Suspect
from airflow_ft.core.settings import CheckedSettings, Seconds, setting

SOURCE = "preflight"
PAIR = "preflight.pair"
MAX_EVIDENCE = 20
# The standard set took 3 s on 4 local nodes that shared 2 busy cores. Torch, which deep starts on each node, took those
# a minute to import.
SECONDS = {"standard": 30.0, "deep": 120.0}


class PreflightSettings(CheckedSettings):
    """What is looked at on every node before training proper.

    :param set: ``off``, ``quick`` (a second), ``standard`` (also what nodes do together) or ``deep``.
    :param seconds: the time limit for all of it; what isn't known by then is skipped. Default: 30, for ``deep`` 120.
    :param skip: items that are left out, by name.
    :param needs: other thresholds than the built-in ones, by item, in the item's own unit.
    :param commands: own items: a name, and the command whose code 0 is ok.
    :param hosts: names that have to resolve, beside those of ``/etc/volcano/*.host``.
    :param checkpoints: the checkpoint folder; ``{node}`` is the node's name.
    """

    set: Literal["off", "quick", "standard", "deep"] = setting("off", allowed="Give off, quick, standard or deep.")
    seconds: Seconds | None = setting(None, gt=0, le=600, allowed="Give seconds from above 0 to 600, or leave it out.")
    skip: tuple[str, ...] = setting((), allowed="Give a list of items.")
    needs: dict[str, float] = setting({}, allowed="Give a number for an item.")
    commands: dict[str, tuple[str, ...]] = setting({}, allowed="Give a list of arguments for a name.")
    hosts: tuple[str, ...] = setting((), allowed="Give a list of names.")
    checkpoints: str | None = setting(None, allowed="Give a folder, or leave it out.")

    @property
    def limit(self) -> float:
        """The time limit for all of it, in seconds."""
        return self.seconds if self.seconds is not None else SECONDS.get(self.set, SECONDS["standard"])

    def for_agent(self, on_error: str) -> dict[str, Any]:
        """Return what the agent is given; empty if there is no preflight."""
        if self.set == "off":
            return {}
        return {"on_error": on_error, **self.to_dict(), "set": self.set, "seconds": self.limit}


def diagnosis_of(evidence: Sequence[Evidence], nodes: Sequence[str]) -> Diagnosis | None:
    """Return what failed items mean; ``None`` if none failed."""
    found = [one for one in evidence if one.source == SOURCE and one.node]
    if not found:
        return None
    pairs = [one for one in found if one.signature == PAIR]
    alone = [one for one in found if one.signature != PAIR]
    common = _on_every_node(alone, nodes)
    own = [one for one in alone if one.signature not in common]
    root = (own or pairs or alone)[0]
    blamed = tuple(dict.fromkeys(str(one.node) for one in own))
    if blamed:
        who, fault_class = blamed, FaultClass.HW_NODE
    elif pairs:
        who, fault_class = (sorted(str(one.node) for one in pairs)[-1],), FaultClass.NET_FABRIC
    else:
        who, fault_class = (), FaultClass.ENV_ERROR
    where = "every node" if not who else ", ".join(dict.fromkeys(str(one.node) for one in own or pairs))
    return Diagnosis(
        fault_class=fault_class,
        text=f"The preflight failed on {where}: {root.text[:240]}",
        root=root,
        suspects=tuple(Suspect(kind="node", name=name) for name in who),
        confidence=0.9 if who else 0.7,
        retry=Retry.USEFUL,
        signature=root.signature,
        advice=_advice(root.text) or "Mend what the item names; the training itself has not been started.",
        evidence=tuple(found)[:MAX_EVIDENCE],
    )


def _on_every_node(found: Sequence[Evidence], nodes: Sequence[str]) -> set[str | None]:
    if len(nodes) < 2:
        return set()
    where: dict[str | None, set[str]] = {}
    for one in found:
        where.setdefault(one.signature, set()).add(str(one.node))
    return {signature for signature, hit in where.items() if hit >= set(nodes)}


def _advice(line: str) -> str:
    return line.partition(" advice=")[2].strip()
