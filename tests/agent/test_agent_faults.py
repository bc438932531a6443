"""The agent that fails itself never takes the training down."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from conftest import AgentStarter, signal_masks, wait_for

RUN_3 = ("sh", "-c", "echo ran; exit 3")


def broken(sabotage: str) -> list[str]:
    """Words that start an agent (not the zipapp, the same code) in which something fails."""
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {root!r})\n"
    code += "from airflow_ft.agent import cli, helpers, orders, state, supervisor\n"
    code += "def boom(*_, **__): raise RuntimeError('sabotage')\n"
    return [sys.executable, "-ISc", f"{code}{sabotage}\nsys.exit(cli.main())"]


def test_folder_that_cant_be_made_runs_the_command_plainly(
    start: AgentStarter, tmp_path: Path, any_python: str
) -> None:
    """No folder, no agent: but the training runs, with clean signals, and its code comes through."""
    (tmp_path / "file").touch()
    show = ("sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; exit 3")
    agent = start(*show, directory=tmp_path / "file" / "x", python=any_python)
    assert agent.end() == 3
    assert "running the command without it" in agent.text
    assert signal_masks(agent.text) == {"SigBlk": 0, "SigIgn": 0}


@pytest.mark.parametrize(
    "sabotage",
    [
        "state.lock = boom",
        "state.fresh = boom",
        "supervisor.messages.Messages = boom",
        "supervisor.command.environment = boom",
    ],
)
def test_error_before_the_first_fork_runs_the_command_plainly(start: AgentStarter, sabotage: str) -> None:
    """Whatever step fails."""
    agent = start(*RUN_3, words=broken(sabotage))
    assert agent.end() == 3
    assert agent.text.count("ran\n") == 1 and "sabotage" in agent.text


def test_plain_command_keeps_the_folder_locked(start: AgentStarter) -> None:
    """The agent gave up, its command runs: a second agent must not start it again beside it."""
    agent = start("sh", "-c", "echo ran; sleep 60", words=broken("state.fresh = boom"))
    agent.wait_text("ran\n")
    second = start("echo", "twice", directory=agent.directory)
    assert second.end() == 75


def test_tombstone_holds_for_a_broken_agent_too(start: AgentStarter, tmp_path: Path) -> None:
    """Cancelled is cancelled."""
    agent = start(*RUN_3, options=("--unless-exists", str(tmp_path)), words=broken("state.lock = boom"))
    assert agent.end() == 76
    assert "ran\n" not in agent.text


@pytest.mark.parametrize(
    "sabotage",
    ["orders.pending = boom", "supervisor.ChildWatch.look = boom", "supervisor.Supervisor._reap = boom"],
)
def test_error_after_the_fork_waits_for_the_command_plainly(start: AgentStarter, sabotage: str) -> None:
    """One line says so; the command ends by itself, and its code is the agent's."""
    agent = start("sh", "-c", "sleep 0.5; echo ran; exit 3", words=broken(sabotage))
    assert agent.end() == 3
    assert "ran\n" in agent.text
    assert [line["why"] for line in agent.lines if line["event"] == "agent_error"] == ["RuntimeError: sabotage"]


def test_error_right_after_the_first_fork_doesnt_start_a_second_command(start: AgentStarter) -> None:
    """The command is there: it isn't run again plainly, and nothing is held by an agent that can't supervise."""
    agent = start("sh", "-c", "sleep 0.3; echo ran; exit 3", words=broken("supervisor.Supervisor._say = boom"))
    assert agent.end() == 3
    assert agent.text.count("ran\n") == 1


def test_degraded_agent_forwards_term(start: AgentStarter) -> None:
    """The platform's TERM still reaches the training."""
    command = ("sh", "-c", "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    agent = start(*command, words=broken("orders.pending = boom"))
    agent.wait_text("ready")
    wait_for(lambda: [line for line in agent.lines if line["event"] == "agent_error"], "the error")
    agent.process.terminate()
    assert agent.end() == 0
    assert "saved" in agent.text


def test_state_that_cant_be_written_stops_nothing(start: AgentStarter) -> None:
    """A full disk: supervision goes on in memory, and the files come when there is room."""
    sabotage = (
        "import os, errno\nreal = os.replace\n"
        "def full(a, b):\n"
        "    if os.path.exists(os.path.join(os.path.dirname(b), 'full')): raise OSError(errno.ENOSPC, 'full')\n"
        "    real(a, b)\n"
        "os.replace = full\n"
    )
    agent = start("sh", "-c", 'touch "$FT_AGENT_DIR/full"; exit 3', words=broken(sabotage))
    wait_for(lambda: [line for line in agent.lines if line["event"] == "held"], "held, though not written")
    assert agent.state["phase"] != "held"
    (agent.directory / "full").unlink()
    agent.wait_phase("held")
    (agent.directory / "full").touch()
    agent.process.terminate()
    assert agent.end() == 3
    assert agent.report is None


def test_orders_folder_that_vanishes_stops_nothing(start: AgentStarter) -> None:
    """Somebody cleaned up: the next order makes it again."""
    agent = start(*RUN_3)
    agent.wait_phase("held")
    shutil.rmtree(agent.directory / "orders")
    assert agent.order("restart", "--generation", "1")[0] == 0
    agent.wait_phase("held", 1)
    shutil.rmtree(agent.directory)
    agent.process.terminate()
    assert agent.end() == 3


@pytest.mark.parametrize(
    "text", ["{half", "[]", '{"generation": "x", "agent": "y"}', '{"generation": 4, "child": "z"}', ""]
)
def test_broken_state_of_an_older_run_is_passed_over(start: AgentStarter, tmp_path: Path, text: str) -> None:
    """Whatever lies in the folder: the command runs, under the agent."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "state.json").write_text(text)
    agent = start(*RUN_3, directory=tmp_path / "old")
    assert agent.wait_phase("held")["code"] == 3


def test_stderr_that_is_closed_stops_nothing(start: AgentStarter) -> None:
    """Nobody to tell: the work is done all the same."""
    agent = start(*RUN_3, options=("--hold", "0"), preexec_fn=lambda: os.close(2))
    assert agent.end() == 3
    assert "ran\n" in agent.text


def test_reader_of_stderr_that_died_stops_nothing(start: AgentStarter) -> None:
    """EPIPE and SIGPIPE are the command's business, not ours."""
    reader, writer = os.pipe()
    os.close(reader)
    agent = start(*RUN_3, stderr=writer)
    os.close(writer)
    agent.wait_phase("held")
    assert agent.order("release", "--generation", "1")[0] == 0
    assert agent.end() == 3


def test_helper_that_crashes_hurts_nobody(start: AgentStarter) -> None:
    """A stack dump is a process of its own."""
    agent = start("sleep", "60", words=broken("helpers.stacks.dump = lambda *_, **__: __import__('os').abort()"))
    agent.wait_phase("running")
    agent.words = start.words()
    for number in ("1", "2"):
        assert agent.order("stacks", "--generation", number)[0] == 0
        wait_for(lambda: len([x for x in agent.lines if x["event"] == "stacks"]) == int(number), "the dump")  # noqa: B023
    assert agent.state["phase"] == "running"
    assert agent.order("release", "--generation", "1")[0] == 0
    assert agent.end() == 128 + signal.SIGKILL
