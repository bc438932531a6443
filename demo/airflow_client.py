"""A small client of Airflow's REST API: what the demo shows and what the tests ask.

It logs in as SimpleAuthManager's user (a token from `POST /auth/token`) and speaks `/api/v2`. Answers are the JSON of
the API, unwrapped where there is one obvious thing inside. The `wait_...` methods bear an api-server that is away for
a while, since killing it is a thing that the demo and the tests do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import quote

import httpx

Json = dict[str, Any]
FINISHED = ("success", "failed")
UNMAPPED = -1
POLL_SECONDS = (0.1, 1.0)  # the first pause, and the longest: each look costs the api-server what a page costs it
# On sqlite Airflow's api-server may block itself for the five seconds that it waits for the database: it writes its
# audit line on the event loop, which another request needs to end its transaction. Then one of the two is rolled back.
BUSY_TRIES = 5


class AirflowApiError(Exception):
    """Airflow refused a request. `status` is the HTTP status, `body` what it said."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path} was answered with {status}: {body[:2000]}")
        self.status = status
        self.body = body


class AirflowClient:
    """One user's view of one Airflow."""

    def __init__(self, base_url: str, username: str, password: str, timeout_seconds: float = 30) -> None:
        self.base_url = base_url.rstrip("/")
        self._credentials = {"username": username, "password": password}
        # A proxy of the environment is for the world outside, not for this machine.
        self._http = httpx.Client(base_url=self.base_url, timeout=timeout_seconds, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # ---- requests ----

    def request(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """Send a request to a path below `/api/v2` and return its JSON (None if there is none)."""
        return self._request(method, f"/api/v2/{path.lstrip('/')}", body, query)

    def retry_chain(self, dag_id: str, run_id: str, task_id: str, map_index: int = UNMAPPED) -> Json:
        """The retry chain of a task instance, from the plugin of airflow_ft."""
        query: Json = {"run_id": run_id, "task_id": task_id, "map_index": map_index, "format": "json"}
        found: Json = self._request("GET", f"/fault-tolerance/chain/{_q(dag_id)}", None, query)
        return found

    def _request(self, method: str, path: str, body: Any, query: Json) -> Any:
        response = self._send(method, path, body, query)
        if response.status_code == 401:  # no token yet, or the api-server has new secrets
            self._log_in()
            response = self._send(method, path, body, query)
        tries = 1
        while response.status_code == 500 and '"Database error"' in response.text and tries < BUSY_TRIES:
            tries += 1
            response = self._send(method, path, body, query)
        if response.is_error:
            raise AirflowApiError(method, path, response.status_code, response.text)
        return response.json() if response.content else None

    def _send(self, method: str, path: str, body: Any, query: Json) -> httpx.Response:
        wanted = {name: value for name, value in query.items() if value is not None}
        return self._http.request(method, path, json=body, params=wanted)

    def _log_in(self) -> None:
        response = self._http.post("/auth/token", json=self._credentials)
        if response.is_error:
            raise AirflowApiError("POST", "/auth/token", response.status_code, response.text)
        self._http.headers["Authorization"] = f"Bearer {response.json()['access_token']}"

    # ---- the installation ----

    def health(self) -> dict[str, Json]:
        """What Airflow says of its components; works without a login."""
        response = self._http.get("/api/v2/monitor/health")
        response.raise_for_status()
        return dict(response.json())

    def import_errors(self) -> list[Json]:
        """DAG files that could not be read."""
        return list(self.request("GET", "importErrors")["import_errors"])

    # ---- DAGs and runs ----

    def dag(self, dag_id: str) -> Json:
        """A DAG's own record."""
        return dict(self.request("GET", f"dags/{_q(dag_id)}"))

    def wait_for_dag(self, dag_id: str, timeout_seconds: float = 60) -> Json:
        """Wait until the DAG was read and isn't stale."""

        def find() -> Json | None:
            try:
                found = self.dag(dag_id)
            except AirflowApiError as error:
                if error.status != 404:
                    raise
                return None
            return None if found.get("is_stale") else found

        return dict(self.wait(find, f"DAG {dag_id}", timeout_seconds, explain=self.import_errors))

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause the DAG, or let it run again."""
        self.request("PATCH", f"dags/{_q(dag_id)}", body={"is_paused": paused}, update_mask="is_paused")

    def unpause(self, dag_id: str) -> None:
        """Let the DAG run."""
        self.pause(dag_id, paused=False)

    def trigger(self, dag_id: str, conf: Json | None = None, run_id: str | None = None) -> str:
        """Start a run of the DAG and return its id."""
        body = {"logical_date": None, "conf": conf or {}, "dag_run_id": run_id}
        return str(self.request("POST", f"dags/{_q(dag_id)}/dagRuns", body=body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> Json:
        """A run's own record."""
        return dict(self.request("GET", _run(dag_id, run_id)))

    def run_state(self, dag_id: str, run_id: str) -> str:
        """`queued`, `running`, `success` or `failed`."""
        return str(self.run(dag_id, run_id)["state"])

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Set the whole run to `success` or `failed`, as a person would."""
        self.request("PATCH", _run(dag_id, run_id), body={"state": state})

    def wait_for_run(self, dag_id: str, run_id: str, timeout_seconds: float = 120) -> str:
        """Wait until the run has finished; its state."""

        def finished() -> str | None:
            state = self.run_state(dag_id, run_id)
            return state if state in FINISHED else None

        return str(self.wait(finished, f"the end of run {run_id} of {dag_id}", timeout_seconds))

    # ---- task instances ----

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = UNMAPPED) -> Json:
        """The task instance as it is now."""
        return dict(self.request("GET", _task(dag_id, run_id, task_id, map_index)))

    def task_instances(self, dag_id: str, run_id: str) -> list[Json]:
        """All task instances of a run."""
        return list(self.request("GET", f"{_run(dag_id, run_id)}/taskInstances", limit=1000)["task_instances"])

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int = UNMAPPED) -> list[Json]:
        """Every try of the task, the first one first."""
        found = self.request("GET", f"{_task(dag_id, run_id, task_id, map_index)}/tries")["task_instances"]
        return sorted(found, key=lambda one_try: int(one_try["try_number"]))

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str] | str,
        *,
        map_index: int = UNMAPPED,
        min_try: int = 0,
        timeout_seconds: float = 120,
    ) -> Json:
        """Wait until the task, in this try or a later one, is in one of the states."""
        wanted = {states} if isinstance(states, str) else set(states)

        def reached() -> Json | None:
            now = self.task_instance(dag_id, run_id, task_id, map_index)
            return now if now["state"] in wanted and now["try_number"] >= min_try else None

        what = f"{task_id} of run {run_id} to be {' or '.join(sorted(wanted))}"
        return dict(self.wait(reached, what, timeout_seconds, explain=lambda: self.task_instances(dag_id, run_id)))

    def clear(self, dag_id: str, run_id: str, task_ids: list[str | tuple[str, int]] | None = None, **body: Any) -> None:
        """Clear tasks (all of the run if none is named), whatever their state, and those downstream."""
        options: Json = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "include_downstream": True}
        if task_ids is not None:
            options["task_ids"] = task_ids
        self.request("POST", f"dags/{_q(dag_id)}/clearTaskInstances", body=options | body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = UNMAPPED) -> None:
        """Set a task to `success`, `failed` or `skipped`, as a person would."""
        self.request("PATCH", _task(dag_id, run_id, task_id, map_index), body={"new_state": state})

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int, map_index: int = UNMAPPED) -> str:
        """The log of a try, one line per event; further fields of an event follow as `name=value`."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_q(task_id)}/logs/{try_number}"
        content = self.request("GET", path, full_content=True, map_index=map_index)["content"]
        return "\n".join(_log_line(event) for event in content)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str, map_index: int = UNMAPPED) -> Any:
        """An XCom's value; None if there is none."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_q(task_id)}/xcomEntries/{_q(key)}"
        try:
            return self.request("GET", path, map_index=map_index, deserialize=False)["value"]
        except AirflowApiError as error:
            if error.status != 404:
                raise
            return None

    def state_store(self, dag_id: str, run_id: str, task_id: str, map_index: int = UNMAPPED) -> Json:
        """The task's state store: every key with its value."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_q(task_id)}/state-store"
        found = self.request("GET", path, map_index=map_index, limit=1000)["task_state_store"]
        return {entry["key"]: entry["value"] for entry in found}

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str, map_index: int = UNMAPPED) -> None:
        """Answer the question that a task asks (human in the loop)."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_q(task_id)}/{map_index}/hitlDetails"
        self.request("PATCH", path, body={"chosen_options": [option], "params_input": {}})

    # ---- waiting ----

    def wait(
        self,
        look: Callable[[], Any],
        what: str,
        timeout_seconds: float,
        *,
        explain: Callable[[], Any] | None = None,
    ) -> Any:
        """Look again and again until there is something; an api-server that doesn't answer is asked again.

        :param explain: what to put into the error when the time is over.
        """
        deadline = time.monotonic() + timeout_seconds
        trouble, (pause, longest) = "", POLL_SECONDS
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
                trouble = ""
            except httpx.TransportError as error:
                trouble = f" (last: {error!r})"
            time.sleep(pause)
            pause = min(pause * 1.3, longest)
        reason = f": {explain()}" if explain and not trouble else trouble
        raise TimeoutError(f"Waited {timeout_seconds:g} s in vain for {what}{reason}")


def _q(part: str) -> str:
    return quote(part, safe="")


def _run(dag_id: str, run_id: str) -> str:
    return f"dags/{_q(dag_id)}/dagRuns/{_q(run_id)}"


def _task(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    mapped = "" if map_index == UNMAPPED else f"/{map_index}"
    return f"{_run(dag_id, run_id)}/taskInstances/{_q(task_id)}{mapped}"


def _log_line(event: Json | str) -> str:
    if isinstance(event, str):
        return event
    hidden = ("event", "timestamp", "level", "logger", "filename", "lineno", "chan")
    fields = " ".join(f"{name}={value}" for name, value in event.items() if name not in hidden and value is not None)
    head = " ".join(str(event[name]) for name in ("timestamp", "level") if event.get(name))
    return " ".join(part for part in (head, str(event.get("event", "")), fields) if part)
