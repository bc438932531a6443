"""How a job comes into being, exactly once, and how a name is closed for ever.

A job is made whole in ``ROOT/new`` and renamed to its name. ``rename`` onto a folder that isn't empty fails, so of any
number of submitters, dead, frozen or alive, one creates it and the others find it. A name is fenced by the same
``rename`` with a folder that holds nothing but the tombstone: a creator that was frozen before its rename and wakes
later gets the conflict, and nothing of it ever runs.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid

from airflow_ft.agent import processes
from airflow_ft.backends.base import (
    CancelledJobError,
    ForeignJobError,
    Submission,
    SubmissionRefusedError,
    UnreachableError,
)
from airflow_ft.backends.local import job as jobs
from airflow_ft.backends.local.folder import FENCED, OVER, Identity, JobFolder, Tombstone, now, write_json
from airflow_ft.backends.local.job import LocalJob

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NAME = re.compile(r"[^./\0][^/\0]*")
MAX_NAME_BYTES = 200  # file systems take 255; temporary names need some


def create_or_adopt(job: LocalJob, submission: Submission) -> tuple[JobFolder, Identity]:
    """Return the one job of this submission. Raises what ``Backend.submit`` raises."""
    folder = JobFolder(jobs.resolve_root(job.root), submission.name)
    refuse_bad_name(submission.name)
    if not os.path.isdir(folder.path):
        refuse(jobs.problems(job))
        temporary = prepare(folder, job, submission)
        if publish(temporary, folder):
            return folder, _known(folder)
    return folder, adopt(folder, submission, job.digest())


def prepare(folder: JobFolder, job: LocalJob, submission: Submission) -> str:
    """Make the whole job under a name that nobody looks at; returns its path."""
    remove_abandoned(folder.root)
    path = _new_folder(folder.root)
    argv, workdir, env = list(job.argv), job.folder(), job.environment()
    write_json(os.path.join(path, "job.json"), _identity(job, submission).model_dump(mode="json"))
    write_json(os.path.join(path, "spec.json"), {"argv": argv, "env": env, "workdir": workdir})
    os.mkdir(os.path.join(path, "nodes"), mode=0o700)
    return path


def publish(temporary: str, folder: JobFolder) -> bool:
    """Give the job its name; ``False`` if the name is taken."""
    try:
        os.rename(temporary, folder.path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in _TAKEN:
            return False
        raise
    return True


def adopt(folder: JobFolder, submission: Submission, digest: str) -> Identity:
    """Return the job under the name if this very submission created it."""
    identity = owned(folder, submission.chain_id)
    if identity is None:
        raise CancelledJobError(f"{folder.name} was fenced before it was created; nothing will run under this name")
    if (identity.attempt, identity.digest) != (submission.attempt, digest):
        raise ForeignJobError(
            f"{folder.name} exists for attempt {identity.attempt} with another job, since {identity.created_at}"
        )
    tombstone = folder.tombstone()
    if tombstone and tombstone.kind != OVER:
        raise CancelledJobError(
            f"{folder.name} was cancelled at {tombstone.at} by {tombstone.by or 'us'}: {tombstone.why}"
        )
    return identity


def owned(folder: JobFolder, chain_id: str) -> Identity | None:
    """The job of this chain under the name; ``None`` for a fenced name. Raises ``ForeignJobError``."""
    identity, tombstone = folder.identity(), folder.tombstone()
    if identity is None and tombstone is None:
        raise UnreachableError(f"{folder.path!r} holds neither job.json nor a tombstone")
    owner = identity.chain_id if identity else tombstone.chain_id if tombstone else ""
    if owner != chain_id:
        raise ForeignJobError(f"{folder.name} belongs to the chain {owner!r}, not to {chain_id!r}")
    return identity


def plant_fence(folder: JobFolder, chain_id: str) -> bool:
    """Close a name that nobody has taken; ``False`` if it is taken."""
    refuse_bad_name(folder.name)
    path = _new_folder(folder.root)
    tombstone = Tombstone(kind=FENCED, name=folder.name, chain_id=chain_id, why="fenced", at=now())
    write_json(os.path.join(path, "closed"), tombstone.model_dump(mode="json"))
    return publish(path, folder)


def refuse(problems: list[str]) -> None:
    """Raise one error for all problems, if there are any."""
    if problems:
        raise SubmissionRefusedError("\n".join(problems))


def refuse_bad_name(name: str) -> None:
    """A name becomes a folder."""
    if not _NAME.fullmatch(name) or len(os.fsencode(name)) > MAX_NAME_BYTES:
        refuse(
            [f"name: {name!r:.80} is not allowed. 1 to {MAX_NAME_BYTES} bytes without / are, no dot in front. Rename."]
        )


def remove_abandoned(root: str) -> None:
    """Remove what creators left that died before their rename (it holds secrets). A frozen one keeps its own."""
    folder = os.path.join(root, "new")
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        pid, _, rest = name.partition("-")
        started = rest.partition("-")[0]
        if pid.isdigit() and started.isdigit() and not processes.is_alive(int(pid), int(started)):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _new_folder(root: str) -> str:
    for name in ("jobs", "new"):
        os.makedirs(os.path.join(root, name), mode=0o700, exist_ok=True)
    name = f"{os.getpid()}-{processes.start_ticks(os.getpid()) or 0}-{uuid.uuid4().hex}"
    path = os.path.join(root, "new", name)
    os.mkdir(path, mode=0o700)
    return path


def _identity(job: LocalJob, submission: Submission) -> Identity:
    return Identity(
        uid=uuid.uuid4().hex,
        name=submission.name,
        chain_id=submission.chain_id,
        attempt=submission.attempt,
        tags=submission.tags,
        created_at=now(),
        digest=job.digest(),
        nodes=job.nodes,
        pool=job.pool,
        pool_nodes=job.pool_nodes,
        excluded_nodes=submission.excluded_nodes,
        soft_nodes=submission.soft_nodes,
        preflight=submission.preflight,
        resume_from=submission.resume_from,
        folders=(job.folder(), *([os.path.expanduser(job.checkpoints)] if job.checkpoints else [])),
        hold=submission.hold,
        grace=submission.grace,
    )


def _known(folder: JobFolder) -> Identity:
    identity = folder.identity()
    if identity is None:
        raise UnreachableError(f"{folder.path!r} vanished")
    return identity
