"""Killing by tree: nothing of a dead incarnation may hold a GPU, in whatever session it hides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
from conftest import AgentStarter, wait_for

from airflow_ft.agent import processes

DAEMONISE = (
    "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(300)\n os._exit(0)\nos.wait()\n"
)


def test_grandchild_in_a_session_of_its_own_is_killed(start: AgentStarter, any_python: str) -> None:
    """torchrun starts each rank with setsid, and ranks survive its death."""
    agent = start("sh", "-c", "setsid sleep 300 & setsid sleep 300 & sleep 0.2; exit 3", python=any_python)
    agent.wait_phase("held")
    assert start.left() == [agent.process.pid]


def test_orphaned_grandchild_is_adopted_and_killed(start: AgentStarter) -> None:
    """A daemon whose parent is gone belongs to init elsewhere; here it comes to the agent."""
    agent = start(sys.executable, "-ISc", DAEMONISE + "time.sleep(0.3); raise SystemExit(3)")
    agent.wait_phase("held")
    assert start.left() == [agent.process.pid]


def test_orphans_that_end_are_reaped(start: AgentStarter) -> None:
    """As PID 1 or subreaper nobody else does it: no zombie stays."""
    agent = start("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 & ) ; done; echo forked; sleep 60")
    agent.wait_text("forked")
    wait_for(lambda: len(psutil.Process(agent.process.pid).children(recursive=True)) == 2, "the shell and its sleep")


def test_nothing_is_left_after_the_end(start: AgentStarter) -> None:
    """The command ended well; what it left in the background ends with it."""
    agent = start(sys.executable, "-ISc", DAEMONISE)
    assert agent.end() == 0
    assert start.left() == []


def test_a_tree_that_forks_while_it_is_killed_is_killed_whole(start: AgentStarter) -> None:
    """Kill until none is left, not once."""
    script = "f() { sleep 300 & sleep 0.01; }; for i in 1 2 3 4 5 6; do (while :; do f; done) & done; sleep 0.3; exit 3"
    agent = start("sh", "-c", script)
    agent.wait_phase("held")
    assert start.left() == [agent.process.pid]
    assert agent.state["unkillable"] == []


def test_kill_tree_from_outside_ends_a_whole_tree(start: AgentStarter) -> None:
    """The local backend ends the tree of an agent that it isn't the parent of."""
    agent = start("sh", "-c", "setsid sleep 300 & setsid sh -c 'sleep 300 & sleep 300' & sleep 300")
    wait_for(lambda: len(start.left()) == 7, "the whole tree")
    assert processes.kill_tree([agent.process.pid], 10.0) == []
    assert start.left() == []


def test_tree_of_a_dead_agent_is_found_by_its_marker(start: AgentStarter) -> None:
    """Recorded pids and the marker in the environment are enough when the agent is gone."""
    agent = start("sh", "-c", "setsid sleep 300 & sleep 300")
    now = agent.wait_phase("running")
    wait_for(lambda: len(start.left()) == 4, "agent, shell, two sleeps")
    agent.process.kill()
    agent.process.wait()
    assert processes.is_alive(now["child"], now["child_start"])
    assert not processes.is_alive(now["agent"], now["agent_start"])
    found = processes.with_marker("FT_AGENT_DIR", str(agent.directory))
    assert now["child"] in found and len(found) == 3
    assert processes.kill_tree(found) == []
    assert start.left() == []


def test_a_pid_with_another_start_time_is_another_process() -> None:
    """Pids are used again; and a zombie is no living process."""
    started = processes.start_ticks(os.getpid())
    assert processes.is_alive(os.getpid(), started)
    assert not processes.is_alive(os.getpid(), (started or 0) + 1)
    assert not processes.is_alive(None, None)
    child = subprocess.Popen(["true"])
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert not processes.is_alive(child.pid, processes.start_ticks(child.pid))
    child.wait()


def test_process_whose_main_thread_ended_is_alive() -> None:
    """/proc calls it a zombie, but its threads run and hold what it holds."""
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('x', flush=True); ctypes.CDLL(None).pthread_exit(None)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "a leader that ended")
    try:
        assert processes.is_alive(child.pid, processes.start_ticks(child.pid))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_restart_after_a_stop_signal_to_the_tree(start: AgentStarter) -> None:
    """SIGSTOPped ranks (a frozen node) are killed like others."""
    agent = start("sh", "-c", "exec sleep 300")
    now = agent.wait_phase("running")
    os.kill(now["child"], signal.SIGSTOP)
    assert agent.order("restart", "--generation", "1")[0] == 0
    assert not agent.wait_phase("running", 1)["unkillable"]
