"""`run --detach`: a daemon that keeps nothing of its caller, and a caller that knows whether it began."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import Agent, AgentStarter, signal_masks, wait_for


def start_detached(
    start: AgentStarter, tmp_path: Path, *command: str, options: tuple[str, ...] = (), **popen: object
) -> Agent:
    """The process of the returned agent is the caller's; the daemon's pid is in the state."""
    log = tmp_path / "daemon.log"
    agent = start(*command, options=("--detach", "--output", str(log), *options), start_new_session=False, **popen)
    return Agent(agent.process, agent.directory, log, agent.words)


def test_daemon_keeps_no_descriptor_of_the_caller_and_has_its_own_session(
    start: AgentStarter, tmp_path: Path, any_python: str
) -> None:
    """fd 0 of an Airflow worker's child is the supervisor's socket: who keeps it freezes the whole triggerer."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    agent = start_detached(
        start, tmp_path, "sleep", "300", python=any_python, stdin=theirs, pass_fds=(writer, theirs.fileno())
    )
    assert agent.end() == 0
    theirs.close()
    os.close(writer)
    assert os.read(reader, 1) == b"", "somebody still has the pipe"
    ours.settimeout(10)
    assert ours.recv(1) == b"", "somebody still has the socket"
    os.close(reader)
    ours.close()
    now = agent.wait_phase("running")
    wait_for(lambda: Path(f"/proc/{now['child']}/comm").read_text() == "sleep\n", "the exec")
    for pid in (now["agent"], now["child"]):
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2") == str(agent.output)
        assert os.getsid(pid) not in (os.getsid(0), pid)
    assert sorted(os.listdir(f"/proc/{now['child']}/fd")) == ["0", "1", "2"]
    assert stat.S_IMODE(agent.output.stat().st_mode) == 0o600


def test_daemon_holds_and_obeys_like_any_agent(start: AgentStarter, tmp_path: Path) -> None:
    """Output is appended to the file; orders and the end marker work."""
    agent = start_detached(start, tmp_path, "sh", "-c", "echo run $FT_GENERATION; exit 3")
    assert agent.end() == 0
    agent.wait_phase("held")
    assert agent.order("restart", "--generation", "1")[0] == 0
    agent.wait_phase("held", 1)
    assert agent.order("release", "--generation", "2")[0] == 0
    agent.wait_phase("ended")
    assert "run 0\n" in agent.text and "run 1\n" in agent.text
    assert agent.report is not None and agent.report["code"] == 3
    wait_for(lambda: not start.left(), "nothing left")


def test_caller_learns_that_the_folder_is_taken(start: AgentStarter, tmp_path: Path) -> None:
    """The daemon's refusal is the caller's exit code and message."""
    first = start_detached(start, tmp_path, "sleep", "300")
    assert first.end() == 0
    done = subprocess.run(
        [*start.words(), "run", "--dir", str(first.directory), "--detach", "--", "touch", str(tmp_path / "ran")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 75 and "another agent" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_caller_learns_of_the_tombstone(start: AgentStarter, tmp_path: Path) -> None:
    """A cancelled job doesn't start as a daemon either."""
    agent = start_detached(start, tmp_path, "touch", str(tmp_path / "ran"), options=("--unless-exists", str(tmp_path)))
    assert agent.end() == 76
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["dir", "output"])
def test_folder_that_cant_be_made_starts_nothing_and_says_so(start: AgentStarter, tmp_path: Path, where: str) -> None:
    """Detached, a start without a folder would be a training that nobody can find: rather none."""
    (tmp_path / "file").touch()
    impossible, fine = str(tmp_path / "file" / "x"), str(tmp_path / "fine")
    places = (impossible, fine) if where == "dir" else (fine, impossible)
    done = subprocess.run(
        [
            *start.words(),
            "run",
            "--dir",
            places[0],
            "--detach",
            "--output",
            places[1],
            "--",
            "touch",
            str(tmp_path / "ran"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and {"dir": "Not a directory", "output": "can't be written"}[where] in done.stderr
    assert not (tmp_path / "ran").exists()


def test_daemon_has_default_signals_whatever_the_caller_ignored(start: AgentStarter, tmp_path: Path) -> None:
    """A triggerer may ignore SIGINT, SIGCHLD and block what it likes."""

    def odd_signals() -> None:
        for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})

    agent = start_detached(
        start, tmp_path, "sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; exit 3", preexec_fn=odd_signals
    )
    assert agent.end() == 0
    assert agent.wait_phase("held")["code"] == 3
    assert signal_masks(agent.text) == {"SigBlk": 0, "SigIgn": 0}


def test_caller_without_standard_descriptors_can_detach(start: AgentStarter, tmp_path: Path) -> None:
    """A daemon as caller has 0, 1 and 2 closed: their numbers must not be taken for ours."""
    words = " ".join(start.words())
    command = f"exec {words} run --dir {tmp_path}/d --detach --output {tmp_path}/log -- echo fine <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False, timeout=30).returncode == 0
    wait_for(lambda: "fine\n" in (tmp_path / "log").read_text(), "the command's output")
