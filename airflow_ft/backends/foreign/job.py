"""``ForeignJob``: a training that something else has submitted, and what can be known to be wrong with naming it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import SerializeAsAny, model_validator
from typing_extensions import Self

from airflow_ft.backends.base import TrainingJob
from airflow_ft.backends.kubernetes.kinds import KINDS
from airflow_ft.core.settings import SettingsError, did_you_mean, setting

NOT_YET = {"slurm_job_id": "Slurm", "ray_submission_id": "Ray"}
WATCHED = "It is watched and judged; it is never stopped, restarted or deleted by this task (own=True is not given)."
OWNED = "own=True: it is stopped with this task, and where the policy says so; {again}."
_TEXT = "Give a text."


class ForeignJob(TrainingJob):
    """A training that something else has submitted: it is watched, its faults are classified, the decision is told.

    Name *one* thing: a process of this machine (``pid``) or an object on Kubernetes (``kind`` and ``name``). Nothing is
    done to it, whatever the policy decides, unless ``own`` is true. All strings are templated.

    :param pid: a process of the machine where this task and the triggerer run. How it ends is known to its parent
        alone, so the log decides what can be said of its end.
    :param start_ticks: when that process began, in clock ticks since the boot (field 22 of ``/proc/PID/stat``): a pid
        alone may belong to another process by the time that this task begins. Needed with ``own``.
    :param log: for ``pid``: the file that it writes, or a glob of several.
    :param kind: for Kubernetes: ``PyTorchJob``, ``TrainJob``, ``RayJob``, ``JobSet``, ``MPIJob`` or ``Job``.
    :param name: the object's name.
    :param namespace: where it is; default: the connection's, then ``default``.
    :param api_version: for a kind that two groups have: ``batch.volcano.sh/v1alpha1`` for a Volcano Job.
    :param conn_id: a connection of type Kubernetes.
    :param slurm_job_id: not possible yet.
    :param ray_submission_id: not possible yet.
    :param own: take the job over: it is stopped when the task is cleared, cancelled or times out, and when the policy
        says so.
    :param again: with ``own``: what is submitted where the policy restarts it. Without it, it is stopped for good.
    """

    backend: ClassVar[str] = "foreign"

    pid: int | str | None = setting(None, allowed="Give a process id, or a template of one.")
    start_ticks: int | str | None = setting(None, allowed="Give a whole number, or a template of one.")
    log: str | None = setting(None, allowed="Give a path or a glob.")
    kind: str | None = setting(None, allowed=_TEXT)
    name: str | None = setting(None, allowed=_TEXT)
    namespace: str | None = setting(None, allowed=_TEXT)
    api_version: str | None = setting(None, allowed=_TEXT)
    conn_id: str = setting("kubernetes_default", allowed=_TEXT)
    slurm_job_id: int | str | None = setting(None, allowed="Leave it out.")
    ray_submission_id: str | None = setting(None, allowed="Leave it out.")
    own: bool = setting(False, allowed="Give True or False.")
    again: SerializeAsAny[TrainingJob] | None = setting(None, allowed="Give a training job, as LocalJob(command=[…]).")

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        found = _problems(self)
        if found:
            raise SettingsError(found)
        return self

    def rendered(self, render: Callable[[object], object]) -> Self:
        """Return a copy in which every string went through ``render``."""
        bare = super(ForeignJob, self.model_copy(update={"again": None})).rendered(render)
        return bare.model_copy(update={"again": self.again.rendered(render) if self.again is not None else None})

    def serialize(self) -> dict[str, object]:
        """What the rendered-fields view of Airflow shows."""
        shown = super().serialize()
        return {**shown, "again": self.again.serialize() if self.again is not None else None}

    def nodes_needed(self) -> int:
        """How many nodes an attempt takes that we would submit."""
        return self.again.nodes_needed() if self.again is not None else 1

    def gpus(self) -> int:
        """How many GPUs such an attempt holds."""
        return self.again.gpus() if self.again is not None else 0

    def secrets(self) -> tuple[str, ...]:
        """Return the secret values of ``again``."""
        return self.again.secrets() if self.again is not None else ()

    def remarks(self) -> tuple[str, ...]:
        """Say whose job this is, and what may happen to it."""
        if not self.own:
            return (WATCHED,)
        again = "then `again` is submitted" if self.again is not None else "it can't be started again (again= says how)"
        return (OWNED.format(again=again),)

    @property
    def platform(self) -> str:
        """Where it is: its nodes are those of the jobs that we submit there."""
        return "process" if self.pid is not None else "kubernetes"

    @property
    def words(self) -> str:
        """What it is, in words."""
        return f"process {self.pid}" if self.pid is not None else f"{self.kind} {self.name}"

    @property
    def group_version(self) -> str:
        """The ``apiVersion`` of ``kind``: the given one, else the first that has such a kind."""
        return self.api_version or next(version for version, kind in KINDS if kind == self.kind)


def _problems(job: ForeignJob) -> list[str]:
    not_yet = [field for field in NOT_YET if getattr(job, field) is not None]
    if not_yet:
        return [_not_yet(field) for field in not_yet]
    if (job.pid is None) == (job.kind is None and job.name is None):
        return ["ForeignJob: give one of pid (a process of this machine), or kind and name (an object on Kubernetes)."]
    return _process_problems(job) if job.pid is not None else _object_problems(job)


def _not_yet(field: str) -> str:
    return (
        f"{field}: is not possible yet: there is no {NOT_YET[field]} backend in this version. What can be watched: a "
        "process (pid) and an object on Kubernetes (kind and name). What it prints can be followed all the same: "
        "TrainingProgressSensor(log='/path/of/its.log')."
    )


def _process_problems(job: ForeignJob) -> list[str]:
    found = [
        f"{field}: {given!r:.80} is not allowed. Give a whole number above 1."
        for field, given in (("pid", job.pid), ("start_ticks", job.start_ticks))
        if given is not None and not _is_template(given) and not (str(given).isdecimal() and int(given) > 1)
    ]
    if job.own and job.start_ticks is None:
        found.append(
            "start_ticks: nothing is given, and own=True needs it: a pid alone may be another process by now, and that "
            "one would be stopped. Give field 22 of /proc/PID/stat."
        )
    return found + _again_problems(job)


def _object_problems(job: ForeignJob) -> list[str]:
    found = [f"{field}: nothing is given, and it is needed." for field in ("kind", "name") if not getattr(job, field)]
    kinds = {kind for version, kind in KINDS if job.api_version in (None, version)}
    if job.kind and not _is_template(job.kind) and job.kind not in kinds:
        given = f"{job.api_version} {job.kind}" if job.api_version else job.kind
        known = {kind for _, kind in KINDS}
        allowed = did_you_mean(job.kind, kinds or known)
        found.append(f"kind: {given!r} is not allowed. {allowed}")
    found += [
        f"{field}: is for a process (pid)." for field in ("log", "start_ticks") if getattr(job, field) is not None
    ]
    return found + _again_problems(job)


def _again_problems(job: ForeignJob) -> list[str]:
    if job.again is None or job.own:
        return []
    return ["again: is not allowed without own=True: a job that is only watched is never submitted again."]


def _is_template(given: object) -> bool:
    return isinstance(given, str) and ("{{" in given or "{%" in given)
