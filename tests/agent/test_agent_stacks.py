"""Stack dumps: they name the stuck function, group equal ranks, and hurt nobody who can't answer."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Agent, AgentStarter, wait_for

from airflow_ft.agent import stacks

STUCK = """
import sys, threading, time
def a_lock_that_nobody_opens():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def spinning_for_ever():
    while True: pass
def outer():
    {"lock": a_lock_that_nobody_opens, "spin": spinning_for_ever}[sys.argv[1]]()
print("ready", flush=True)
outer()
"""


def dump(agent: Agent, *options: str) -> dict[str, Any]:
    """`agent.pyz stacks`, its answer and its file being the same."""
    words = [*agent.words, "stacks", "--dir", str(agent.directory), *options]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=30)
    answer = json.loads(done.stdout)
    assert answer == json.loads((agent.directory / "stacks.json").read_text())
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def stuck(tmp_path: Path) -> str:
    """A script that hangs."""
    path = tmp_path / "stuck.py"
    path.write_text(STUCK)
    return str(path)


@pytest.mark.parametrize("how", ["lock", "spin"])
def test_stack_names_the_stuck_function(start: AgentStarter, any_python: str, stuck: str, how: str) -> None:
    """An unmodified script, without py-spy: the real-time signal does it, and the script goes on."""
    agent = start(any_python, stuck, how, python=any_python)
    agent.wait_text("ready")
    answer = dump(agent)
    child = agent.state["child"]
    state = {"lock": "S", "spin": "R"}[how]
    assert answer["ranks"] == [{"pid": child, "rank": None, "via": "signal", "state": state}]
    function = {"lock": "a_lock_that_nobody_opens", "spin": "spinning_for_ever"}[how]
    assert function in answer["groups"][0]["stack"] and "outer" in answer["groups"][0]["stack"]
    assert agent.state["phase"] == "running" and agent.state["child"] == child


def test_equal_stacks_are_one_group_with_their_ranks(start: AgentStarter, stuck: str) -> None:
    """Four ranks: three wait, one spins."""
    script = (
        f"for r in 0 1 2; do RANK=$r {sys.executable} {stuck} lock & done; RANK=3 {sys.executable} {stuck} spin & wait"
    )
    agent = start("sh", "-c", script)
    wait_for(lambda: agent.text.count("ready") == 4, "four ranks")
    answer = dump(agent)
    assert [group["ranks"] for group in answer["groups"]] == [[0, 1, 2], [3]]
    assert sorted(rank["rank"] for rank in answer["ranks"]) == [0, 1, 2, 3]


def test_a_stopped_rank_is_a_group_of_its_own_without_a_stack(start: AgentStarter, stuck: str) -> None:
    """SIGSTOP: it can't answer, and just that is the answer."""
    script = f"for r in 0 1; do RANK=$r {sys.executable} {stuck} lock & done; wait"
    agent = start("sh", "-c", script)
    wait_for(lambda: agent.text.count("ready") == 2, "two ranks")
    pids = {rank["rank"]: rank["pid"] for rank in dump(agent)["ranks"]}
    os.kill(pids[1], signal.SIGSTOP)
    answer = dump(agent)
    assert [(group["ranks"], group["stopped"], bool(group["stack"])) for group in answer["groups"]] == [
        ([0], False, True),
        ([1], True, False),
    ]
    assert {rank["rank"]: rank["state"] for rank in answer["ranks"]} == {0: "S", 1: "T"}


def test_who_cant_answer_is_not_hurt(start: AgentStarter, tmp_path: Path) -> None:
    """The default action of a real-time signal is death: a shell and `python -I` must not get it."""
    script = tmp_path / "i.py"
    script.write_text("import time; print('ready', flush=True); time.sleep(300)")
    agent = start("bash", "-c", f"{sys.executable} -I {script} & sleep 300 & wait")
    agent.wait_text("ready")
    before = sorted(start.left())
    answer = dump(agent)
    assert [rank["via"] for rank in answer["ranks"]] == [None] and answer["groups"] == []
    assert sorted(start.left()) == before


def test_no_signal_means_py_spy_or_nothing(start: AgentStarter, stuck: str) -> None:
    """A run that is only watched (`on_hang: notify`) must not be changed."""
    agent = start(sys.executable, stuck, "lock")
    agent.wait_text("ready")
    assert [rank["via"] for rank in dump(agent, "--no-signal")["ranks"]] == [None]


def test_forked_worker_has_a_file_of_its_own(start: AgentStarter, tmp_path: Path) -> None:
    """A data loader's worker is forked: its dump must not go into its parent's file."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, time\n"
        "def in_the_parent(): time.sleep(300)\n"
        "def in_the_worker(): print('ready', flush=True); time.sleep(300)\n"
        "in_the_parent() if os.fork() else in_the_worker()\n"
    )
    agent = start(sys.executable, str(script))
    agent.wait_text("ready")
    found = [group["stack"] for group in dump(agent)["groups"]]
    assert len(found) == 2
    assert sorted("in_the_worker" in stack for stack in found) == [False, True]


def test_py_spy_is_asked_first(start: AgentStarter, stuck: str, tmp_path: Path) -> None:
    """Found on PATH and working: its answer counts. (A stand-in that prints what py-spy prints.)"""
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text(
        '#!/bin/sh\nprintf "Process %s: x\\nThread %s (idle): \\"MainThread\\"\\n    f (a.py:1)\\n" $4 $4\n'
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    path = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    agent = start(sys.executable, stuck, "lock", env=path)
    agent.wait_text("ready")
    assert agent.order("stacks", "--generation", "0")[0] == 0
    answer = wait_for(lambda: _stacks_file(agent), "stacks.json")
    assert [rank["via"] for rank in answer["ranks"]] == ["py-spy"]
    assert answer["groups"][0]["stack"] == 'Thread (idle): "MainThread"\n    f (a.py:1)'


def test_order_for_stacks_has_its_own_numbers_and_stops_nothing(start: AgentStarter, stuck: str) -> None:
    """stacks-1 and restart 1 live side by side; a dump that was done isn't done again."""
    agent = start(sys.executable, stuck, "lock")
    agent.wait_text("ready")
    child = agent.state["child"]
    assert agent.order("stacks", "--generation", "1")[0] == 0
    answer = wait_for(lambda: _stacks_file(agent), "stacks.json")
    assert answer["number"] == 1 and "a_lock_that_nobody_opens" in answer["groups"][0]["stack"]
    assert agent.order("stacks", "--generation", "1")[0] == 3
    assert agent.order("stacks", "--generation", "0")[0] == 4
    assert agent.state["child"] == child and agent.state["generation"] == 0
    assert agent.order("restart", "--generation", "1")[0] == 0
    agent.wait_phase("running", 1)


def test_stacks_of_a_dead_agents_training_are_found(start: AgentStarter, stuck: str) -> None:
    """The recorded child and the marker are enough."""
    agent = start(sys.executable, stuck, "lock")
    agent.wait_text("ready")
    agent.process.kill()
    agent.process.wait()
    assert "a_lock_that_nobody_opens" in dump(agent)["groups"][0]["stack"]


def test_shadowed_sitecustomize_still_runs(start: AgentStarter, tmp_path: Path, any_python: str) -> None:
    """The user's own sitecustomize has the same name: ours comes first and runs it."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "sitecustomize.py").write_text("import builtins; builtins.users_own = __name__\n")
    show = "import sitecustomize, sys; print(users_own, sitecustomize.__file__, sys.path[1].endswith('site'))"
    agent = start(any_python, "-c", show, env={"PYTHONPATH": str(tmp_path / "users")}, python=any_python)
    assert agent.end() == 0
    assert f"sitecustomize {tmp_path}/users/sitecustomize.py True" in agent.text
    assert [name for name in os.listdir(agent.directory / "site") if name != "__pycache__"] == ["sitecustomize.py"]


def test_answer_fits_64_kb() -> None:
    """However many ranks differ, the report stays small, and says that it was cut."""
    groups = [{"pids": [n], "ranks": [n], "stack": f"{n}" * 3000} for n in range(500)]
    ranks = [{"pid": n, "rank": n, "via": "signal"} for n in range(5000)]
    result: dict[str, Any] = {"version": 1, "at": time.time(), "number": None, "ranks": ranks, "groups": groups}
    stacks._fit(result)
    assert len(json.dumps(result)) <= 64 * 1024 and result["truncated"] and result["groups"]


def test_normalized_stacks_forget_addresses() -> None:
    """Two ranks at the same place print different thread ids."""
    first = 'Current thread 0x00007f11 (most recent call first):\n  File "a.py", line 3 in f\n'
    second = 'Current thread 0x00007f22 (most recent call first):\n  File "a.py", line 3 in f\n'
    assert stacks.normalized(first) == stacks.normalized(second)
    assert "line 3 in f" in stacks.normalized(first)


def _stacks_file(agent: Agent) -> dict[str, Any] | None:
    try:
        found = json.loads((agent.directory / "stacks.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
