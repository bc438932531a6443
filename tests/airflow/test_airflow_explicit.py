"""The explicit form on a real Airflow: the stories of the single operator, and the same chain, record by record."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_ft.attempts.record import ADOPTED, TRY_LOST
from airflow_ft.backends.local import inventory
from airflow_ft.core.chain import Chain, End
from tests.airflow.harness import ENDED, Harness, Run
from tests.airflow.stories import check, kinds, read_lines

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600), pytest.mark.row("S1")]

FORMS = ("single", "explicit")
GROUP = "train"
WATCH, RESULT, CLEAN_UP = "attempt_0.watch", "result", "clean_up"
ACTIONS = ("restart_in_place", "resubmit", "give_up")
NO_DNS = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
SICK = "RuntimeError: CUDA error: uncorrectable ECC error encountered: a node is sick"
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)"


@dataclass(frozen=True)
class Explicit(Run):
    """A run of the explicit form: the group's last task has the chain."""

    task: str = RESULT

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dag_id, self.run_id, f"{GROUP}.{self.task}"

    def at(self, task: str) -> Explicit:
        """The same run, at another one of its tasks."""
        return replace(self, task=task)


def at(run: Run, task: str) -> Run:
    """The run at a task of the explicit form; the single operator has one alone."""
    return run.at(task) if isinstance(run, Explicit) else run


# --- what a person, or the cluster, does meanwhile -----------------------------------------------------------------


def lose_its_node(airflow: Harness, run: Run) -> None:
    (job,) = airflow.jobs(run)
    form = run.dag_id.partition("_")[0]
    inventory.lose_node(str(airflow.root), f"stories-{form}", job.nodes[0])


def clear(airflow: Harness, run: Run) -> None:
    airflow.client.clear(run.dag_id, run.run_id)


def mark_failed(airflow: Harness, run: Run) -> None:
    airflow.client.mark(*at(run, WATCH).key, "failed")


@dataclass(frozen=True)
class Story:
    """What happens, and what has to come of it. ``acted``: what was done about the first fault."""

    arguments: str
    acted: str
    expected: dict[str, Any]
    meanwhile: Callable[[Harness, Run], None] | None = None
    dag: str = "story"


STORIES = {
    "crash": Story("--crash-at 3", "restart_in_place", {"in_place": 1}),
    "lost-node": Story("--endless", "resubmit", {"attempts": 2, "restarts": 1, "killed": 1}, lose_its_node),
    "hang": Story("--hang-at 4", "restart_in_place", {"in_place": 1, "killed": 1}),
    "oom-gpu": Story(f"--crash-at 3 --say '{OOM}'", "give_up", {"state": "failed"}),
    "budget": Story(
        f"--crash-at 3 --times 2 --apart 2 --say '{NO_DNS}'",
        "resubmit",
        {"state": "failed", "attempts": 2, "restarts": 1},
    ),
    "bisect": Story(
        f"--crash-at 3 --say '{SICK}'", "resubmit", {"attempts": 2, "restarts": 1, "nodes": 2}, dag="search"
    ),
    "cleared": Story("--endless", "", {"attempts": 2, "killed": 1, "segments": 2}, clear),
    "marked-failed": Story("--endless", "", {"state": "failed", "killed": 1}, mark_failed),
}

# Two stories at a time, in both forms: each run of the explicit form is two dozen tasks.
ROUNDS = [
    pytest.param("crash", "lost-node"),
    pytest.param("hang", "oom-gpu", marks=pytest.mark.thorough),
    pytest.param("budget", "bisect", marks=pytest.mark.thorough),
    pytest.param("cleared", "marked-failed", marks=pytest.mark.thorough),
]


@pytest.mark.story("SUB-07")
@pytest.mark.story("LIF-01")
@pytest.mark.story("LIF-08")
@pytest.mark.story("UIO-03")
@pytest.mark.story("RST-04")
@pytest.mark.story("RST-07")
@pytest.mark.story("RST-08")
@pytest.mark.parametrize(("one", "other"), ROUNDS)
def test_both_forms_keep_the_same_chain_of_every_story(airflow: Harness, one: str, other: str) -> None:
    """Eight stories, each in both forms: the chains are the same, times and names aside."""
    stories = {name: STORIES[name] for name in (one, other)}
    runs = {(form, name): start(airflow, form, name) for name in stories for form in FORMS}
    for (_, name), run in runs.items():
        if STORIES[name].meanwhile is not None:
            airflow.wait_deferred_and_running(at(run, WATCH))
    for (_, name), run in runs.items():
        if (act := STORIES[name].meanwhile) is not None:
            act(airflow, run)
    ended = {key: ended_at(run, key[1]) for key, run in runs.items()}
    airflow.wait_ended(list(ended.values()))
    for name, story in stories.items():
        chains = [checked(airflow, ended[form, name], story) for form in FORMS]
        same_steps = story.meanwhile is None
        single, explicit = (records(airflow, ended[form, name], steps=same_steps) for form in FORMS)
        assert explicit == single, name
        check_tasks(airflow, runs["explicit", name], name, chains[1])


def start(airflow: Harness, form: str, name: str) -> Run:
    run = airflow.start(f"{form}_{STORIES[name].dag}", STORIES[name].arguments, name=name)
    return Explicit(run.dag_id, run.run_id) if form == "explicit" else run


def ended_at(run: Run, name: str) -> Run:
    """The run at the task that has the chain in the end: what a person has stopped never comes to its result."""
    return at(run, CLEAN_UP) if name == "marked-failed" else run


def checked(airflow: Harness, run: Run, story: Story) -> Chain:
    airflow.wait(lambda: airflow.chain(run).open is None, f"the end of the chain of {run}")
    cleaned = isinstance(run, Explicit) and run.task == CLEAN_UP  # its own state says nothing of the training
    return check(airflow, run, **(story.expected | {"state": "success"} if cleaned else story.expected))


def check_tasks(airflow: Harness, run: Run, name: str, chain: Chain) -> None:
    """What ran is what was needed; everything else was skipped, and what comes after saw the training's end."""
    story, state = STORIES[name], STORIES[name].expected.get("state", "success")
    airflow.wait(lambda: airflow.client.run_state(run.dag_id, run.run_id) in ENDED, f"the end of {run.run_id}")
    found = states(airflow, run)
    assert found[RESULT] == ("upstream_failed" if name == "marked-failed" else state), name
    assert found[CLEAN_UP] == found["in_any_case"] == "success", name
    assert (found["after_success"] == "success") == (state == "success"), name
    assert (found["after_failure"] == "success") == (state == "failed"), name
    if name == "marked-failed":
        return
    for action in ACTIONS:
        assert found[f"attempt_0.{action}"] == ("success" if action == story.acted else "skipped"), f"{name}: {action}"
    assert found["attempt_0.watch"] == "success", name
    assert found["attempt_2.watch"] == "skipped", name
    tickets = read_lines(airflow.story / f"{chain.chain_id}.tickets")
    faults = [one for one in chain.events if one.kind in ("fault", "stopped")]
    assert len(tickets) == len(faults), name
    assert all(ticket["action"] and ticket["fault_class"] for ticket in tickets), name


def states(airflow: Harness, run: Run) -> dict[str, str]:
    """The state of each task of the run, by its name in the group."""
    found = airflow.client.task_instances(run.dag_id, run.run_id)
    return {one["task_id"].removeprefix(f"{GROUP}."): one["state"] for one in found}


@pytest.mark.thorough
@pytest.mark.story("LIF-06")
@pytest.mark.story("LIF-09")
@pytest.mark.story("SUB-08")
def test_groups_may_be_mapped_may_test_nodes_and_may_time_out_with_their_run(airflow: Harness) -> None:
    """Three runs at once."""
    mapped = airflow.start("explicit_mapped", name="mapped-groups")
    apart = airflow.start("explicit_apart", f"--crash-at 3 --say '{SICK}'", name="apart")
    limited = airflow.start("explicit_limit", "--endless", name="limited")
    limited = Explicit(limited.dag_id, limited.run_id)
    airflow.wait_deferred_and_running(limited.at(WATCH))
    for run in (mapped, apart):
        ends = lambda run=run: (found := airflow.client.run_state(run.dag_id, run.run_id)) in ENDED and found  # noqa: E731
        assert airflow.wait(ends, f"the end of {run}") == "success", states(airflow, run)
    check_mapped(airflow, mapped)
    check_tested(airflow, Explicit(apart.dag_id, apart.run_id))
    check_limited(airflow, limited)


def check_mapped(airflow: Harness, run: Run) -> None:
    """Each map index has a chain of its own."""
    done, restarted = (Mapped(run.dag_id, run.run_id, map_index=index) for index in range(2))
    assert kinds(check(airflow, done)) == ["succeeded"]
    check(airflow, restarted, in_place=1)


def check_tested(airflow: Harness, run: Explicit) -> None:
    """What a preflight and a bisect have found, the attempts after them avoid. It is watched in the worker."""
    found = states(airflow, run)
    assert [found[f"attempt_0.{name}"] for name in ("bisect", *ACTIONS)] == ["success", "skipped", "success", "skipped"]
    chain = airflow.chain(run)
    assert (chain.attempts, chain.ledger.restarts, chain.concluded) == (2, 1, End.SUCCEEDED)
    assert sorted(chain.excluded_nodes) == ["n1", "n4"]
    ran_on = [{one["node"] for one in airflow.told(run) if one["attempt"] == number} for number in range(2)]
    assert ran_on == [{"n1", "n2"}, {"n2", "n3"}]
    assert "Bisect: found n1" in "".join(event.text for event in chain.events)


def check_limited(airflow: Harness, run: Explicit) -> None:
    """A run that times out takes its training along, and its chain is kept although every task was skipped."""
    kept = lambda: "ft/chain" in airflow.client.state_store(*run.key) and airflow.chain(run)  # noqa: E731
    chain = airflow.wait(lambda: (found := kept()) and found.open is None and found, f"the chain of {run}")
    assert states(airflow, run)[RESULT] == states(airflow, run)[CLEAN_UP] == "skipped"
    airflow.wait(lambda: not airflow.processes(run), f"the end of the training of {run}")
    assert chain.concluded is End.CANCELLED
    assert chain.highest_step, "how far it had come is kept"


class Mapped(Run):
    """One index of the mapped group."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dag_id, self.run_id, f"each.{GROUP}.{RESULT}"


# What differs from run to run: times, and the names and numbers of what was run. Other stories lose nodes of the pool.
VOLATILE = re.compile(
    r"(_at|_seconds|^at|^since|^uid|^digest|^pid|^salt|^where|^log_path|^try_number|^path|^checkpoint_path"
    r"|^resume_from|^policy|^interval|^started|^window|^free_at|^notified|^next_event|^sending|^id|^seconds_beyond"
    r"|^pool_size)$"
)
NUMBERS = re.compile(r"\d+(\.\d+)? s\b|\d\d:\d\d:\d\d|n\d+")
# How far a training has come that goes on until somebody does something: whether it is known has to be the same.
STEPS = re.compile(r"(step|checkpoint|loaded|loss)$")
STEP_NUMBERS = re.compile(r"step [\d,]+")
OF_AIRFLOW = (TRY_LOST, ADOPTED)  # a try that a busy machine loses is no part of the training's story


def records(airflow: Harness, run: Run, *, steps: bool) -> Any:
    """The chain without what differs from run to run; ``steps``: whether steps are the same."""
    shown = airflow.client.retry_chain(*run.key, map_index=run.map_index)
    names = [shown["chain"]["chain_id"], run.run_id, run.dag_id]
    told = [event for event in shown["chain"]["events"] if event["kind"] not in OF_AIRFLOW]
    return _plain([told, *shown["attempts"]], names, steps)


def _plain(value: Any, names: list[str], steps: bool) -> Any:
    if isinstance(value, dict):
        kept = {key: _plain(item, names, steps) for key, item in value.items() if not VOLATILE.search(key)}
        return kept if steps else {key: "…" if item and STEPS.search(key) else item for key, item in kept.items()}
    if isinstance(value, list):
        return [_plain(item, names, steps) for item in value]
    if isinstance(value, str):
        for name in names:
            value = value.replace(name, "…")
        value = NUMBERS.sub("…", value)
        return value if steps else STEP_NUMBERS.sub("step …", value)
    return value
