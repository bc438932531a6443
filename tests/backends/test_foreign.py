"""``ForeignJob`` and its backend: processes that the tests have started themselves, seen with other eyes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.agent import processes
from airflow_ft.backends.base import (
    ForeignJobError,
    JobState,
    Observation,
    Order,
    Submission,
    SubmissionRefusedError,
    UnreachableError,
)
from airflow_ft.backends.foreign.backend import ForeignBackend
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.backends.local.job import LocalJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.settings import SettingsError

BACKEND = ForeignBackend()
Start = Callable[..., "subprocess.Popen[bytes]"]
ORPHAN = "import subprocess as s; print(s.Popen(['sh', '-c', {0!r}], stdout=s.DEVNULL, start_new_session=True).pid)"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process whose parent is the test. What is left of it is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*command: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        return started[-1]

    yield run
    for one in started:
        processes.kill_tree([one.pid])
        one.wait()


def orphan(script: str) -> int:
    """Start a process that has no parent to tell its code to any more."""
    return int(subprocess.check_output([sys.executable, "-c", ORPHAN.format(script)]))


def submission(attempt: int = 0) -> Submission:
    return Submission(name=f"c-a{attempt}", chain_id="c", attempt=attempt)


def ticks(pid: int) -> int:
    found = processes.start_ticks(pid)
    assert found is not None
    return found


def adopted(job: ForeignJob, attempt: int = 0) -> JobRef:
    return asyncio.run(BACKEND.submit(job, submission(attempt)))


def seen(ref: JobRef, *states: JobState) -> Observation:
    """Look until it is in one of these states."""
    end = time.monotonic() + 30
    while (found := asyncio.run(BACKEND.observe(ref))).state not in states and time.monotonic() < end:
        time.sleep(0.02)
    assert found.state in states, found
    return found


# --- what a user writes --------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "give one of pid (a process of this machine), or kind and name"),
    ({"pid": 7, "kind": "Job", "name": "x"}, "give one of pid"),
    ({"pid": "seven"}, "pid: 'seven' is not allowed. Give a whole number above 1."),
    ({"pid": 1}, "pid: 1 is not allowed."),
    ({"pid": 7, "own": True}, "start_ticks: nothing is given, and own=True needs it"),
    ({"pid": 7, "again": LocalJob(command="true")}, "again: is not allowed without own=True"),
    ({"kind": "PytorchJob", "name": "x"}, "kind: 'PytorchJob' is not allowed. Did you mean PyTorchJob?"),
    ({"kind": "Pod", "name": "x"}, "kind: 'Pod' is not allowed."),
    ({"kind": "Job"}, "name: nothing is given, and it is needed."),
    ({"kind": "Job", "name": "x", "log": "a.log"}, "log: is for a process (pid)."),
    ({"slurm_job_id": 4711}, "slurm_job_id: is not possible yet: there is no Slurm backend in this version."),
    ({"ray_submission_id": "raysubmit_1"}, "TrainingProgressSensor(log='/path/of/its.log')"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=[said[:24] for _, said in WRONG])
def test_what_is_wrong_is_said_when_the_dag_is_parsed(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        ForeignJob(**given)
    assert said in str(error.value)


def test_templates_are_rendered_also_in_what_is_submitted_again() -> None:
    again = LocalJob(command="train {{ out }}", env={"HF_TOKEN": "hf_secret"})  # type: ignore[call-arg]
    job = ForeignJob(pid="{{ pid }}", start_ticks="{{ ticks }}", own=True, again=again)  # type: ignore[call-arg]
    values = {"{{ pid }}": "42", "{{ ticks }}": "99", "train {{ out }}": "train /data"}
    rendered = job.rendered(lambda text: values.get(str(text), text))
    assert (rendered.pid, rendered.start_ticks) == ("42", "99")
    assert rendered.again == again.model_copy(update={"command": "train /data"})
    assert "hf_secret" not in str(job.serialize())
    assert job.secrets() == ("hf_secret",)


# --- a process that is only watched --------------------------------------------------------------------------------


def test_a_process_is_seen_as_it_runs_and_its_log_is_read_on(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    pid = start("sleep", "1000").pid
    log.write_text("step 1\n")
    ref = adopted(ForeignJob(pid=pid, log=str(tmp_path / "*.log")))  # type: ignore[call-arg]
    found = seen(ref, JobState.RUNNING)
    assert [node.agent for node in found.nodes] == [False]
    assert (ref.name, ref.foreign, ref.own) == ("c-a0", f"process {pid}", False)
    (chunk,), cursors = asyncio.run(BACKEND.read_logs(ref, {}, 1000))
    assert (chunk.data, chunk.node) == (b"step 1\n", found.nodes[0].node)
    with log.open("a") as file:
        file.write("step 2\n")
    (chunk,), _ = asyncio.run(BACKEND.read_logs(ref, cursors, 1000))
    assert chunk.data == b"step 2\n"
    (tail,) = asyncio.run(BACKEND.log_tails(ref, 7))
    assert tail.data == b"step 2\n"
    (rank,) = asyncio.run(BACKEND.vitals(ref))
    assert rank.node == found.nodes[0].node


def test_of_a_process_that_is_gone_no_code_is_claimed(tmp_path: Path) -> None:
    pid = orphan(f"while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; exit 3")
    ref = adopted(ForeignJob(pid=pid))  # type: ignore[call-arg]
    (tmp_path / "end").touch()
    found = seen(ref, JobState.GONE, JobState.ENDED)
    assert found.code in (None, 3)  # 3 in the moment before its new parent asks for it
    found = seen(ref, JobState.GONE)
    assert found.code is None
    assert "its exit code is known to its parent alone" in found.reason
    assert asyncio.run(BACKEND.evidence(ref)) == []


@pytest.mark.parametrize(("ending", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)])
def test_a_code_that_the_parent_has_not_asked_for_is_seen(start: Start, ending: str, code: int, tmp_path: Path) -> None:
    child = start("sh", "-c", f"while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; {ending}")
    ref = adopted(ForeignJob(pid=child.pid))  # type: ignore[call-arg]
    (tmp_path / "end").touch()
    assert seen(ref, JobState.ENDED, JobState.GONE).code == code
    assert [one.code for one in asyncio.run(BACKEND.evidence(ref))] == ([code] if code else [])


@pytest.mark.story("SUB-04")
def test_a_pid_that_is_used_again_is_another_process(start: Start) -> None:
    pid = start("sleep", "1000").pid
    with pytest.raises(SubmissionRefusedError, match="there is no such process"):
        adopted(ForeignJob(pid=pid, start_ticks=ticks(pid) - 1))  # type: ignore[call-arg]
    ref = adopted(ForeignJob(pid=pid, start_ticks=ticks(pid)))  # type: ignore[call-arg]
    reused = ref.but(where={**ref.where, "start_ticks": ticks(pid) - 1})
    assert asyncio.run(BACKEND.observe(reused)).state is JobState.GONE


def test_what_ended_before_can_be_judged_by_its_log(start: Start, tmp_path: Path) -> None:
    child = start("true")
    child.wait()
    with pytest.raises(SubmissionRefusedError, match="With log= what a process that has ended has written"):
        adopted(ForeignJob(pid=child.pid))  # type: ignore[call-arg]
    (tmp_path / "a.log").write_text("step 1\n")
    ref = adopted(ForeignJob(pid=child.pid, log=str(tmp_path / "a.log")))  # type: ignore[call-arg]
    assert asyncio.run(BACKEND.observe(ref)).state is JobState.GONE


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"boot_id": "other", "host": "gpu-7"}, "found on gpu-7"),
        ({"pid_space": "pid:[1]"}, "another container of this machine"),
    ],
)
def test_a_process_that_can_not_be_seen_from_here_is_not_dead(start: Start, where: Any, said: str) -> None:
    ref = adopted(ForeignJob(pid=start("sleep", "1000").pid))  # type: ignore[call-arg]
    with pytest.raises(UnreachableError, match=said):
        asyncio.run(BACKEND.observe(ref.but(where={**ref.where, **where})))


def test_a_machine_that_was_started_again_has_ended_it(start: Start) -> None:
    ref = adopted(ForeignJob(pid=start("sleep", "1000").pid))  # type: ignore[call-arg]
    found = asyncio.run(BACKEND.observe(ref.but(where={**ref.where, "boot_id": "before"})))
    assert (found.state, found.code) == (JobState.GONE, None)
    assert "which was started again" in found.reason


@pytest.mark.story("SUB-04")
def test_nothing_is_done_to_what_is_only_watched(start: Start) -> None:
    child = start("sleep", "1000")
    job = ForeignJob(pid=child.pid)  # type: ignore[call-arg]
    ref = adopted(job)
    with pytest.raises(ForeignJobError, match="not ours"):
        asyncio.run(BACKEND.cancel(ref, 0.0))
    with pytest.raises(ForeignJobError, match="no agent of ours"):
        asyncio.run(BACKEND.restart_in_place(ref, Order(generation=1, digest="d")))
    assert asyncio.run(BACKEND.release(ref, Order(generation=1, digest="d"))) == []
    assert asyncio.run(BACKEND.dump_stacks(ref)) == []
    asyncio.run(BACKEND.fence(ref.name, "c", job))
    assert adopted(job, attempt=3).uid == ref.uid, "a next attempt watches the same process"
    assert asyncio.run(BACKEND.find("c-a0", "c", job)) == ref
    assert child.poll() is None


# --- a process that was taken over ---------------------------------------------------------------------------------


def test_an_owned_process_is_stopped_with_all_that_it_has_started(start: Start, tmp_path: Path) -> None:
    stubborn = "trap '' TERM; setsid sh -c \"trap '' TERM; echo $$ > child; sleep 1000\" & while :; do sleep 1; done"
    child = start("sh", "-c", f"cd {tmp_path}; {stubborn}")
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        time.sleep(0.02)
    hidden = int((tmp_path / "child").read_text())
    ref = adopted(ForeignJob(pid=child.pid, start_ticks=ticks(child.pid), own=True))  # type: ignore[call-arg]
    asyncio.run(BACKEND.cancel(ref, 0.2))
    assert [pid for pid in (child.pid, hidden) if (stat := processes.stat(pid)) and not stat.dead] == []
    asyncio.run(BACKEND.cancel(ref, 0.2))  # there is nothing left to stop


def test_a_process_that_this_one_runs_below_is_not_taken_over() -> None:
    job = ForeignJob(pid=os.getppid(), start_ticks=ticks(os.getppid()), own=True)  # type: ignore[call-arg]
    with pytest.raises(SubmissionRefusedError, match="this task runs below it"):
        BACKEND.check(job)


def test_what_was_stopped_is_followed_by_what_the_user_says(start: Start, tmp_path: Path) -> None:
    child = start("sleep", "1000")
    known = {"pid": child.pid, "start_ticks": ticks(child.pid), "own": True}
    asyncio.run(BACKEND.cancel(adopted(ForeignJob(**known)), 1.0))
    with pytest.raises(SubmissionRefusedError, match="again: nothing is given"):
        adopted(ForeignJob(**known), attempt=1)
    again = LocalJob(command="sleep 1000", root=str(tmp_path), workdir=str(tmp_path))  # type: ignore[call-arg]
    job = ForeignJob(**known, again=again)
    ref = adopted(job, attempt=1)
    try:
        assert (ref.backend, ref.foreign, ref.not_ours) == ("local", "", "")
        assert asyncio.run(BACKEND.find("c-a1", "c", job)) == ref
        assert seen(ref, JobState.RUNNING, JobState.STARTING)
    finally:
        asyncio.run(BACKEND.cancel(ref, 0.0))
    assert asyncio.run(BACKEND.observe(ref)).cancelled
