"""The job's folder on disk: its files, how they are read, how they come into being.

Reading tells three things apart: missing (``None``), there (a record), and broken (``UnreachableError``: half-written
or foreign content says nothing about the job, least of all that it is gone). Writing is atomic: by ``link`` where the
first one wins, else by ``rename``.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from pydantic import AwareDatetime, Field

from airflow_ft.backends.base import UnreachableError
from airflow_ft.core.records import Record, UnreadableRecordError

CANCELLED = "cancelled"  # somebody stopped the job on purpose
FENCED = "fenced"  # the name was closed before a job existed
OVER = "over"  # the job ended by itself


class Identity(Record):
    """Who a job is: ``job.json``. It never changes."""

    uid: str
    name: str
    chain_id: str
    attempt: int
    tags: dict[str, str] = Field(default_factory=dict)
    created_at: AwareDatetime
    digest: str
    nodes: int
    pool: str
    pool_nodes: int
    excluded_nodes: tuple[str, ...] = ()
    soft_nodes: tuple[str, ...] = ()
    preflight: dict[str, object] = Field(default_factory=dict)
    resume_from: str = ""
    folders: tuple[str, ...] = ()  # where the job writes: their disks matter
    hold: float
    grace: float

    @property
    def marker(self) -> str:
        """The value of FT_JOB, by which every process of the job can be found."""
        return f"{self.name}:{self.uid}"


class Placement(Record):
    """Where a job runs: ``placement.json``. It never changes."""

    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int
    at: AwareDatetime


class Tombstone(Record):
    """Why nothing will be started any more: ``closed``."""

    kind: str = CANCELLED
    name: str
    chain_id: str
    by: str = ""
    why: str = ""
    at: AwareDatetime


class Mark(Record):
    """Who marked a node (down, or lost for a job), and why."""

    why: str = ""
    at: AwareDatetime


class Spec(NamedTuple):
    """What a node runs. No pydantic: the environment may hold bytes that are no UTF-8."""

    argv: list[str]
    env: dict[str, str]
    workdir: str


class JobFolder:
    """One job's folder; it may or may not exist."""

    def __init__(self, root: str, name: str) -> None:
        self.root = root
        self.name = name
        self.path = os.path.join(root, "jobs", name)

    def exists(self) -> bool:
        """Whether there is a folder. A whole tree that is missing (not mounted) says nothing: ``UnreachableError``."""
        if os.path.isdir(self.path):
            return True
        if not os.path.isdir(os.path.dirname(self.path)):
            raise UnreachableError(f"the folder {os.path.dirname(self.path)!r} is not there")
        return False

    def identity(self) -> Identity | None:
        """Who the job is."""
        return read_record(os.path.join(self.path, "job.json"), Identity)

    def placement(self) -> Placement | None:
        """Where it runs."""
        return read_record(os.path.join(self.path, "placement.json"), Placement)

    def tombstone(self) -> Tombstone | None:
        """Why nothing is started any more."""
        return read_record(self.tombstone_path, Tombstone)

    def lost(self, node: str) -> Mark | None:
        """When and why a node of this job was lost."""
        return read_record(os.path.join(self.node(node), "lost"), Mark)

    def spec(self) -> Spec | None:
        """What a node runs."""
        found = read_json(os.path.join(self.path, "spec.json"))
        if found is None:
            return None
        try:
            return Spec(list(found["argv"]), dict(found["env"]), str(found["workdir"]))
        except (TypeError, KeyError, ValueError) as error:
            raise UnreachableError(f"spec.json of {self.name} can't be understood") from error

    @property
    def tombstone_path(self) -> str:
        """The path that the agent looks at before it starts anything."""
        return os.path.join(self.path, "closed")

    def node(self, node: str) -> str:
        """The agent's folder of a node."""
        return os.path.join(self.path, "nodes", node)

    def place(self, placement: Placement) -> None:
        """Write the placement, unless somebody did."""
        link_json(os.path.join(self.path, "placement.json"), placement.model_dump(mode="json"))

    def close(self, tombstone: Tombstone) -> None:
        """Write the tombstone, unless there is one."""
        link_json(self.tombstone_path, tombstone.model_dump(mode="json"))

    def mark_lost(self, node: str, why: str) -> None:
        """Note for good that this job lost this node."""
        os.makedirs(self.node(node), mode=0o700, exist_ok=True)
        link_json(os.path.join(self.node(node), "lost"), Mark(why=why, at=now()).model_dump(mode="json"))

    def forget_secrets(self) -> None:
        """Remove what only a start needs."""
        try:
            os.unlink(os.path.join(self.path, "spec.json"))
        except OSError:
            return


# --- files -------------------------------------------------------------------------------------------------------

AnyRecord = TypeVar("AnyRecord", bound=Record)


def now() -> datetime:
    """The time, with its zone."""
    return datetime.now(timezone.utc)


def read_json(path: str) -> dict[str, Any] | None:
    """An object; ``None`` if there is no such file. Raises ``UnreachableError`` for anything else."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UnreachableError(f"{path!r} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise UnreachableError(f"{path!r} holds no object")
    return found


def read_record(path: str, kind: type[AnyRecord]) -> AnyRecord | None:
    """A record; ``None`` if there is no such file. Raises ``UnreachableError`` for anything else."""
    found = read_json(path)
    try:
        return None if found is None else kind.from_record(found)
    except UnreadableRecordError as error:
        raise UnreachableError(f"{path!r} can't be understood: {error}") from error


def write_json(path: str, value: object) -> None:
    """Write a file of our own, readable by nobody else. Synced: after a crash of the machine it is whole or missing."""
    with open(path, "w", opener=_private) as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def replace_json(path: str, value: object) -> None:
    """Put a file in the place of another one, whole."""
    temporary = _temporary(path)
    try:
        write_json(temporary, value)
        os.replace(temporary, path)
    finally:
        _unlink(temporary)


def link_json(path: str, value: object) -> bool:
    """Create a file whole; ``False`` if somebody did. Of any number of callers one wins."""
    temporary = _temporary(path)
    try:
        write_json(temporary, value)
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        _unlink(temporary)
    return True


def _temporary(path: str) -> str:
    return f"{path}.{os.getpid()}-{time.monotonic_ns()}-{uuid.uuid4().hex[:8]}"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
