"""A private PostgreSQL for tests: Airflow behaves differently on it (row locks, strict JSON), so sqlite isn't enough.

It uses the programs of Debian's `postgresql-*` package (or those in PATH), a temporary folder, a free port of
127.0.0.1, and no fsync: its data is thrown away. PostgreSQL refuses to run as root: it is `postgres` or `nobody` then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.ports import free_ports

PACKAGED = Path("/usr/lib/postgresql")
UNPRIVILEGED_USERS = ("postgres", "nobody")
START_SECONDS = 30.0
STOP_SECONDS = 10.0
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",  # four Airflow components and their workers, each with a pool
    "shared_buffers": "64MB",
}


def available() -> str | None:
    """Why there can't be a PostgreSQL here; None if there can."""
    if _programs() is None:
        return "no PostgreSQL server (initdb, postgres) in PATH or /usr/lib/postgresql: install postgresql"
    if os.geteuid() == 0 and _unprivileged() is None:
        return f"PostgreSQL doesn't run as root, and none of the users {', '.join(UNPRIVILEGED_USERS)} exists"
    return None


class PostgresServer:
    """One server, from `start` to `stop`; a context manager."""

    def __init__(self) -> None:
        if reason := available():
            raise RuntimeError(reason)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> PostgresServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def url(self, database: str = "airflow") -> str:
        """The address of a database on it, in SQLAlchemy's words; the database itself isn't created."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Make an empty server and wait until it answers."""
        atexit.register(self.stop)
        # Not pytest's tmp_path: its parents are closed to other users, and a socket's path may have 107 bytes only.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        (self.port,) = free_ports(1)
        account = _account()
        if account:
            os.chown(self._folder, account["user"], account["group"])
        data = self._folder / "data"
        self._run("initdb", "-D", str(data), "-U", "airflow", "--auth=trust", "--no-sync", "-E", "UTF8", "--no-locale")
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        addresses = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder)]
        with (self._folder / "server.log").open("wb") as output:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(data), *addresses, *settings],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **account,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """End it, and remove its folder; may be called again."""
        atexit.unregister(self.stop)
        if self._process:
            for number in (signal.SIGINT, signal.SIGQUIT):  # without waiting for clients; without anything
                self._process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_SECONDS)
                    break
            else:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self._folder,
            **_account(),
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed with {done.returncode}:\n{done.stdout}{done.stderr}")

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        assert self._folder is not None
        deadline = time.monotonic() + START_SECONDS
        ask = [_program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        while subprocess.run(ask, stdin=subprocess.DEVNULL).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / "server.log").read_text(errors="replace")
                self.stop()
                raise RuntimeError(f"PostgreSQL did not start:\n{log}")
            time.sleep(0.05)


def _program(name: str) -> str:
    folder = _programs()
    assert folder
    return str(folder / name)


def _programs() -> Path | None:
    """The folder that has the server; the newest version if there are several."""
    versions = sorted(PACKAGED.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]), reverse=True)
    found = versions[0] if versions else shutil.which("postgres")
    return Path(found).parent if found else None


def _unprivileged() -> pwd.struct_passwd | None:
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def _account() -> dict[str, Any]:
    """As whom to run it, in subprocess's words; nothing if we aren't root."""
    user = _unprivileged()
    if os.geteuid() != 0 or user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
