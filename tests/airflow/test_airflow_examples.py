"""The example DAGs do what they show: each is run by ``airflow dags test``, with real training."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from demo.stack import AirflowStack

pytestmark = [pytest.mark.airflow, pytest.mark.torch, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).parents[2] / "dags"


class Examples:
    """The examples in an Airflow of their own. Nothing of it runs between two commands."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.folder = folder
        self.stack = AirflowStack(folder / "home", EXAMPLES, extra_env={"AIRFLOW_FT_LOCAL_ROOT": str(folder / "root")})
        self.stack.prepare(template=template)

    def run(self, dag_id: str, **conf: Any) -> None:
        """Run a DAG to its end. Fails with what was printed if it fails."""
        done = self.stack.command("dags", "test", dag_id, "--conf", json.dumps(conf), seconds=400)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with closing(sqlite3.connect(self.stack.home / "airflow.db")) as database:
            return database.execute(question).fetchall()

    def results(self, task_id: str) -> list[Any]:
        """Return what a task's instances returned, in the order of their map indexes."""
        rows = self.ask(
            f"select value from xcom where task_id = '{task_id}' and key = 'return_value' order by map_index"
        )
        return [json.loads(value) if isinstance(value, str) else value for (value,) in rows]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Examples:
    return Examples(tmp_path_factory.mktemp("examples"), request.config.cache.mkdir("airflow-template"))


@pytest.mark.row("S1")
def test_a_sweep_trains_every_seed_and_names_the_best(examples: Examples) -> None:
    examples.run("sweep", seeds=[1, 2], steps=6, out=str(examples.folder / "sweep"))
    trained, (best,) = examples.results("train"), examples.results("best")
    assert [result["step"] for result in trained] == [6, 6]
    assert len({result["chain_id"] for result in trained}) == 2
    assert best["loss"] == min(result["loss"] for result in trained)


@pytest.mark.thorough
@pytest.mark.row("S1")
def test_next_week_goes_on_from_the_last_checkpoint_and_each_one_is_announced(examples: Examples) -> None:
    out = str(examples.folder / "weekly")
    for _week in (1, 2):
        examples.run("weekly_pretraining", steps_a_week=4, checkpoint_every=2, out=out)
    announced = [json.loads(extra) for (extra,) in examples.ask("select extra from asset_event order by id")]
    assert sorted(checkpoint["step"] for checkpoint in announced) == [2, 4, 6, 8]
    logs = (examples.folder / "root" / "jobs").glob("pretrain-*/nodes/*/output.log")
    assert sum("resumed from checkpoint step 4" in log.read_text() for log in logs) == 1


@pytest.mark.row("S1")
def test_the_explicit_form_trains_and_hands_its_result_on(examples: Examples) -> None:
    """With a branch of the author's own, and tasks for faults that didn't come."""
    examples.run("explicit_form", steps=6, checkpoint_every=3, out=str(examples.folder / "explicit"))
    ((trained,), (evaluated,)) = examples.results("pretrain.result"), examples.results("evaluate")
    assert (trained["step"], trained["restarts"]) == (6, 0)
    assert evaluated == "Evaluating the checkpoint of step 6, after 0 restarts."
    question = "select count(*) from task_instance where dag_id = 'explicit_form' and state = 'skipped'"
    assert examples.ask(question) == [(28,)], "all stages of four attempts, but the first watch"


@pytest.mark.thorough
@pytest.mark.row("S4")
def test_a_policy_in_a_file_beside_the_dag_is_followed(examples: Examples) -> None:
    examples.run("policy_file", steps=3, out=str(examples.folder / "policy"))
    (trained,) = [one for one in examples.results("pretrain") if one["step"] == 3]
    assert trained["restarts"] == 0
    assert trained["chain_id"].startswith("pretrain-")


@pytest.mark.row("S8")
def test_what_somebody_has_started_by_hand_is_watched_by_pid_or_by_log(examples: Examples, tmp_path: Path) -> None:
    """Both to its end: its log says that all steps were made."""
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {step}/9 loss 2.5\n" for step in range(1, 10)))
    with subprocess.Popen(["sleep", "0"]) as training:
        pass
    examples.run("judge_a_process", pid=training.pid, log=str(log))
    examples.run("watch_a_log", log=str(log))
    (judged,) = examples.results("judge")
    question = "select value from xcom where dag_id = 'watch_a_log' and key = 'return_value'"
    ((watched,),) = examples.ask(question)
    assert judged["step"] == 9
    assert (json.loads(watched) if isinstance(watched, str) else watched)["step"] == 9
