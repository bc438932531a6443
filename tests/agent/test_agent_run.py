"""The command's life under the agent: its code, its signals, its environment, the hold, the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import AgentStarter, signal_masks, wait_for

STOPPED = "print('ready', flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("script", "code", "exit_code"),
    [
        ("exit 0", 0, 0),
        ("exit 17", 17, 17),
        ("kill -SEGV $$", -signal.SIGSEGV, 128 + signal.SIGSEGV),
        ("kill -KILL $$", -signal.SIGKILL, 128 + signal.SIGKILL),
    ],
)
def test_the_agent_exits_with_the_commands_code_or_128_plus_its_signal(
    start: AgentStarter, any_python: str, script: str, code: int, exit_code: int
) -> None:
    """PID 1 can't kill itself by a signal, so the exit code is 128+n; state and report have the true one."""
    agent = start("sh", "-c", script, options=("--hold", "0"), python=any_python)
    assert agent.end() == exit_code
    assert agent.state["code"] == code
    assert agent.report is not None
    assert (agent.report["code"], agent.report["exit"], agent.report["term"]) == (code, exit_code, False)


def test_abnormal_end_is_held_until_release(start: AgentStarter, any_python: str) -> None:
    """The node is kept for a decision; release ends with the command's own code."""
    agent = start("sh", "-c", "exit 3", python=any_python)
    held = agent.wait_phase("held")
    assert held["hold_until"] > time.time() + 20
    assert agent.report is None
    assert agent.order("release", "--generation", "1")[0] == 0
    assert agent.end() == 3
    assert [line["event"] for line in agent.lines] == ["start", "exit", "held", "release", "end"]


def test_hold_ends_by_itself_with_the_commands_code(start: AgentStarter) -> None:
    """Nobody decided: nothing holds a node longer than `hold` seconds."""
    agent = start("sh", "-c", "exit 4", options=("--hold", "0.3"))
    assert agent.end() == 4
    assert agent.state["hold_until"] is None


@pytest.mark.parametrize(("command", "code"), [(("no-such-command",), 127), (("/etc/passwd",), 126)])
def test_command_that_cant_start_is_not_held(start: AgentStarter, command: tuple[str, ...], code: int) -> None:
    """127 and 126 would be the same after each restart: nothing to wait for."""
    agent = start(*command)
    assert agent.end() == code
    assert "can't start" in agent.text
    assert "held" not in [line["event"] for line in agent.lines]


def test_term_with_save_and_exit_0_is_a_planned_end(start: AgentStarter, any_python: str) -> None:
    """TERM reaches the command, which saves and exits 0: code 0, term true, no hold."""
    agent = start(
        "sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done", python=any_python
    )
    agent.wait_text("ready")
    agent.process.terminate()
    assert agent.end() == 0
    assert "saved" in agent.text
    assert agent.report is not None
    assert (agent.report["code"], agent.report["term"]) == (0, True)
    assert agent.lines[-1]["term"] is True


def test_term_with_exit_1_is_not_held(start: AgentStarter) -> None:
    """torchrun ends with 1 after TERM although every rank saved: `term` decides, not the code."""
    agent = start("sh", "-c", "trap 'exit 1' TERM; echo ready; while :; do sleep 0.05; done")
    agent.wait_text("ready")
    agent.process.terminate()
    assert agent.end() == 1
    assert agent.report is not None and agent.report["term"] is True


def test_ignored_term_is_killed_after_grace(start: AgentStarter) -> None:
    """After the grace the whole tree is killed."""
    agent = start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", options=("--grace", "0.5"))
    agent.wait_text("ready")
    began = time.monotonic()
    agent.process.terminate()
    assert agent.end() == 128 + signal.SIGKILL
    assert time.monotonic() - began >= 0.5
    assert start.left() == []


def test_term_while_held_ends_at_once_with_the_commands_code(start: AgentStarter) -> None:
    """The platform takes the node back: no decision is waited for."""
    agent = start("sh", "-c", "exit 5")
    agent.wait_phase("held")
    agent.process.terminate()
    assert agent.end() == 5
    assert agent.report is not None and agent.report["term"] is True


def test_usr1_reaches_the_command_and_not_the_agent(start: AgentStarter) -> None:
    """Slurm's --signal=USR1 goes to every process of the step: the agent must not die of it."""
    agent = start("sh", "-c", "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.05; done")
    agent.wait_text("ready")
    agent.process.send_signal(signal.SIGUSR1)
    assert agent.end() == 0
    assert "got" in agent.text
    assert agent.report is not None and agent.report["term"] is False


def test_hangup_is_ignored_if_it_was_ignored_before(start: AgentStarter) -> None:
    """Under nohup a closed terminal doesn't stop the training."""
    agent = start("sh", "-c", "echo ready; sleep 1", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    agent.wait_text("ready")
    agent.process.send_signal(signal.SIGHUP)
    assert agent.end() == 0
    assert agent.report is not None and agent.report["term"] is False


def test_a_parent_that_ignores_sigchld_costs_no_exit_code(start: AgentStarter) -> None:
    """SIG_IGN for SIGCHLD is inherited over exec, and would make the kernel throw the codes away."""
    agent = start(
        "sh",
        "-c",
        "exit 9",
        options=("--hold", "0"),
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert agent.end() == 9


def test_command_gets_clean_signals_no_core_and_its_own_group(start: AgentStarter, any_python: str) -> None:
    """Python ignores SIGPIPE and SIGXFSZ and we block signals: the command must inherit nothing of that."""
    script = (
        "import os, re, resource\n"
        "s = open('/proc/self/status').read()\n"
        "print('SIG', re.findall(r'Sig(?:Blk|Ign):\\t(\\w+)', s))\n"
        "print('CORE', resource.getrlimit(resource.RLIMIT_CORE)[0], 'LEADER', os.getpgid(0) == os.getpid())\n"
        "print('FDS', sorted(os.listdir('/proc/self/fd')))\n"
    )
    # Python itself ignores its two at start: the status is read by a shell's child that isn't Python.
    agent = start(
        "sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; ulimit -c; ls /proc/self/fd", python=any_python
    )
    assert agent.end() == 0
    assert signal_masks(agent.text) == {"SigBlk": 0, "SigIgn": 0}
    agent = start(sys.executable, "-ISc", script)
    assert agent.end() == 0
    assert "CORE 0 LEADER True" in agent.text
    assert "FDS ['0', '1', '2', '3']" in agent.text  # 3 is the listing itself


def test_command_knows_its_generation_and_rendezvous(start: AgentStarter) -> None:
    """Each generation is a rendezvous of its own; what the user set himself wins."""
    show = (
        "sh",
        "-c",
        "echo $PET_RDZV_ID/$PET_MAX_RESTARTS/$FT_GENERATION/$PYTHONFAULTHANDLER/$FT_AGENT_DIR/$FT_STACKS",
    )
    agent = start(*show, options=("--attempt", "job-a1"))
    assert agent.end() == 0
    assert f"job-a1-g0/0/0/1/{agent.directory}/{agent.directory}/stacks" in agent.text
    agent = start(*show, env={"PET_RDZV_ID": "mine", "PET_MAX_RESTARTS": "3", "PYTHONFAULTHANDLER": "0"})
    assert agent.end() == 0
    assert "mine/3/0/0/" in agent.text


@pytest.mark.parametrize("name", ["with blank", "quote'\"s", "new\nline", "back\\slash;$(x)", "ünï", "a:b"])
def test_weird_folder_names_work(start: AgentStarter, tmp_path: Path, name: str) -> None:
    """Paths come from users: blanks, quotes, newlines, a colon (which PYTHONPATH can't have)."""
    directory = tmp_path / name / "deep"
    agent = start(sys.executable, "-c", "print('ran'); raise SystemExit(3)", directory=directory)
    agent.wait_phase("held")
    assert (directory.stat().st_mode & 0o777) == 0o700
    assert agent.order("release", "--generation", "1")[0] == 0
    assert agent.end() == 3
    assert "ran" in agent.text
    assert agent.report is not None and agent.report["end"] is True


def test_second_agent_in_a_folder_refuses_and_runs_nothing(start: AgentStarter, any_python: str) -> None:
    """One agent a folder: the second exits 75, names the folder, and leaves everything as it is."""
    first = start("sleep", "60", python=any_python)
    before = first.wait_phase("running")
    second = start("sh", "-c", "echo ran twice", directory=first.directory, python=any_python)
    assert second.end() == 75
    assert str(first.directory) in second.text and "ran twice" not in second.text.replace("echo ran twice", "")
    assert first.state == before


def test_tombstone_prevents_the_start(start: AgentStarter, tmp_path: Path) -> None:
    """A cancelled job doesn't start, however late its agent comes."""
    tombstone = tmp_path / "cancelled"
    tombstone.touch()
    agent = start("touch", str(tmp_path / "ran"), options=("--unless-exists", str(tombstone)))
    assert agent.end() == 76
    assert not (tmp_path / "ran").exists()


def test_tombstone_that_appears_later_prevents_the_restart(start: AgentStarter, tmp_path: Path) -> None:
    """A restart order that races with the cancel doesn't bring the job back."""
    tombstone = tmp_path / "cancelled"
    agent = start("sh", "-c", "echo ran; exit 3", options=("--unless-exists", str(tombstone)))
    agent.wait_phase("held")
    tombstone.touch()
    assert agent.order("restart", "--generation", "1")[0] == 0
    assert agent.end() == 76
    assert agent.text.count("ran\n") == 1
    assert agent.report is not None and agent.report["exit"] == 76


def test_state_is_written_before_the_command_runs(start: AgentStarter) -> None:
    """Whoever finds the command finds the state: it is there, with the agent's pid, before the first fork."""
    agent = start("sh", "-c", 'cat "$FT_AGENT_DIR/state.json"; exit 0')
    assert agent.end() == 0
    assert f'"agent":{agent.process.pid}' in agent.text


def test_death_of_a_rank_is_an_early_sign(start: AgentStarter) -> None:
    """A direct child that lived a second and is gone while the command lives is told, and nothing is done."""
    agent = start("sh", "-c", "sleep 1.5 & sleep 0.1 & wait; sleep 60")
    seen = wait_for(lambda: agent.state.get("child_exits"), "a child's end")
    assert len(seen) == 1
    assert agent.state["phase"] == "running"
    wait_for(lambda: [line for line in agent.lines if line["event"] == "child_exit"], "the line")


def test_stalled_reader_of_stderr_stalls_no_supervision(start: AgentStarter) -> None:
    """The pipe is full and nobody reads: orders are obeyed all the same, and the lines come when somebody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    agent = start("sh", "-c", "exit 3", stderr=writer)
    os.close(writer)
    agent.wait_phase("held")
    assert agent.order("restart", "--generation", "1")[0] == 0
    agent.wait_phase("held", 1)
    os.set_blocking(reader, False)
    seen = b""

    def lines() -> bool:
        nonlocal seen
        try:
            seen += os.read(reader, 65536)
        except BlockingIOError:
            return False
        return seen.count(b'"event":"held"') == 2

    wait_for(lines, "both held lines")
    os.close(reader)


def test_lines_reach_a_socket_as_stderr(start: AgentStarter) -> None:
    """A socket can't be opened anew through /proc; it takes the lines all the same."""
    ours, theirs = socket.socketpair()
    agent = start("true", stderr=theirs.fileno())
    theirs.close()
    assert agent.end() == 0
    assert b'"event":"end"' in ours.recv(65536, socket.MSG_WAITALL)
    ours.close()


def test_lines_and_output_in_one_plain_file_dont_overwrite_each_other(start: AgentStarter, tmp_path: Path) -> None:
    """`2> file` has one offset for all writers: a description of our own would be overwritten by the training."""
    target = tmp_path / "plain"
    with open(target, "wb") as file:
        agent = start("sh", "-c", "echo one >&2; sleep 0.3; echo two >&2", stdout=file, stderr=file)
    assert agent.end() == 0
    text = target.read_text()
    assert text.count("ft-agent n1 {") == 3 and "one\n" in text and "two\n" in text


def test_line_is_found_after_half_a_line(start: AgentStarter) -> None:
    """The command left a progress bar without an end of line: our line begins a new one."""
    agent = start("sh", "-c", "printf 'step 17/100\\r' >&2")
    assert agent.end() == 0
    assert "step 17/100\r\nft-agent n1 {" in agent.output.read_bytes().decode()


def test_unknown_option_of_a_newer_sender_is_ignored(start: AgentStarter) -> None:
    """Version skew must not keep a training from starting."""
    agent = start("echo", "ran", options=("--from-the-future", "7"))
    assert agent.end() == 0
    assert "ran" in agent.text and "--from-the-future" in agent.text


def test_missing_command_is_a_clear_error(start: AgentStarter) -> None:
    """Nothing after `--`: say what to write."""
    done = subprocess.run([*start.words(), "run", "--dir", "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "after `--`" in done.stderr
