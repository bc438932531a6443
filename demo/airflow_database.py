"""An empty, migrated Airflow database in a fraction of a second: migrated once, then copied.

`airflow db migrate` takes 8 to 25 s, a copy of a migrated sqlite file 0.03 s, `CREATE DATABASE ... TEMPLATE` in
PostgreSQL 0.2 s. Templates are keyed by Airflow's version. A database that exists is kept: a stack may be stopped and
started again in its home.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url

from demo.interpreter import distribution_version

Migrate = Callable[[str], None]  # migrates the database of this URL


def prepare(url: str, template: Path | None, python: str, migrate: Migrate) -> None:
    """Make sure that the URL names a migrated database.

    :param template: a folder for migrated copies. In PostgreSQL the copy is a database of the same server, and any
        folder only says that one is wanted. None: migrate in place.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        _prepare_sqlite(Path(str(parsed.database)), template, python, migrate)
    else:
        _prepare_postgres(parsed, template is not None, python, migrate)


def _prepare_sqlite(path: Path, template: Path | None, python: str, migrate: Migrate) -> None:
    if path.exists():
        return
    if template is None:
        migrate(f"sqlite:///{path}")
        return
    template.mkdir(parents=True, exist_ok=True)
    migrated = template / f"airflow-{_airflow_version(python)}.db"
    with _file_lock(template / "lock"):
        if not migrated.exists():
            unfinished = migrated.with_suffix(".unfinished")
            unfinished.unlink(missing_ok=True)
            migrate(f"sqlite:///{unfinished}")
            unfinished.replace(migrated)
    shutil.copyfile(migrated, path)


def _prepare_postgres(url: URL, from_template: bool, python: str, migrate: Migrate) -> None:
    name = str(url.database)
    with _server(url) as server:
        if _exists(server, name):
            return
        if not from_template:
            server.execute(text(f'CREATE DATABASE "{name}"'))
            migrate(url.render_as_string(hide_password=False))
            return
        migrated = "airflow_template_" + re.sub(r"\W", "_", _airflow_version(python))
        if not _exists(server, migrated):
            unfinished = f"{migrated}_unfinished"
            server.execute(text(f'DROP DATABASE IF EXISTS "{unfinished}" WITH (FORCE)'))
            server.execute(text(f'CREATE DATABASE "{unfinished}"'))
            migrate(url.set(database=unfinished).render_as_string(hide_password=False))
            server.execute(text(f'ALTER DATABASE "{unfinished}" RENAME TO "{migrated}"'))
        server.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{migrated}"'))


def _airflow_version(python: str) -> str:
    version = distribution_version(python, "apache-airflow-core")
    if version is None:
        raise ValueError(f"python: {python} has no Airflow. Give an interpreter of an environment that has it.")
    return version


@contextmanager
def _server(url: URL) -> Iterator[Any]:
    """A connection to the server itself, alone among all that prepare databases there."""
    engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(7)"))
            yield connection
    finally:
        engine.dispose()


def _exists(server: Any, name: str) -> bool:
    found = server.execute(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": name})
    return found.first() is not None


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
