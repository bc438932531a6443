"""The stories that every backend has to live through, on its real system."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_ft.backends.base import (
    CancelledJobError,
    Capability,
    ForeignJobError,
    JobState,
    Observation,
    Order,
    SubmissionRefusedError,
)
from airflow_ft.core.faults import FaultClass, Role, Trust
from tests.backends.conformance import CHAIN, System, eventually, names

Story = Callable[[System], Awaitable[None]]
PRINT = "echo run >> runs; "


def play(system: System, story: Story, *needs: Capability) -> None:
    missing = [capability.value for capability in needs if capability not in system.backend.can]
    if missing:
        pytest.skip(f"{system.name} can't: {', '.join(missing)}")
    asyncio.run(story(system))


def all_run(seen: Observation) -> bool:
    return all(node.state is JobState.RUNNING for node in seen.nodes)


def test_a_job_that_ends_well_is_ended_with_0(system: System) -> None:
    """Submitted, seen, over: and it ran once on each node."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", PRINT + "echo $FT_NODE_RANK of $FT_NNODES", nodes=2)
        seen = await it.until(ref, JobState.ENDED)
        assert (seen.code, seen.cancelled, [node.code for node in seen.nodes]) == (0, False, [0, 0])
        assert it.runs() == 2
        output = await it.output(ref)
        assert "0 of 2" in output
        assert "1 of 2" in output

    play(system, story)


@pytest.mark.story("WAT-01")
def test_a_crash_is_held_with_its_code_and_never_success(system: System) -> None:
    """The verdict comes from the state, whatever the log says, however soon one looks."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", "echo success; exit 7")
        seen = await it.until(ref, JobState.HELD, JobState.ENDED, JobState.GONE)
        assert (seen.state, seen.nodes[0].code) == (JobState.HELD, 7)
        facts = await it.backend.evidence(ref)
        assert [(fact.source, fact.code, fact.node) for fact in facts] == [("exit", 7, seen.nodes[0].node)]

    play(system, story)


def test_a_restart_in_place_leads_to_the_next_generation(system: System) -> None:
    """The same order may come again; another decision under its number is refused; the decision is echoed."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", PRINT + "[ $FT_GENERATION = 1 ] || exit 3; sleep 100", nodes=2)
        await it.until(ref, JobState.HELD)
        order = Order(generation=1, digest="d1", note={"why": "test"}, by="me")
        assert await it.backend.restart_in_place(ref, order) == []
        assert await it.backend.restart_in_place(ref, order) == []
        assert len(await it.backend.restart_in_place(ref, order.but(digest="d2"))) == 2
        seen = await it.until(ref, JobState.RUNNING, where=lambda seen: all(n.generation == 1 for n in seen.nodes))
        assert [(n.note, n.digest) for n in seen.nodes] == [({"why": "test"}, "d1")] * 2
        await eventually(lambda: _value(it.runs() == 4), "both ran twice")

    play(system, story, Capability.RESTART_IN_PLACE)


def test_a_released_job_ends_with_its_own_code(system: System) -> None:
    """Nothing is held longer than the decision takes."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", "exit 9")
        await it.until(ref, JobState.HELD)
        assert await it.backend.release(ref, Order(generation=1, digest="d1")) == []
        assert (await it.until(ref, JobState.ENDED)).code == 9

    play(system, story, Capability.RESTART_IN_PLACE)


@pytest.mark.story("SUB-01")
@pytest.mark.story("SUB-08")
def test_a_submission_that_comes_again_adopts_its_job(system: System) -> None:
    """Creation itself is the test of absence."""

    async def story(it: System) -> None:
        refs = [await it.submit("sh", "-c", PRINT + "sleep 100") for _ in range(3)]
        assert refs[0] == refs[1] == refs[2]
        assert await _find(it, refs[0].name) == refs[0]
        await it.until(refs[0], JobState.RUNNING)
        assert it.runs() == 1

    play(system, story)


@pytest.mark.story("SUB-05")
def test_a_submission_of_a_job_that_ended_runs_nothing_again(system: System) -> None:
    """Adopted, and seen as what it is."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", PRINT)
        await it.until(ref, JobState.ENDED)
        assert await it.submit("sh", "-c", PRINT) == ref
        assert (await it.until(ref, JobState.ENDED)).code == 0
        assert it.runs() == 1

    play(system, story)


@pytest.mark.story("SUB-04")
@pytest.mark.parametrize("change", [{"chain_id": "another"}, {"attempt": 5}])
def test_a_foreign_job_under_the_name_is_neither_adopted_nor_touched(system: System, change: dict[str, Any]) -> None:
    """A name is no identity."""

    async def story(it: System) -> None:
        job = it.job("sleep", "100")
        ref = await it.backend.submit(job, it.submission())
        with pytest.raises(ForeignJobError):
            await it.backend.submit(job, it.submission().but(**change))
        with pytest.raises(ForeignJobError):
            await it.backend.submit(it.job("sleep", "101"), it.submission())
        await _fence(it, ref.name, "another")
        assert (await it.until(ref, JobState.RUNNING)).cancelled is False
        assert (await it.backend.observe(ref.but(uid="0"))).state is JobState.GONE

    play(system, story)


def test_nothing_runs_under_a_cancelled_name(system: System) -> None:
    """A cancel is for ever."""

    async def story(it: System) -> None:
        ref = await it.submit("sleep", "100")
        await it.backend.cancel(ref, 1)
        seen = await it.backend.observe(ref)
        assert (seen.cancelled, seen.state in (JobState.ENDED, JobState.GONE)) == (True, True)
        assert it.processes(ref) == []
        with pytest.raises(CancelledJobError):
            await it.submit("sleep", "100")

    play(system, story)


def test_a_fenced_name_can_not_be_created(system: System) -> None:
    """Whether or not a job was there."""

    async def story(it: System) -> None:
        running = await it.submit("sleep", "100")
        await _fence(it, running.name)
        assert it.processes(running) == []
        free = it.submission(1)
        await _fence(it, free.name)
        await _fence(it, free.name)
        with pytest.raises(CancelledJobError):
            await it.submit("sh", "-c", PRINT, attempt=1)
        assert await _find(it, free.name) is None
        assert it.runs() == 0

    play(system, story)


STUBBORN = "trap '' TERM HUP; setsid sh -c \"trap '' TERM; sleep 1000\" & echo up >> up; while :; do sleep 1000; done"


def test_a_cancel_ends_what_ignores_term_and_hides_in_another_session(system: System) -> None:
    """When it returns, nothing is left."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", STUBBORN, nodes=2)
        await eventually(lambda: _value(it.runs("up") == 2), "both are up")
        await it.backend.cancel(ref, 0.5)
        assert it.processes(ref) == []

    play(system, story)


def test_a_cancel_gives_the_command_time_to_save(system: System) -> None:
    """TERM first; the end is planned, whatever the code says."""

    async def story(it: System) -> None:
        ref = await it.submit("sh", "-c", "trap 'echo saved >> saved; exit 1' TERM; echo >> up; sleep 100 & wait")
        await eventually(lambda: _value(it.runs("up")), "it is up")
        await it.backend.cancel(ref, 10)
        seen = await it.backend.observe(ref)
        assert it.runs("saved") == 1
        assert (seen.state, seen.nodes[0].term, seen.cancelled) == (JobState.ENDED, True, True)

    play(system, story)


def test_a_lost_node_is_the_platforms_word(system: System) -> None:
    """It is named, with a reason; the other nodes are seen as they are."""

    async def story(it: System) -> None:
        ref = await it.submit("sleep", "100", nodes=2)
        first, second = (await it.until(ref, JobState.RUNNING, where=all_run)).nodes
        it.lose_node(second.node)
        seen = await it.backend.observe(ref)
        states = {node.node: (node.state, node.lost) for node in seen.nodes}
        assert states == {first.node: (JobState.RUNNING, False), second.node: (JobState.GONE, True)}
        facts = [fact for fact in await it.backend.evidence(ref) if fact.node == second.node]
        assert [(f.fault_class, f.role, f.trust) for f in facts] == [(FaultClass.HW_NODE, Role.ROOT, Trust.PLATFORM)]
        assert second.node not in (await it.backend.pool(ref)).nodes
        it.repair_node(second.node)
        assert second.node in (await it.backend.pool(ref)).nodes
        assert (await it.backend.observe(ref)).nodes[1].lost

    play(system, story, Capability.PLATFORM_NODE_STATE)


def test_an_excluded_node_is_not_used(system: System) -> None:
    """Even when that means to wait, and then it is said."""

    async def story(it: System) -> None:
        nodes = (await it.backend.pool(it.job("true"))).nodes
        assert len(nodes) == it.pool_nodes
        job, submission = it.job("sleep", "100", nodes=2), it.submission(excluded_nodes=nodes[:2])
        ref = await it.backend.submit(job, submission)
        seen = await it.until(ref, JobState.RUNNING)
        assert set(names(seen.nodes)) == set(nodes[2:])
        submission = it.submission(1, excluded_nodes=nodes[1:])
        waiting = await it.backend.observe(await it.backend.submit(job, submission))
        assert waiting.state is JobState.QUEUED
        assert "1 of the pool's 4" in waiting.reason

    play(system, story, Capability.EXCLUDE_NODES)


def test_a_job_waits_for_nodes_and_runs_when_they_are_free(system: System) -> None:
    """A queue is not a failure to start."""

    async def story(it: System) -> None:
        first = await it.submit("sleep", "100", nodes=3)
        second = await it.submit("sh", "-c", PRINT, nodes=2, attempt=1)
        assert (await it.backend.observe(second)).state is JobState.QUEUED
        await it.backend.cancel(first, 0)
        assert (await it.until(second, JobState.ENDED)).code == 0
        assert it.runs() == 2

    play(system, story)


@pytest.mark.story("SUB-06")
def test_leftovers_and_siblings_are_no_hindrance(system: System) -> None:
    """Failed attempts kept for a look, and a mapped sibling that runs: the next attempt starts, and adopts none."""

    async def story(it: System) -> None:
        for attempt in range(2):
            ref = await it.submit("sh", "-c", "exit 1", attempt=attempt, hold=0)
            await it.until(ref, JobState.ENDED)
        sibling = it.submission(2, name=f"{CHAIN}-m1-a2", chain_id=f"{CHAIN}-m1")
        other = await it.backend.submit(it.job("sleep", "100"), sibling)
        ref = await it.submit("sh", "-c", PRINT, attempt=2)
        assert (await it.until(ref, JobState.ENDED)).code == 0
        assert it.runs() == 1
        assert (await it.backend.observe(other)).state is JobState.RUNNING

    play(system, story)


@pytest.mark.story("SUB-07")
def test_attempts_leave_the_job_as_it_was(system: System) -> None:
    """What differs is the submission, never the job."""

    async def story(it: System) -> None:
        job = it.job("true", env={"A": "1"})
        before = job.model_dump_json()
        for attempt in range(3):
            ref = await it.backend.submit(job, it.submission(attempt, resume_from=f"step-{attempt}"))
            assert (await it.until(ref, JobState.ENDED)).code == 0
        assert job.model_dump_json() == before

    play(system, story)


@pytest.mark.story("WAT-06")
@pytest.mark.story("WAT-08")
def test_logs_are_read_on_from_where_the_cursor_stood(system: System) -> None:
    """In pieces of any size every byte comes once, whatever the bytes are."""

    async def story(it: System) -> None:
        code = r"import os; [os.write(1, b'line %d \xff\xe2\n' % n) for n in range(500)]"
        ref = await it.submit(sys.executable, "-c", code)
        await it.until(ref, JobState.ENDED)
        pieces, cursors = [], {}
        while True:
            chunks, cursors = await it.backend.read_logs(ref, json.loads(json.dumps(cursors)), 777)
            if not chunks:
                break
            assert sum(len(chunk.data) for chunk in chunks) <= 777
            pieces += [chunk.data for chunk in chunks]
        lines = [line for line in b"".join(pieces).splitlines() if line.startswith(b"line ")]
        assert lines == [b"line %d \xff\xe2" % number for number in range(500)]
        tails = await it.backend.log_tails(ref, 2000)
        assert any(len(tail.data) == 2000 and tail.offset > 0 and b"line 499" in tail.data for tail in tails)

    play(system, story)


def test_stacks_show_where_a_rank_is(system: System) -> None:
    """From an unmodified script, before it is killed."""

    async def story(it: System) -> None:
        code = "import time\ndef stuck_here():\n    print('up', flush=True)\n    time.sleep(1000)\nstuck_here()"
        ref = await it.submit(sys.executable, "-c", code, nodes=2)

        async def up() -> bool:
            return (await it.output(ref)).count("up\n") == 2

        await eventually(up, "both are up")
        groups = await it.backend.dump_stacks(ref)
        assert {group.node for group in groups if "stuck_here" in group.stack} == {"n1", "n2"}

    play(system, story, Capability.DUMP_STACKS)


@pytest.mark.parametrize("number", range(10))
@pytest.mark.story("SEC-04")
def test_arguments_and_variables_arrive_as_given(system: System, number: int) -> None:
    """Nothing on the way is a shell, and nothing else happened."""
    argv, env = ARGV[number], {pair["k"]: pair["v"] for pair in ENV if not pair.get("reject")}
    dump = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('dump.json', 'w'))"

    async def story(it: System) -> None:
        job = it.job(sys.executable, "-c", dump, *argv, env=env)
        ref = await it.backend.submit(job, it.submission())
        assert (await it.until(ref, JobState.ENDED)).code == 0
        seen_argv, seen_env = json.loads((it.scratch / "dump.json").read_text())
        assert seen_argv == argv
        assert {name: seen_env.get(name) for name in env} == env
        assert list(it.scratch.rglob("pwned*")) == []

    play(system, story)


@pytest.mark.story("SEC-04")
@pytest.mark.parametrize(
    "name", ["A;touch pwned", "LD_PRELOAD\nX", "SLURM_JOB_ID", "", "FT_JOB", "PET_RDZV_ID", "1A", "Ä"]
)
def test_a_bad_variable_name_is_an_error_before_anything_is_created(system: System, name: str) -> None:
    """At construction, with the name in the message."""
    with pytest.raises(ValueError, match="is not allowed"):
        system.job("true", env={name: "1"})


def test_what_is_wrong_is_told_before_anything_is_created(system: System) -> None:
    """And nothing exists afterwards."""

    async def story(it: System) -> None:
        job = it.job("no-such-program", nodes=1)
        with pytest.raises(SubmissionRefusedError, match="command: 'no-such-program' is not allowed"):
            it.backend.check(job)
        with pytest.raises(SubmissionRefusedError):
            await it.backend.submit(job, it.submission())
        assert await _find(it, it.submission().name) is None

    play(system, story)


async def _value(value: object) -> Any:
    return value


async def _find(it: System, name: str, chain: str = CHAIN) -> Any:
    return await it.backend.find(name, chain, it.job("true"))  # type: ignore[call-arg]


async def _fence(it: System, name: str, chain: str = CHAIN) -> None:
    await it.backend.fence(name, chain, it.job("true"))  # type: ignore[call-arg]


# The story SEC-quoting: what users write, and what must arrive.
ARGV: list[list[str]] = [
    ["python", "train.py", "--name", 'it\'s "quoted"'],
    ["python", "train.py", "--dates=1:7", "sampling=c(4,2*7+6)"],
    ["python", "-c", "print('$(touch pwned)')"],
    ["python", "-c", "print('`touch pwned`; touch pwned & #')"],
    ["python", "train.py", "line1\nline2"],
    ["python", "train.py", ""],
    ["python", "train.py", "--re", "^.*\\d{2,}$ | *.pt ~ !x"],
    ["python", "train.py", "ключ=значение"],
    ["python", "train.py", "-"],
    ["sh", "-c", "echo a b | cat"],
]
ENV: list[dict[str, Any]] = [
    {"k": "GOOD", "v": "two  blanks"},
    {"k": "MULTI", "v": "a\nb=c"},
    {"k": "QUOTE", "v": "'\"$HOME`id`"},
    {"k": "COMMA", "v": "x,y=z"},
]
