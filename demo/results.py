"""What the demo measured: each fault with its class, what was done, and the seconds to the next step.

Injection and recovery are the demo's own observations (`training_log`); class, action and the time of detection come
from the retry chain, as anybody can read it over Airflow's web server.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from demo.injection import Injected
from demo.training_log import TrainingLog


@dataclass(frozen=True)
class Result:
    """One fault. Times are seconds after the injection; ``None`` if it wasn't seen."""

    injected: str
    fault_class: str | None
    action: str | None
    detected_s: float | None
    respawned_s: float | None
    first_step_s: float | None
    checkpoint_step: int | None
    verified: bool
    detail: str
    reason: str = ""


def results(faults: list[Injected], log: TrainingLog, chain: dict[str, Any]) -> list[Result]:
    """Match each injected fault with the incident that followed it."""
    incidents = [incident for attempt in chain["attempts"] for incident in attempt.get("incidents", [])]
    made = []
    for number, fault in enumerate(faults):
        until = faults[number + 1].at if number + 1 < len(faults) else float("inf")
        mine = [i for i in incidents if fault.at <= _time(i["detected_at"]) < until]
        made.append(_result(fault, mine[0] if mine else None, log, chain))
    return made


def _result(fault: Injected, incident: dict[str, Any] | None, log: TrainingLog, chain: dict[str, Any]) -> Result:
    start = log.starts[fault.starts] if len(log.starts) > fault.starts else None
    loaded_right = start is not None and start.loaded == start.saved_before > 0
    passed = start is not None and max(s.last_step for s in log.starts[fault.starts :]) > fault.step
    first_step_at = start.first_step_at if start is not None else None
    noticed = _time(incident.get("began_at") or incident["detected_at"]) if incident else None
    return Result(
        injected=fault.what,
        fault_class=incident["diagnosis"]["fault_class"] if incident else None,
        action=incident["decision"]["action"] if incident else None,
        detected_s=_since(fault, noticed),
        respawned_s=_since(fault, _respawned(incident, chain)),
        first_step_s=_since(fault, first_step_at),
        checkpoint_step=start.loaded if start is not None else None,
        verified=incident is not None and loaded_right and passed,
        detail=fault.detail,
        reason=incident["decision"]["reason"] if incident else "no incident in the chain",
    )


def _respawned(incident: dict[str, Any] | None, chain: dict[str, Any]) -> float | None:
    """When processes ran again: the order for a restart in place, else the next attempt's submission."""
    if incident is None:
        return None
    if incident.get("ordered_at"):
        return _time(incident["ordered_at"])
    following = [a for a in chain["attempts"] if a["number"] == incident["attempt"] + 1 and a.get("ref")]
    return _time(following[0]["ref"]["submitted_at"]) if following else None


def _since(fault: Injected, at: float | None) -> float | None:
    return None if at is None else round(max(0.0, at - fault.at), 2)


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def as_json(made: list[Result], finished: bool, steps: int, seconds: float) -> dict[str, Any]:
    """Return the summary as JSON."""
    return {"finished": finished, "steps": steps, "seconds": round(seconds, 1), "faults": [asdict(r) for r in made]}
