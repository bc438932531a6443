"""The sentences of decisions: what a person would say, short enough for an order to the agents (4 kB in all)."""

from __future__ import annotations

from airflow_ft.core.faults import FaultClass
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.situation import Case

MAX_TEXT = 300  # a root line is longer at times: the whole of it is in the diagnosis
MAX_NAMES = 8
NOTIFIED_DISRUPTIONS = 5  # DESIGN §4: after five without a step a person should know

CLASSES = {
    FaultClass.HW_NODE: "A node's hardware failed",
    FaultClass.NET_FABRIC: "The network failed",
    FaultClass.COMM_HANG: "Communication hung",
    FaultClass.OOM_HOST: "Host memory ran out",
    FaultClass.OOM_GPU: "GPU memory ran out",
    FaultClass.APP_ERROR: "The program failed",
    FaultClass.ENV_ERROR: "The environment failed",
    FaultClass.UNKNOWN: "Training died of an unknown cause",
}


def what(case: Case) -> str:
    """What happened, and to whom."""
    text = "Training hangs" if case.hang else CLASSES[case.ladder_class]
    return f"{text} ({names(case.suspects)} suspected)" if case.suspects else text


def suspected(nodes: tuple[str, ...]) -> str:
    """Who is suspected."""
    return f"Node {nodes[0]} is suspected" if len(nodes) == 1 else f"Nodes {names(nodes)} are suspected"


def them(out: tuple[str, ...], targets: tuple[str, ...]) -> str:
    """The nodes that go, after ``suspected(targets)``."""
    if len(out) < len(targets):
        return names(out)
    return "it" if len(out) == 1 else "them"


def cost(charged: str, after: Ledger, policy: FaultTolerancePolicy) -> str:
    """What the decision cost."""
    used = f"{after.restarts} of {policy.max_restarts} restarts used."
    sentences = {
        "restart": used,
        "unconditional": f"Unconditional restart {after.unconditional_streak} of {policy.max_unconditional_streak} "
        f"in a row. {used}",
        "hang": f"Hang restart {after.hang_streak} of {policy.max_hang_streak} in a row, not charged.",
        "in_place": f"Restart {after.unprogressed} of {policy.max_in_place} without lasting progress, not charged.",
        "pod": f"{after.pod_restarts} of {policy.pod_restarts} pod restarts used.",
        "disruption": "Not charged.",
    }
    if charged == "disruption" and after.disruptions >= NOTIFIED_DISRUPTIONS:
        return f"Not charged, but {after.disruptions} disruptions without a new step."
    return sentences.get(charged, "")


def kept(nodes: tuple[str, ...], pool_seen: bool) -> str:
    """Who should have been excluded and wasn't."""
    why = "pool too small" if pool_seen else "the pool can't be seen"
    return f"{names(nodes)} wanted out, kept: {why}." if nodes else ""


def expired(nodes: tuple[str, ...]) -> str:
    """Whose exclusion is over."""
    return f"{names(nodes)} may be used again: the exclusion has expired." if nodes else ""


def advice(case: Case) -> str:
    """The diagnosis's advice, as a further sentence."""
    return f". {clip(case.diagnosis.advice)}" if case.diagnosis.advice else ""


def names(nodes: tuple[str, ...]) -> str:
    """Some names, and how many more."""
    more = len(nodes) - MAX_NAMES
    return ", ".join(nodes[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def clip(text: str) -> str:
    """A text without its full stop, cut to a readable length."""
    text = " ".join(text.split())
    return (text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…").rstrip(".")


def sentence(text: str) -> str:
    """End a text like a sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
