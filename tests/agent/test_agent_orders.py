"""Numbered orders against a running agent: exactly once, for the right one, and never into a void."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import AgentStarter, wait_for

from airflow_ft.agent import orders, state

COUNT_RUNS = 'echo "run $FT_GENERATION"; [ "$FT_GENERATION" -lt 1 ] && exit 3; sleep 60'


def test_restart_runs_the_command_again_in_place(start: AgentStarter, any_python: str) -> None:
    """Same agent, same folder, next generation; the decision is kept and echoed."""
    agent = start("sh", "-c", COUNT_RUNS, python=any_python)
    agent.wait_phase("held")
    note = {"class": "NET_FABRIC", "reason": 'a "quoted" reason'}
    code, answer = agent.order(
        "restart", "--generation", "1", "--digest", "d1", "--by", "try 1", "--note", json.dumps(note)
    )
    assert (code, answer["result"]) == (0, "accepted")
    now = agent.wait_phase("running", 1)
    assert (now["decision"], now["digest"], now["code"], now["agent"]) == (note, "d1", None, agent.process.pid)
    agent.wait_text("run 1")
    assert [line["note"] for line in agent.lines if line["event"] == "restart"] == [note]
    assert agent.order("release", "--generation", "2")[0] == 0
    assert agent.end() == 128 + signal.SIGKILL


def test_restart_of_a_running_command_kills_its_tree_first(start: AgentStarter) -> None:
    """At the first `held` of one node the others still run: the order goes to all, each kills its own tree."""
    agent = start("sh", "-c", "setsid sleep 61 & sleep 61")
    first = agent.wait_phase("running")
    assert agent.order("restart", "--generation", "1")[0] == 0
    second = agent.wait_phase("running", 1)
    assert second["child"] != first["child"]
    assert not os.path.exists(f"/proc/{first['child']}")
    wait_for(lambda: len(start.left()) == 4, "the agent, the shell and its two sleeps")


def test_of_fifty_duplicates_and_one_rival_exactly_one_is_carried_out(start: AgentStarter) -> None:
    """link(2) is the compare-and-set: one accepted, its twins `already`, the rival refused (or the other way round)."""
    agent = start("sh", "-c", COUNT_RUNS, words=None)
    agent.wait_phase("held")
    children = []
    for number in range(51):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                action = "release" if number == 25 else "restart"
                result = orders.give(str(agent.directory), action, 1, digest="d", by=str(number))
                os.write(writer, f"{action} {result.result}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        children.append((pid, reader))
    answers = []
    for pid, reader in children:
        os.waitpid(pid, 0)
        answers.append(os.read(reader, 100).decode())
        os.close(reader)
    counted = Counter(answers)
    assert sum(count for answer, count in counted.items() if answer.endswith("accepted")) == 1
    if counted["restart accepted"]:
        assert counted == {"restart accepted": 1, "restart already": 49, "release refused": 1}
        agent.wait_text("run 1")
        assert agent.text.count("run 1\n") == 1
        assert agent.state["generation"] == 1
    else:
        assert counted == {"release accepted": 1, "restart refused": 50}
        assert agent.end() == 3


def test_stale_foreign_and_differing_orders_are_refused(start: AgentStarter) -> None:
    """Each refusal says why, and gives the note of the order that stands."""
    agent = start("sh", "-c", "exit 3", options=("--attempt", "a1", "--incarnation", "7"))
    agent.wait_phase("held")
    give = [str(agent.directory)]
    assert "attempt" in orders.give(*give, "restart", 1, attempt="a0").why
    assert "incarnation" in orders.give(*give, "restart", 1, attempt="a1", incarnation="6").why
    assert "by no order" in orders.give(*give, "restart", 0).why
    assert "not known" in orders.give(*give, "explode", 1).why
    assert "longer" in orders.give(*give, "restart", 1, note="x" * 5000).why
    first = orders.give(*give, "restart", 1, attempt="a1", incarnation="7", digest="d1", note={"n": 1})
    assert first == ("accepted", "", 1, {"n": 1})
    agent.wait_phase("held", 1)
    assert orders.give(*give, "restart", 1, digest="d1").result == "already"
    other = orders.give(*give, "restart", 1, digest="d2")
    assert (other.result, other.note) == ("refused", {"n": 1}) and "digest" in other.why
    assert "action" in orders.give(*give, "release", 1, digest="d1").why
    assert agent.order("restart", "--generation", "0") == (
        4,
        {
            "result": "refused",
            "why": "stale: the agent is at generation 1",
            "generation": 0,
            "note": None,
            "action": "restart",
        },
    )
    assert agent.state["generation"] == 1


def test_twin_that_is_quicker_than_our_look_makes_ours_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our looks a twin creates the order and the agent obeys it: ours is `already`."""
    (tmp_path / "orders").mkdir()
    lives = dict(state.fresh("a", None, 0, {}), phase="running")
    state.write_atomic(str(tmp_path / "state.json"), lives)
    real = orders._stale

    def twin_first(directory: str, wanted: dict[str, object]) -> str | None:
        state.write_atomic(str(tmp_path / "orders" / "1"), {"action": "restart", "digest": "d"})
        state.write_atomic(str(tmp_path / "state.json"), dict(lives, generation=1, order=1))
        return real(directory, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(orders, "_stale", twin_first)
    assert orders.give(str(tmp_path), "restart", 1, digest="d").result == "already"


def test_exit_codes_tell_accepted_already_refused(start: AgentStarter) -> None:
    """0, 3 and 4, with one line of JSON on stdout."""
    agent = start("sh", "-c", "exit 3")
    agent.wait_phase("held")
    assert agent.order("restart", "--generation", "1")[0] == 0
    agent.wait_phase("held", 1)
    assert agent.order("restart", "--generation", "1")[0] == 3
    assert agent.order("release", "--generation", "1")[0] == 4
    assert agent.order("restart", "--generation", "2", "--note", "{no json")[0] == 4


def test_agent_in_an_old_folder_replays_nothing(start: AgentStarter, any_python: str) -> None:
    """Container restarted, folder kept: begin at the highest number there, also the highest of the orders."""
    agent = start("sh", "-c", "exit 3", options=("--hold", "20"), python=any_python)
    agent.wait_phase("held")
    assert agent.order("restart", "--generation", "1", "--note", '"why"')[0] == 0
    agent.wait_phase("held", 1)
    assert agent.order("release", "--generation", "12")[0] == 0
    assert agent.end() == 3
    assert agent.report is not None
    again = start("sh", "-c", "echo again; sleep 60", directory=agent.directory, python=any_python)
    again.wait_text("again")
    assert again.wait_phase("running")["generation"] == 12
    assert again.report is None, "the old end marker must not speak for the new agent"
    wait_for(lambda: again.lines, "the start")
    assert [line["event"] for line in again.lines] == ["start"]


def test_orders_sort_as_numbers(start: AgentStarter) -> None:
    """10 is higher than 9."""
    agent = start("sh", "-c", "exit 3")
    agent.wait_phase("held")
    for number in (9, 10):
        assert orders.give(str(agent.directory), "restart", number).result == "accepted"
        agent.wait_phase("held", number)


def test_order_to_a_dead_agent_is_refused_and_training_goes_on(start: AgentStarter) -> None:
    """kill -9 of the agent: the training is untouched, and no order goes into the void."""
    agent = start("sh", "-c", "i=0; while :; do i=$((i+1)); echo step $i; sleep 0.05; done")
    agent.wait_text("step 2\n")
    child = agent.state["child"]
    agent.process.kill()
    agent.process.wait()
    seen = agent.text.count("step")
    wait_for(lambda: agent.text.count("step") > seen + 5, "more steps")
    code, answer = agent.order("restart", "--generation", "1")
    assert (code, answer["why"]) == (4, "no live agent")
    second = start("echo", "ran twice", directory=agent.directory)
    assert second.end() == 75, "the training of the dead agent still runs: nothing is started beside it"
    assert start.left() and os.path.exists(f"/proc/{child}")


def test_order_that_comes_with_the_end_of_the_hold_is_obeyed_or_refused(start: AgentStarter) -> None:
    """Never "accepted" and yet not carried out."""
    for pause in (0.0, 0.05, 0.1, 0.15, 0.2, 0.25):
        agent = start("sh", "-c", COUNT_RUNS, options=("--hold", "0.2"))
        agent.wait_phase("held")
        time.sleep(pause)  # not a wait for something: the race itself
        result = orders.give(str(agent.directory), "restart", 1)
        if result.result == "accepted":
            agent.wait_text("run 1")
            agent.process.kill()
        else:
            assert agent.end() == 3
            assert "run 1\n" not in agent.text


def test_garbage_in_the_orders_folder_is_passed_over(start: AgentStarter) -> None:
    """Half a file, a foreign name, a folder: none of it stops the supervision or is obeyed."""
    agent = start("sh", "-c", "exit 3")
    agent.wait_phase("held")
    folder = agent.directory / "orders"
    (folder / "notes.txt").write_text("hello")
    (folder / "²").write_text("{}")
    (folder / "1").write_bytes(b"\xff\x00{")
    (folder / "2").mkdir()
    assert orders.give(str(agent.directory), "restart", 2).result == "refused"
    assert orders.give(str(agent.directory), "restart", 3).result == "accepted"
    agent.wait_phase("held", 3)


def test_order_of_another_attempt_that_was_laid_as_a_file_is_not_obeyed(start: AgentStarter) -> None:
    """The agent checks what it reads too: a file can be laid there by somebody who didn't ask."""
    agent = start("sh", "-c", "exit 3", options=("--attempt", "a2", "--hold", "0.5"))
    agent.wait_phase("held")
    order = {"action": "restart", "generation": 1, "attempt": "a1"}
    state.write_atomic(str(agent.directory / "orders" / "1"), order)
    assert agent.end() == 3
    assert agent.state["generation"] == 0


def test_restart_is_quick(start: AgentStarter, record_property: object) -> None:
    """Measured with this: command dead -> held, and order -> exec. Generous limits, the machine may be busy."""
    agent = start("sh", "-c", "exec sleep 60")
    to_held, to_exec = [], []
    for generation in range(1, 11):
        now = agent.wait_phase("running", generation - 1)
        os.kill(now["child"], signal.SIGKILL)
        killed = time.time()
        held = agent.wait_phase("held")
        to_held.append(held["at"] - killed)
        given = time.time()
        assert orders.give(str(agent.directory), "restart", generation).result == "accepted"
        to_exec.append(agent.wait_phase("running", generation)["spawned_at"] - given)
    print(f"dead -> held: median {statistics.median(to_held):.3f} s, max {max(to_held):.3f} s")
    print(f"order -> exec: median {statistics.median(to_exec):.3f} s, max {max(to_exec):.3f} s")
    assert statistics.median(to_held) < 1 and statistics.median(to_exec) < 1


def test_filesystem_without_hard_links_keeps_exactly_once(tmp_path: Path) -> None:
    """O_EXCL instead of link(2): the second one learns that it came second."""
    path = str(tmp_path / "1")
    assert orders._create_exclusively(path, {"action": "restart"})
    assert not orders._create_exclusively(path, {"action": "release"})
    assert (orders.read(path) or {})["action"] == "restart"


def test_order_command_needs_no_site_packages(start: AgentStarter) -> None:
    """`python -I -S`: the user's image can be as broken as it likes."""
    done = subprocess.run(
        [*start.words(), "order", "restart", "--dir", "nowhere", "--generation", "1"], capture_output=True
    )
    assert done.returncode == 4
    assert json.loads(done.stdout)["why"] == "no live agent"
