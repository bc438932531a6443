"""What a job's own object says about it: a second opinion beside its pods, in one form for all kinds.

The words of each operator stand in one table. A word that isn't in it means nothing: neither success nor failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_ft.backends.kubernetes.kinds import Json, Kind, walk

SUCCESS = {"Succeeded", "Complete", "Completed", "SuccessCriteriaMet"}
FAILURE = {"Failed", "FailureTarget"}
RAY_ENDS = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 1}
VOLCANO_SUCCESS, VOLCANO_FAILURE = {"Completed"}, {"Failed", "Aborted", "Terminated"}


@dataclass(frozen=True)
class JobStatus:
    """One job's own word. ``ended`` is 0 for success, 1 for failure, ``None`` while it goes on."""

    ended: int | None = None
    suspended: bool = False
    deleting: bool = False
    text: str = ""


def read_status(kind: Kind, job: Json) -> JobStatus:
    """Read a job's object."""
    deleting = bool(walk(job, ("metadata", "deletionTimestamp")))
    suspended = kind.suspend is not None and walk(job, kind.suspend) is True
    if kind.kind == "RayJob":
        ended, text = _ray(job)
    elif kind.group == "batch.volcano.sh":
        ended, text = _volcano(job)
    else:
        ended, text = _conditions(job)
    return JobStatus(ended, suspended, deleting, text)


def _conditions(job: Json) -> tuple[int | None, str]:
    ended, text = None, ""
    for one in walk(job, ("status", "conditions")) or ():
        if not isinstance(one, dict) or one.get("status") != "True":
            continue
        name = str(one.get("type"))
        if name in SUCCESS | FAILURE:
            ended = 0 if name in SUCCESS else 1
        text = f"{name} {one.get('reason', '')}: {one.get('message', '')}"
        if ended is not None:
            break
    return ended, text


def _ray(job: Json) -> tuple[int | None, str]:
    """``jobStatus`` is the driver's. The deployment's alone may be Failed while the driver trains on (seen)."""
    status = job.get("status") or {}
    word, deployment = str(status.get("jobStatus", "")), str(status.get("jobDeploymentStatus", ""))
    ended = RAY_ENDS.get(word)
    if ended is None and deployment == "Failed" and word in ("", "PENDING"):
        ended = 1  # no driver ever ran
    said = [deployment, word, str(status.get("reason", "")), str(status.get("message", ""))[:2000]]
    return ended, " ".join(filter(None, said))


def _volcano(job: Json) -> tuple[int | None, str]:
    phase = str(walk(job, ("status", "state", "phase")) or "")
    ended = 0 if phase in VOLCANO_SUCCESS else 1 if phase in VOLCANO_FAILURE else None
    return ended, f"{phase} {walk(job, ('status', 'state', 'message')) or ''}".strip()
