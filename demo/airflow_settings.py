"""The configuration of an Airflow that reacts in seconds: short clocks, one machine, nothing sent anywhere.

It is written to `airflow.cfg` in the stack's home, so that `AIRFLOW_HOME=... airflow ...` by hand meets the same
Airflow. Secrets are made once per home: components that are started apart must agree on them.
"""

from __future__ import annotations

import base64
import configparser
import io
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

USER = "admin"
SECRET_NAMES = ("fernet", "session", "tokens")


@dataclass(frozen=True)
class Ports:
    """Where this Airflow listens."""

    api: int
    trigger_logs: int
    worker_logs: int


def write(home: Path, dags_folder: Path, database: str, ports: Ports) -> Path:
    """Write `airflow.cfg` into the home and return its path."""
    parser = configparser.ConfigParser(interpolation=None)
    for section, options in _options(home, dags_folder, database, ports).items():
        # Airflow reads the file with interpolation: a % in a path or password has to be doubled.
        parser[section] = {name: str(value).replace("%", "%%") for name, value in options.items()}
    text = io.StringIO()
    parser.write(text)
    path = home / "airflow.cfg"
    _write_private(path, text.getvalue())
    return path


def _options(home: Path, dags_folder: Path, database: str, ports: Ports) -> dict[str, dict[str, object]]:
    secret = _secrets(home)
    url = f"http://127.0.0.1:{ports.api}"
    return {
        "core": {
            "dags_folder": dags_folder,
            "executor": "LocalExecutor",
            "parallelism": 8,
            "load_examples": False,
            "dags_are_paused_at_creation": False,
            "fernet_key": secret["fernet"],
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_all_admins": False,
        },
        "database": {"sql_alchemy_conn": database},
        "api": {
            "host": "127.0.0.1",
            "port": ports.api,
            "base_url": url,
            "workers": 1,
            "secret_key": secret["session"],
            "expose_config": True,
        },
        "api_auth": {"jwt_secret": secret["tokens"]},
        "logging": {
            "base_log_folder": home / "logs",
            "trigger_log_server_port": ports.trigger_logs,
            "worker_log_server_port": ports.worker_logs,
        },
        "scheduler": {
            "scheduler_idle_sleep_time": 0.3,
            "task_instance_heartbeat_timeout": 20,
            "task_instance_heartbeat_timeout_detection_interval": 3,
            "trigger_timeout_check_interval": 3,
        },
        # A worker's supervisor may sleep this long after its task ended: longer, and a quick resume counts as dead.
        "workers": {"min_heartbeat_interval": 1},
        "triggerer": {"job_heartbeat_sec": 3, "triggerer_health_check_threshold": 15},
        "dag_processor": {
            "refresh_interval": 3,
            "bundle_refresh_check_interval": 2,
            "min_file_process_interval": 600,  # a file that changed is read at once; each parse is a second of a core
            "parsing_processes": 1,
        },
    }


def _secrets(home: Path) -> dict[str, str]:
    path = home / "secrets.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    made = {name: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode() for name in SECRET_NAMES}
    _write_private(path, json.dumps(made))
    return made


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)
