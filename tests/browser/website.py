"""A real Airflow whose pages a browser looks at, with chains that real runs of the local backend make."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from airflow_ft.backends.local import inventory
from airflow_ft.cli.standalone import main as airflow_ft_command
from airflow_ft.core.chain import Chain
from demo.airflow_client import AirflowClient
from demo.stack import AirflowStack

SITE = Path(__file__).parent / "site"
CANARY = "canary-Xq3vRz8LmTw5"  # a secret that no page may show
USERS = {"admin": "admin", "viewer": "viewer", "only-oom": "viewer", "outsider": ""}
PATIENCE = 150.0
Key = tuple[str, str, str]


class Website:
    """A stack, its DAGs, and the runs that were started. ``more`` is environment for every component."""

    def __init__(self, folder: Path, template: Path | None = None, more: Mapping[str, str] | None = None) -> None:
        self.folder, self.template = folder, template
        self.root, self.story = folder / "root", folder / "story"
        for made in (self.root, self.story):
            made.mkdir(parents=True)
        shutil.copytree(SITE, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        environment = {
            "AIRFLOW_FT_LOCAL_ROOT": str(self.root),
            "STORY": str(self.story),
            "AIRFLOW_VAR_HF_TOKEN": CANARY,
            "AIRFLOW__CORE__AUTH_MANAGER": "per_dag_auth.PerDagAuthManager",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(folder / "dags"), os.environ.get("PYTHONPATH")])),
        }
        self.stack = AirflowStack(folder / "home", folder / "dags", extra_env=environment | dict(more or {}))

    def boot(self) -> None:
        """Start Airflow and wait until it knows the DAGs."""
        self.stack.prepare(template=self.template)
        self.stack.start()
        self.stack.wait_healthy()
        self.client.wait_for_dag("sweep", PATIENCE)

    def shut_down(self) -> None:
        """End everything, training too."""
        self.stack.stop()
        # In a thread of its own: the browser's event loop runs in this one.
        with ThreadPoolExecutor(1) as elsewhere:
            for job in inventory.list_jobs(str(self.root)):
                if not job.closed:
                    elsewhere.submit(airflow_ft_command, ["cancel", "--root", str(self.root), job.name]).result()

    @property
    def client(self) -> AirflowClient:
        """The REST client of the administrator."""
        return self.stack.client()

    def start(self, dag_id: str, run_id: str = "run", task_id: str = "pretrain") -> Key:
        """Trigger a run."""
        self.client.trigger(dag_id, run_id=run_id)
        return dag_id, run_id, task_id

    def state(self, key: Key, map_index: int = -1) -> str | None:
        """The state of a task."""
        return self.client.task_instance(*key, map_index=map_index)["state"]  # type: ignore[no-any-return]

    def wait_state(self, key: Key, *states: str, map_index: int = -1) -> None:
        """Wait until a task is in one of these states."""
        self.client.wait(lambda: self.state(key, map_index) in states, f"{key} to be {' or '.join(states)}", PATIENCE)

    def chain(self, key: Key, map_index: int = -1) -> Chain | None:
        """The head of a chain, if it has begun."""
        record = self.client.state_store(*key, map_index=map_index).get("ft/chain")
        return None if record is None else Chain.from_record(record)

    def view(self, key: Key, map_index: int = -1) -> dict[str, Any]:
        """The chain as the tab gets it."""
        dag_id, run_id, task_id = key
        query = {"run_id": run_id, "task_id": task_id, "map_index": map_index}
        answer = self.get(f"/fault-tolerance/api/v1/chain/{dag_id}", params=query)
        return answer.json() if answer.status_code == 200 else {"state": "", "runs": []}

    def wait_view(self, key: Key, state: str, runs: int = 1, map_index: int = -1) -> dict[str, Any]:
        """Wait until the chain is in a state, with at least so many runs."""

        def reached() -> dict[str, Any] | None:
            view = self.view(key, map_index)
            return view if view["state"] == state and len(view["runs"]) >= runs else None

        return self.client.wait(reached, f"{key} to be {state}", PATIENCE)  # type: ignore[no-any-return]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``airflow …`` in the stack's own environment."""
        return self.stack.command(*arguments, seconds=120)

    def token(self, user: str) -> str:
        """A token of a user."""
        passwords = json.loads((self.stack.home / "simple_auth_manager_passwords.json.generated").read_text())
        answer = httpx.post(
            f"{self.stack.url}/auth/token",
            json={"username": user, "password": passwords[user]},
            trust_env=False,
            timeout=30,
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def request(self, method: str, path: str, user: str | None = "admin", **more: Any) -> httpx.Response:
        """Ask the web server, as a user, or as nobody."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        url = path if path.startswith("http") else f"{self.stack.url}{path}"
        return httpx.request(method, url, headers=headers, trust_env=False, timeout=30, **more)

    def get(self, path: str, user: str | None = "admin", **more: Any) -> httpx.Response:
        """Get a page."""
        return self.request("GET", path, user, **more)
