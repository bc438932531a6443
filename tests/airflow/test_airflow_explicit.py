"""The explicit form on a real Airflow: the stories of the single operator, and the same chain, record by record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from tests.airflow.harness import ENDED, Harness, Run
from tests.airflow.stories import check, kinds, read_lines

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600), pytest.mark.row("S1")]

BUG = "ValueError: shape mismatch"  # one that stops
# The command line of each story, for both forms.
STORIES = {
    "in-place": "--crash-at 3",
    "fail-fast": f"--crash-at 3 --say '{BUG}'",
}
FORMS = ("one_node", "explicit_one_node")
GROUP = "train"


@dataclass(frozen=True)
class Explicit(Run):
    """A run of the explicit form: the group's last task has the chain."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dag_id, self.run_id, f"{GROUP}.result"


def start(airflow: Harness, form: str, story: str, arguments: str = "") -> Run:
    run = airflow.start(form, arguments, name=story)
    return Explicit(run.dag_id, run.run_id) if form.startswith("explicit") else run


def states(airflow: Harness, run: Run) -> dict[str, str]:
    """The state of each task of the group, by its name in it."""
    found = airflow.client.task_instances(run.dag_id, run.run_id)
    return {one["task_id"].removeprefix(f"{GROUP}."): one["state"] for one in found}


@pytest.mark.story("RST-04")
@pytest.mark.story("RST-07")
def test_both_forms_keep_the_same_chain_of_a_crash(airflow: Harness) -> None:
    """Restarted in place, and one that no restart helps: the same as the single operator's, record by record."""
    runs = {
        (form, story): start(airflow, form, story, STORIES[story])
        for story in ("in-place", "fail-fast")
        for form in FORMS
    }
    airflow.wait_ended(list(runs.values()))
    for form in FORMS:
        check(airflow, runs[form, "in-place"], in_place=1)
        assert kinds(check(airflow, runs[form, "fail-fast"], state="failed")) == ["stopped"]
    for story in ("in-place", "fail-fast"):
        single, explicit = (records(airflow, runs[form, story]) for form in FORMS)
        assert explicit == single, story
        check_tasks(airflow, story, runs["explicit_one_node", story])


def check_tasks(airflow: Harness, story: str, run: Run) -> None:
    """What ran is what was needed; everything else was skipped."""
    ended = lambda: airflow.client.run_state(run.dag_id, run.run_id) in ENDED  # noqa: E731
    airflow.wait(ended, f"the clean-up of {run.run_id}")
    found = states(airflow, run)
    acted = {"in-place": "restart_in_place", "fail-fast": "give_up"}
    for action in acted.values():
        assert found[f"attempt_0.{action}"] == ("success" if action == acted[story] else "skipped"), story
    assert found["attempt_0.classify"] == found["clean_up"] == found["on_fault_done"] == "success", story
    assert found["attempt_2.watch"] == "skipped", story
    assert found["attempt_1.verify_recovery"] == ("skipped" if story == "fail-fast" else "success"), story
    tickets = read_lines(airflow.story / f"{airflow.chain(run).chain_id}.tickets")
    assert [ticket["number"] for ticket in tickets] == [0], story
    assert tickets[0]["action"], story


# What differs from run to run: times, and the names and numbers of what was run.
VOLATILE = re.compile(
    r"(_at|_seconds|^at|^since|^uid|^digest|^pid|^salt|^where|^log_path|^try_number|^path|^checkpoint_path"
    r"|^resume_from|^policy|^interval|^started|^window|^free_at|^notified|^next_event|^sending|^id)$"
)


def records(airflow: Harness, run: Run) -> Any:
    """The chain without what differs from run to run."""
    shown = airflow.client.retry_chain(*run.key, map_index=run.map_index)
    names = [shown["chain"]["chain_id"], run.run_id, run.dag_id]
    return _plain([shown["chain"]["events"], *shown["attempts"]], names)


def _plain(value: Any, names: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item, names) for key, item in value.items() if not VOLATILE.search(key)}
    if isinstance(value, list):
        return [_plain(item, names) for item in value]
    if isinstance(value, str):
        for name in names:
            value = value.replace(name, "…")
        return re.sub(r"\d+(\.\d+)? s\b|\d\d:\d\d:\d\d|n\d+", "…", value)
    return value
