"""Exactly one job, however many submitters run, die or freeze, and wherever they do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends.base import ForeignJobError, JobState, SubmissionRefusedError, UnreachableError
from airflow_ft.backends.local import creation, launch, observation, pool
from airflow_ft.backends.local.job import LocalJob
from tests.backends.conformance import CHAIN, DEADLINE, LocalSystem

Start = Callable[[Callable[[], object]], int]
RUN = "echo run >> runs"


def submit(local: LocalSystem, command: str = RUN, **fields: Any) -> Any:
    return asyncio.run(local.submit("sh", "-c", command, **fields))


def ended_well(local: LocalSystem, ref: Any, runs: int) -> None:
    seen = asyncio.run(local.until(ref, JobState.ENDED, JobState.HELD, JobState.GONE))
    assert (seen.state, seen.code) == (JobState.ENDED, 0)
    assert local.runs() == runs


def wait_stopped(pid: int) -> None:
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def kill_self(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self(*_: object) -> None:
    """Sent to this very thread, it takes effect before the next instruction."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def then(patch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[..., None], first: bool = False) -> None:
    """Act after (or before) a step."""
    step = getattr(module, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        if first:
            act()
        result = step(*args, **kwargs)
        if not first:
            act()
        return result

    patch.setattr(module, name, patched)


@pytest.mark.story("SUB-01")
@pytest.mark.story("SUB-02")
def test_twenty_submitters_at_once_make_one_job(local: LocalSystem, child: Start) -> None:
    """All get the same id, and the command runs once on each node, though it ends at once."""
    (local.scratch / "uids").mkdir()

    def one() -> None:
        ref = submit(local, nodes=2)
        (local.scratch / "uids" / str(os.getpid())).write_text(ref.uid)

    pids = [child(one) for _ in range(20)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 20
    assert len({path.read_text() for path in (local.scratch / "uids").iterdir()}) == 1
    ended_well(local, submit(local, nodes=2), runs=2)
    assert os.listdir(os.path.join(local.root, "new")) == []


STEPS = [
    (creation, "prepare", False),
    (creation, "publish", False),
    (pool.Pool, "take", False),
    (pool, "place", False),
    (launch, "start_node", True),
    (launch, "start_node", False),
    (launch, "launch", False),
]


@pytest.mark.story("SUB-02")
@pytest.mark.parametrize(
    ("module", "step", "first"), STEPS, ids=[f"{s[1]}-{'before' if s[2] else 'after'}" for s in STEPS]
)
def test_a_submitter_that_dies_at_any_step_leaves_one_whole_job(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, first: bool
) -> None:
    """The next try completes it, and nothing runs twice."""
    with monkeypatch.context() as patch:
        patch.setattr(launch, "AT_ONCE", 1)
        then(patch, module, step, kill_self, first)
        _, status = os.waitpid(child(lambda: submit(local, nodes=2)), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    ended_well(local, submit(local, nodes=2), runs=2)
    assert os.listdir(os.path.join(local.root, "new")) == []
    assert len(os.listdir(os.path.join(local.root, "jobs"))) == 1


def test_who_looks_completes_what_a_dead_submitter_left(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second submission is needed."""
    with monkeypatch.context() as patch:
        then(patch, creation, "publish", kill_self)
        os.waitpid(child(lambda: submit(local, nodes=2)), 0)
    ref = asyncio.run(local.backend.find(f"{CHAIN}-a0", CHAIN, LocalJob(command="-", root=local.root)))  # type: ignore[call-arg]
    ended_well(local, ref, runs=2)


def test_a_creator_that_was_frozen_before_the_fence_creates_nothing(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes to a name that is closed."""
    with monkeypatch.context() as patch:
        then(patch, creation, "publish", stop_self, first=True)
        pid = child(lambda: submit(local))
        wait_stopped(pid)
    job = LocalJob(command="-", root=local.root)
    asyncio.run(local.backend.fence(f"{CHAIN}-a0", CHAIN, job))  # type: ignore[call-arg]
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] != 0
    time.sleep(0.5)
    assert local.runs() == 0
    assert asyncio.run(local.backend.find(f"{CHAIN}-a0", CHAIN, job)) is None  # type: ignore[call-arg]


@pytest.mark.parametrize("what", ["cancelled", "over", "over, but nobody looked"])
def test_a_frozen_launcher_starts_nothing_late(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever happened to the job in the meantime."""
    with monkeypatch.context() as patch:
        patch.setattr(launch, "AT_ONCE", 1)
        then(patch, launch, "start_node", stop_self, first=True)
        pid = child(lambda: submit(local))
        wait_stopped(pid)
    ref = submit(local)
    if what == "cancelled":
        asyncio.run(local.backend.cancel(ref, 5))
    elif what == "over":
        ended_well(local, ref, runs=1)
    _wait_for_no_process(local, ref)
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    time.sleep(0.5)
    assert local.runs() <= 1
    assert local.processes(ref) == []


@pytest.mark.story("SUB-03")
def test_a_submission_that_failed_may_have_worked(local: LocalSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says "we could not see"; the next call finds the job."""

    def fail(*_: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "launch", fail)
        with pytest.raises(UnreachableError, match="No space left"):
            submit(local)
    ended_well(local, submit(local), runs=1)
    assert len(os.listdir(os.path.join(local.root, "jobs"))) == 1


@pytest.mark.story("WAT-02")
def test_a_broken_folder_is_unreachable_never_gone(local: LocalSystem) -> None:
    """Garbage and half-written files say nothing about the job."""
    ref = submit(local, "sleep 100")
    folder = Path(local.root, "jobs", ref.name)
    for name in ("job.json", "placement.json", "nodes/n1/state.json"):
        whole = (folder / name).read_bytes()
        for broken in (b"", whole[:20], b"\xff\x00", b"[]", b"{}" if name == "job.json" else b'"x"'):
            (folder / name).write_bytes(broken)
            with pytest.raises(UnreachableError):
                asyncio.run(local.backend.observe(ref))
        (folder / name).write_bytes(whole)
    assert asyncio.run(local.backend.observe(ref)).state is JobState.RUNNING
    os.rename(local.root, local.root + ".away")
    with pytest.raises(UnreachableError):
        asyncio.run(local.backend.observe(ref))
    os.rename(local.root + ".away", local.root)


def test_the_pools_lock_in_a_frozen_process_makes_a_job_wait(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queued with the reason, and placed when the lock is free."""
    with monkeypatch.context() as patch:
        patch.setattr(pool, "LOCK_SECONDS", 0.2)
        then(patch, pool, "_place_locked", stop_self, first=True)
        pid = child(lambda: submit(local))
        wait_stopped(pid)
    monkeypatch.setattr(pool, "LOCK_SECONDS", 0.2)
    ref = submit(local)
    seen = asyncio.run(local.backend.observe(ref))
    assert (seen.state, "lock" in seen.reason) == (JobState.QUEUED, True)
    os.kill(pid, signal.SIGKILL)
    ended_well(local, ref, runs=1)


def test_leases_of_a_dead_placer_hold_nothing(
    local: LocalSystem, child: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease counts only with the placement that names its node."""
    with monkeypatch.context() as patch:
        then(patch, pool.Pool, "take", kill_self)
        os.waitpid(child(lambda: submit(local, nodes=4)), 0)
    other = submit(local, nodes=4, attempt=1)
    ended_well(local, other, runs=4)


def test_two_jobs_never_share_a_node(local: LocalSystem, child: Start) -> None:
    """Ten submitters of jobs that don't fit together."""
    pids = [child(lambda n=n: submit(local, "sleep 100", nodes=2, attempt=n)) for n in range(8)]  # type: ignore[misc]
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    placed = [json.loads(path.read_text())["nodes"] for path in Path(local.root, "jobs").glob("*/placement.json")]
    assert sorted(node for nodes in placed for node in nodes) == ["n1", "n2", "n3", "n4"]


def test_a_job_outlives_its_submitters_group_and_session(local: LocalSystem, child: Start) -> None:
    """A worker is killed with everything that belongs to it."""

    def work() -> None:
        submit(local, "echo up >> up; sleep 100")
        (local.scratch / "submitted").touch()
        time.sleep(100)

    pid = child(work)
    end = time.monotonic() + DEADLINE
    while not (local.scratch / "submitted").exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(pid, signal.SIGHUP)
    os.killpg(pid, signal.SIGKILL)
    ref = submit(local, "echo up >> up; sleep 100")
    seen = asyncio.run(local.until(ref, JobState.RUNNING))
    assert seen.nodes[0].agent
    assert local.runs("up") == 1
    assert all(os.getsid(process) != pid for process in local.processes(ref))


def test_a_job_inherits_no_descriptor(local: LocalSystem, child: Start) -> None:
    """fd 0 of a worker is the supervisor's socket: nobody but the worker may have it."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()

    def work() -> None:
        os.dup2(theirs.fileno(), 0)
        for fd in (theirs.fileno(), writer):
            os.set_inheritable(fd, True)
        submit(local, "sleep 100")

    assert os.waitpid(child(work), 0)[1] == 0
    theirs.close()
    os.close(writer)
    ours.settimeout(5)
    assert ours.recv(1) == b""
    assert os.read(reader, 1) == b""
    ref = submit(local, "sleep 100")
    for pid in local.processes(ref):
        targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert not [target for target in targets if target.startswith(("socket:", "pipe:"))]
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    ours.close()
    os.close(reader)


@pytest.mark.story("SEC-04")
def test_a_root_with_a_weird_path_works(tmp_path: Path) -> None:
    """Blanks, quotes, a semicolon, a backslash and a newline."""
    weird = tmp_path / "a b'\"; touch pwned\\ \n$(x)"
    weird.mkdir()
    local = LocalSystem(weird)
    try:
        ended_well(local, submit(local, nodes=2), runs=2)
        assert list(tmp_path.rglob("pwned")) == []
    finally:
        asyncio.run(local.clean_up())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "x" * 300, "nul\0"])
def test_a_name_that_can_not_be_a_folder_is_refused(local: LocalSystem, name: str) -> None:
    """Before anything is created."""
    with pytest.raises(SubmissionRefusedError, match="name:"):
        asyncio.run(local.backend.submit(local.job("true"), local.submission(name=name)))
    assert not os.path.exists(local.root)


@pytest.mark.story("SEC-01")
@pytest.mark.story("SEC-02")
def test_secrets_are_private_while_needed_and_gone_after(local: LocalSystem) -> None:
    """Neither the reference nor any file that stays holds a value of the environment."""
    ref = submit(local, "sleep 0.5", env={"HF_TOKEN": "canary-4711"})
    spec = Path(local.root, "jobs", ref.name, "spec.json")
    assert spec.stat().st_mode & 0o777 == 0o600
    assert "canary" not in ref.model_dump_json()
    assert "canary-4711" in local.backend.secrets(ref)
    ended_well(local, ref, runs=0)
    kept = [path for path in Path(local.root).rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert kept == []


def test_a_foreign_folder_under_the_name_is_left_alone(local: LocalSystem) -> None:
    """Something that isn't even a job."""
    folder = Path(local.root, "jobs", f"{CHAIN}-a0")
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    with pytest.raises((UnreachableError, ForeignJobError)):
        submit(local)
    assert (folder / "precious").read_text() == "x"


def test_moving_on_is_idempotent(local: LocalSystem) -> None:
    """Looking starts nothing twice."""
    ref = submit(local, RUN + "; sleep 1", nodes=2)
    folder = observation.JobFolder(local.root, ref.name)
    identity = folder.identity()
    assert identity is not None
    for _ in range(5):
        observation.move_on(folder, identity)
    ended_well(local, ref, runs=2)


def _wait_for_no_process(local: LocalSystem, ref: Any) -> None:
    end = time.monotonic() + DEADLINE
    while local.processes(ref) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes.with_marker("FT_JOB", f"{ref.name}:{ref.uid}") == []
