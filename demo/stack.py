"""A real Airflow on this machine, whose parts can be killed one by one: for the demo and for the tests.

An `AirflowStack` is api-server, scheduler (LocalExecutor), dag-processor and triggerer, each a process group of its
own, in an AIRFLOW_HOME of its own and on free ports. It is fed by a DAG folder and writes everything below its home:

    airflow.cfg, secrets.json         the configuration (demo.airflow_settings)
    airflow.db                        the database, unless it is a PostgreSQL (demo.airflow_database)
    logs/scheduler.log, ...           what each component printed, over all its starts
    logs/dag_id=.../...               the logs of the tries

`stop` ends all of it, also what sits in other sessions or was left by a killed parent (demo.airflow_processes), except
for training that airflow_ft started: that is meant to outlive Airflow. `airflow standalone` would be one call, but its
parts can't be killed apart, and it leaves children behind.
"""

from __future__ import annotations

import atexit
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx
import psutil  # type: ignore[import-untyped]

from demo import airflow_database, airflow_processes, airflow_settings, ports
from demo.airflow_client import AirflowClient
from demo.interpreter import distribution_version

COMPONENTS: Final = ("api-server", "scheduler", "dag-processor", "triggerer")
# All components share this machine's files: the api-server reads the logs from disk, and needs no server for them.
ARGUMENTS: Final = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}
HEALTH_NAMES: Final = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
TERM_SECONDS = 10.0  # a clean end takes 1 to 5 s (measured); training isn't ended here, so nothing needs more
TRIGGERER_TERM_SECONDS = (
    3.0  # once it ran a trigger it may not end at all (seen 2 of 2): its triggers are in the database
)
KILL_SECONDS = 10.0
FATAL = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT)


class AirflowStackError(Exception):
    """A part of the Airflow stack could not be started or stopped; the message ends with its last lines."""


class AirflowStack:
    """One Airflow.

    :param home: its AIRFLOW_HOME; created if absent. A stack can be built again in the same home and goes on there.
    :param dags_folder: where its DAGs are.
    :param database: `postgresql+psycopg2://...`; a sqlite file in the home by default.
    :param extra_env: environment for every component, stronger than `airflow.cfg`.
    :param python: the interpreter that has Airflow.
    """

    def __init__(
        self,
        home: Path,
        dags_folder: Path,
        database: str | None = None,
        extra_env: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.home = home.resolve()
        self.dags_folder = dags_folder.resolve()
        self.database = database or f"sqlite:///{self.home / 'airflow.db'}"
        self.python = python
        self._extra_env = dict(extra_env or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started_at: dict[str, datetime.datetime] = {}
        self._client: AirflowClient | None = None
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "logs").mkdir(exist_ok=True)
        api, trigger_logs, worker_logs = ports.free_ports(3)
        self.url = f"http://127.0.0.1:{api}"
        settings = airflow_settings.Ports(api=api, trigger_logs=trigger_logs, worker_logs=worker_logs)
        airflow_settings.write(self.home, self.dags_folder, self.database, settings)

    def __enter__(self) -> AirflowStack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- before the start ----

    def prepare(self, template: Path | None = None) -> None:
        """Migrate the database, or copy a migrated one.

        :param template: the folder where migrated databases are kept between stacks (see demo.airflow_database).
        """
        airflow_database.prepare(self.database, template, self.python, self._migrate)

    def _migrate(self, database: str) -> None:
        environment = self.environment("migrate") | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database}
        log = self.log_path("migrate")
        with log.open("ab") as output:
            done = subprocess.run(
                [self.python, "-m", "airflow", "db", "migrate"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if done.returncode:
            raise AirflowStackError(f"airflow db migrate failed with {done.returncode}:\n{_tail(log)}")

    def environment(self, component: str) -> dict[str, str]:
        """The environment of a component: the caller's, without the caller's own Airflow."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        ours = {"AIRFLOW_HOME": str(self.home), "SCARF_ANALYTICS": "false", "PYTHONUNBUFFERED": "1"}
        for name in ("NO_PROXY", "no_proxy"):  # workers talk to the api-server by HTTP
            ours[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
        if distribution_version(self.python, "airflow-ft") is None:
            root = str(Path(__file__).resolve().parent.parent)
            ours["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        return inherited | ours | self._extra_env | airflow_processes.marks(self.home, component)

    def command(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run `airflow ...` in this stack's environment, for so many seconds at most; its output is captured."""
        return subprocess.run(
            [self.python, "-m", "airflow", *arguments],
            env=self.environment("cli"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def log_path(self, component: str) -> Path:
        """The file that a component prints to."""
        return self.home / "logs" / f"{component}.log"

    # ---- start and health ----

    def start(self, *components: str) -> None:
        """Start these components (all of them by default); those that run are left alone.

        So are the orphans of a main process that was killed: use `restart` to end them first.
        """
        atexit.register(self.stop)
        for component in components or COMPONENTS:
            if component not in COMPONENTS:
                raise ValueError(f"component: {component!r} is unknown. Give one of {', '.join(COMPONENTS)}.")
            if not self.is_running(component):
                self._start(component)

    def _start(self, component: str) -> None:
        self._started_at[component] = datetime.datetime.now(datetime.timezone.utc)
        with self.log_path(component).open("ab") as output:
            self._processes[component] = subprocess.Popen(
                [self.python, "-m", "airflow", component, *ARGUMENTS.get(component, [])],
                env=self.environment(component),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self, component: str) -> bool:
        """Whether the component's main process lives (or is stopped by a signal)."""
        process = self._processes.get(component)
        return process is not None and process.poll() is None

    def pid(self, component: str) -> int:
        """The component's main process; its process group has the same number."""
        return self._processes[component].pid

    def processes(self, component: str | None = None) -> list[psutil.Process]:
        """Every process of the component, or of the stack: also in other sessions, without training."""
        return airflow_processes.find(self.home, component)

    def wait_healthy(self, timeout_seconds: float = 180) -> None:
        """Wait until every started component has shown life since its (last) start."""
        deadline = time.monotonic() + timeout_seconds
        while missing := self._unhealthy():
            for component, process in self._processes.items():
                if process.poll() is not None:
                    tail = _tail(self.log_path(component))
                    raise AirflowStackError(f"{component} ended with {process.returncode}:\n{tail}")
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {name}\n{_tail(self.log_path(name))}" for name in missing)
                raise AirflowStackError(f"not healthy after {timeout_seconds:g} s: {', '.join(missing)}\n{tails}")
            time.sleep(0.25)

    def _unhealthy(self) -> list[str]:
        try:
            health = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5, trust_env=False).json()
        except (httpx.HTTPError, json.JSONDecodeError):
            return list(self._processes)
        return [name for name in self._processes if name in HEALTH_NAMES and not self._is_healthy(name, health)]

    def _is_healthy(self, component: str, health: dict[str, dict[str, str | None]]) -> bool:
        """An old heartbeat counts as healthy for Airflow: one since our start is asked for."""
        name = HEALTH_NAMES[component]
        heartbeat = health.get(name, {}).get(f"latest_{name}_heartbeat")
        if not heartbeat or health[name].get("status") != "healthy":
            return False
        return datetime.datetime.fromisoformat(heartbeat) > self._started_at[component]

    # ---- faults ----

    def kill(self, component: str, number: signal.Signals = signal.SIGKILL, *, main_only: bool = False) -> None:
        """Send a signal to a component: -9, or STOP and CONT.

        :param main_only: only to its main process. By default to everything that belongs to it: the scheduler's
            workers with their tasks, the triggerer's runner, the parsers. Training goes on in either case.
        """
        main = self._processes[component]
        targets = [found for found in self.processes(component) if not main_only or found.pid == main.pid]
        airflow_processes.send(targets, number)
        if number in FATAL:
            main.wait(TERM_SECONDS + KILL_SECONDS)

    def restart(self, component: str) -> None:
        """End what is left of the component, and start it again; `wait_healthy` tells when it is back."""
        self._end([component])
        self._start(component)

    # ---- the end ----

    def stop(self) -> None:
        """End everything, TERM first; may be called at any time and again. Training of airflow_ft goes on."""
        if self._client:
            self._client.close()
            self._client = None
        self._end(list(reversed(COMPONENTS)))
        left = airflow_processes.wait_until_gone(self._kill_all, KILL_SECONDS)
        if left:
            raise AirflowStackError(f"These processes could not be killed: {[process.pid for process in left]}")
        self._processes.clear()
        atexit.unregister(self.stop)  # only now: a second Ctrl-C may end this before it is done

    def _end(self, components: list[str]) -> None:
        found = {component: self.processes(component) for component in components}
        for component, processes in found.items():
            main = self._processes.get(component)
            mains = [process for process in processes if main and process.pid == main.pid]
            if mains:
                airflow_processes.send(mains, signal.SIGTERM)
            else:  # orphans of a killed one: idle workers don't end by TERM (10 s in vain, measured)
                airflow_processes.send(processes, signal.SIGKILL)
            airflow_processes.send(processes, signal.SIGCONT)  # a stopped one would never hear of it
        sent_at = time.monotonic()
        for component in components:
            grace = TRIGGERER_TERM_SECONDS if component == "triggerer" else TERM_SECONDS
            search = lambda name=component: self._reaped(name)  # noqa: E731
            left = airflow_processes.wait_until_gone(search, max(0.0, sent_at + grace - time.monotonic()))
            airflow_processes.send(left, signal.SIGKILL)
            airflow_processes.wait_until_gone(search, KILL_SECONDS)
            if component in self._processes:
                self._processes[component].wait(KILL_SECONDS)

    def _reaped(self, component: str) -> list[psutil.Process]:
        if component in self._processes:
            self._processes[component].poll()
        return self.processes(component)

    def _kill_all(self) -> list[psutil.Process]:
        left = self.processes()
        airflow_processes.send(left, signal.SIGKILL)
        return left

    # ---- talking to it ----

    def client(self) -> AirflowClient:
        """The REST client, logged in as the administrator."""
        if self._client is None:
            self._client = AirflowClient(self.url, airflow_settings.USER, self.password())
        return self._client

    def password(self) -> str:
        """The password that Airflow generated for the user `admin`; it exists once the api-server was up."""
        path = self.home / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(path.read_text())[airflow_settings.USER])


def _tail(path: Path, lines: int = 30) -> str:
    if not path.exists():
        return f"({path} does not exist)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
