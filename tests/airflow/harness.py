"""One real Airflow for many runs at once: start them, break things, and check each run's whole story afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from airflow_ft.backends.local import inventory
from airflow_ft.cli.standalone import main as airflow_ft_command
from airflow_ft.core.chain import Chain
from demo.airflow_client import UNMAPPED, AirflowApiError, AirflowClient
from demo.airflow_settings import USER
from demo.stack import AirflowStack

DAGS = Path(__file__).parent / "dags"
TASK = "train"
ENDED = ("success", "failed")
CANARY = "canary-Jb7kTq2WvNx9"  # a secret that must never be found anywhere
SEPARATOR = "=== status "
COMMANDS = f"""
import sys
from airflow.cli import cli_parser
parser = cli_parser.get_parser()
for line in sys.argv[1:]:
    args = parser.parse_args(line.split())
    try:
        status = args.func(args)
    except SystemExit as end:
        status = end.code
    print("{SEPARATOR}", status or 0)
"""
PATIENCE = 240.0  # for what takes 30 s on a quiet machine with two cores


@dataclass(frozen=True)
class Run:
    """A DAG run of a test; with ``map_index`` one task instance of it."""

    dag_id: str
    run_id: str
    map_index: int = UNMAPPED

    @property
    def key(self) -> tuple[str, str, str]:
        """What the REST client wants."""
        return self.dag_id, self.run_id, TASK


@dataclass
class Harness:
    """A stack, the folders beside it, and a guard that starts a component again when it died."""

    folder: Path
    database: str | None = None
    template: Path | None = None
    deaths: list[str] = field(default_factory=list)
    counter: int = 0

    def __post_init__(self) -> None:
        self.points, self.story, self.root = (self.folder / name for name in ("points", "story", "root"))
        for folder in (self.points, self.story, self.root):
            folder.mkdir(parents=True)
        self.dags = self.folder / "dags"
        shutil.copytree(DAGS, self.dags, ignore=shutil.ignore_patterns("__pycache__"))
        environment = {
            "AIRFLOW_FT_CRASH_POINTS": str(self.points),
            "AIRFLOW_FT_LOCAL_ROOT": str(self.root),
            "TRAINING_STORY": str(self.story),
            "AIRFLOW_VAR_HF_TOKEN": CANARY,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,outsider:",
            "AIRFLOW__FAULT_TOLERANCE__TRIGGERER_WAIT_SECONDS": "40",
            "AIRFLOW__FAULT_TOLERANCE__COLLECT_SECONDS": "4",
            "AIRFLOW__FAULT_TOLERANCE__NOTIFIERS": "alarms.note",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(DAGS / "modules"), os.environ.get("PYTHONPATH")])),
            # The tasks of a scheduler that was killed are found 300 s later by default.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "4",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
        }
        self.stack = AirflowStack(self.folder / "home", self.dags, self.database, extra_env=environment)
        self._lock = threading.Lock()
        self._unguarded: set[str] = set()
        self._stopping = threading.Event()
        self._guard = threading.Thread(target=self._watch_components, daemon=True)

    # ---- begin and end ----

    def boot(self) -> None:
        """Start Airflow and wait until it knows the DAGs."""
        self.stack.prepare(template=self.template)
        self.stack.start()
        self.stack.wait_healthy()
        self._guard.start()
        self.client.wait_for_dag("one_node", PATIENCE)

    def shut_down(self) -> None:
        """End everything, training too. Leaves no process behind."""
        self._stopping.set()
        if self._guard.is_alive():
            self._guard.join()
        self.stack.stop()
        for job in inventory.list_jobs(str(self.root)):
            if not job.closed:
                airflow_ft_command(["cancel", "--root", str(self.root), job.name])

    @property
    def client(self) -> AirflowClient:
        """The REST client."""
        return self.stack.client()

    def _watch_components(self) -> None:
        while not self._stopping.wait(0.3):
            with self._lock:
                for component in ("triggerer", "scheduler"):
                    if component not in self._unguarded and not self.stack.is_running(component):
                        self.deaths.append(component)
                        self.stack.restart(component)

    @contextmanager
    def unguarded(self, *components: str) -> Iterator[None]:
        """Let components stay dead: the test kills and starts them itself."""
        with self._lock:
            self._unguarded.update(components)
        try:
            yield
        finally:
            with self._lock:
                for component in components:
                    if not self.stack.is_running(component):
                        self.stack.restart(component)
                self._unguarded.difference_update(components)
            self.stack.wait_healthy(PATIENCE)

    @contextmanager
    def second_triggerer(self) -> Iterator[None]:
        """Run another triggerer for a while; when it dies, another one."""
        twins = [self._another_triggerer()]
        over = threading.Event()

        def guard() -> None:
            while not over.wait(0.3):
                if twins[-1].poll() is not None:
                    twins.append(self._another_triggerer())

        guarding = threading.Thread(target=guard, daemon=True)
        guarding.start()
        try:
            yield
        finally:
            over.set()
            guarding.join()
            with suppress(psutil.Error):
                for process in psutil.Process(twins[-1].pid).children(recursive=True):
                    process.kill()
            twins[-1].kill()
            for twin in twins:
                twin.wait()

    def _another_triggerer(self) -> subprocess.Popen[bytes]:
        with self.stack.log_path("triggerer").open("ab") as output:
            return subprocess.Popen(
                [self.stack.python, "-m", "airflow", "triggerer", "--skip-serve-logs"],
                env=self.stack.environment("twin"),  # a name of its own: who ends "the triggerer" leaves it alone
                cwd=self.stack.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``airflow …`` in the stack's own environment."""
        return self.stack.command(*arguments, seconds=PATIENCE)

    def commands(self, *lines: str) -> list[str]:
        """Run several ``airflow …`` in one process (each start takes seconds). Returns what each has printed."""
        done = subprocess.run(
            [self.stack.python, "-c", COMMANDS, *lines],
            env=self.stack.environment("cli"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stdout.count(SEPARATOR) == len(lines), done.stdout + done.stderr
        return done.stdout.split(SEPARATOR)[:-1]

    @staticmethod
    def parent(pid: int) -> int:
        """The parent of a process: of a task's, its supervisor."""
        return int(psutil.Process(pid).ppid())

    # ---- runs ----

    def start(
        self, dag_id: str, arguments: str = "", *, name: str = "", arm: dict[str, str] | None = None, **conf: Any
    ) -> Run:
        """Trigger a run. ``arm`` maps crash points to what happens there."""
        self.counter += 1
        run_id = f"{self.counter:03d}-{name or 'run'}"
        for point, what in (arm or {}).items():
            self.arm(point, run_id, what)
        self.wait(lambda: self._triggered(dag_id, run_id, {"args": arguments, **conf}), f"a run of {dag_id}")
        return Run(dag_id, run_id)

    def _triggered(self, dag_id: str, run_id: str, conf: dict[str, Any]) -> bool:
        try:
            self.client.trigger(dag_id, conf=conf, run_id=run_id)
        except AirflowApiError as error:
            if error.status < 500 and error.status != 409:  # sqlite was locked; it is there already
                raise
            return error.status == 409
        return True

    def arm(self, point: str, run_id: str, what: str) -> None:
        """Let something happen when this run reaches a crash point."""
        path = self._point(point, run_id)
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(what)
        temporary.rename(path)

    def reached(self, point: str, run: Run) -> int | None:
        """The process that has reached an armed point."""
        with suppress(OSError, IndexError, ValueError):
            return int(self._point(point, run.run_id, ".reached").read_text().split()[1])
        return None

    def wait_reached(self, point: str, run: Run, seconds: float = PATIENCE) -> int:
        """Wait for that."""
        return int(self.wait(lambda: self.reached(point, run), f"{run.run_id} to reach {point}", seconds))

    def release(self, point: str, run: Run) -> None:
        """Let a process go on that waits at a point."""
        self._point(point, run.run_id, ".go").touch()

    def _point(self, point: str, run_id: str, suffix: str = "") -> Path:
        return self.points / f"{point}@{run_id}{suffix}"

    def wait(self, look: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait for something, with a deadline."""
        return self.client.wait(look, what, seconds)

    def state(self, run: Run) -> str | None:
        """The state of the run's task; ``None`` if it was deleted."""
        try:
            return self.client.task_instance(*run.key, map_index=run.map_index)["state"]
        except AirflowApiError as error:
            if error.status != 404:
                raise
            return None

    def wait_state(self, run: Run, *states: str, seconds: float = PATIENCE) -> str:
        """Wait until the task is in one of these states."""
        what = f"{run.dag_id} {run.run_id} to be {' or '.join(states)}"
        reached = lambda: found if (found := self.state(run)) in states else None  # noqa: E731
        return str(self.client.wait(reached, what, seconds, explain=lambda: self.explain(run)))

    def try_number(self, run: Run) -> int:
        """The number of the run's latest try."""
        return int(self.client.task_instance(*run.key, map_index=run.map_index)["try_number"])

    def wait_deferred_and_running(self, run: Run) -> None:
        """Wait until the task is deferred and its training makes steps."""
        self.wait_state(run, "deferred")
        self.wait(lambda: any(told["what"] == "start" for told in self.told(run)), f"{run.run_id} to train")

    def wait_watched(self, run: Run) -> None:
        """Wait until the training makes steps, and its trigger runs (it has published what it sees)."""
        self.wait_deferred_and_running(run)
        self.wait(lambda: self.client.xcom(*run.key, "ft_progress", run.map_index), f"the watch of {run.run_id}")

    def wait_ended(self, runs: list[Run], seconds: float = PATIENCE) -> None:
        """Wait until all of them have ended."""
        deadline = time.monotonic() + seconds
        for run in runs:
            self.wait_state(run, *ENDED, seconds=max(1.0, deadline - time.monotonic()))

    def enough(self, run: Run) -> None:
        """Let an endless training come to its end."""
        (self.story / f"{self.chain(run).chain_id}.enough").touch()

    def explain(self, run: Run) -> str:
        """Everything that is known of a run, for a failed test."""
        lines = [f"{run}: {self.state(run)}"]
        with suppress(Exception):
            lines.append(self.text(run))
            tries = self.client.tries(*run.key, map_index=run.map_index)
            for number in [one["try_number"] for one in tries][-3:]:
                lines.append(f"--- log of try {number}\n{self.client.log(*run.key, number, run.map_index)[-6000:]}")
        return "\n".join(lines)

    def page(self, url: str, user: str = USER) -> httpx.Response:
        """Get a page of the web server as a user of its own."""
        passwords = json.loads((self.stack.home / "simple_auth_manager_passwords.json.generated").read_text())
        with httpx.Client(base_url=self.stack.url, trust_env=False, timeout=30) as client:
            answer = client.post("/auth/token", json={"username": user, "password": passwords[user]})
            answer.raise_for_status()
            return client.get(url, headers={"Authorization": f"Bearer {answer.json()['access_token']}"})

    # ---- what is left of a run ----

    def chain(self, run: Run) -> Chain:
        """The head of its retry chain."""
        return Chain.from_record(self.client.state_store(*run.key, map_index=run.map_index)["ft/chain"])

    def text(self, run: Run) -> str:
        """The retry chain as a person reads it."""
        shown = self.client.retry_chain(*run.key, map_index=run.map_index)
        events = [f"{event['kind']}: {event['text']}" for event in shown["chain"].get("events", ())]
        return "\n".join([shown["headline"], *events, *(str(told) for told in self.told(run))])

    def jobs(self, run: Run) -> list[inventory.ListedJob]:
        """Every job that was ever created for it, whatever chain it belongs to."""
        found = inventory.list_jobs(str(self.root))
        wanted = {"dag_id": run.dag_id, "run_id": run.run_id, "map_index": str(run.map_index)}
        return [job for job in found if wanted.items() <= job.tags.items()]

    def told(self, run: Run) -> list[dict[str, Any]]:
        """What the processes of its training have told, in order."""
        from tests.airflow.stories import read_lines

        chains = sorted({job.chain_id for job in self.jobs(run)})
        return [line for chain in chains for line in read_lines(self.story / f"{chain}.jsonl")]

    def processes(self, run: Run) -> list[psutil.Process]:
        """Living processes of its training, agents included, found by their environment."""
        names = {job.name for job in self.jobs(run)}
        return [process for process, name in marked_processes(self.root) if name in names]

    @staticmethod
    def living(root: Path) -> list[tuple[psutil.Process, str]]:
        """Living processes of every training below a root folder."""
        return list(marked_processes(root))


def marked_processes(root: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Every living process of a training below this root, with the name of its job."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            where = environment.get("FT_AGENT_DIR") or " ".join(process.cmdline())  # an agent has it in its arguments
            if str(root) in where and "FT_JOB" in environment and process.status() != psutil.STATUS_ZOMBIE:
                yield process, environment["FT_JOB"].partition(":")[0]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
