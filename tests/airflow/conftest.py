"""One Airflow for the whole session, on sqlite, then another one on PostgreSQL for the tests that ask for both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.harness import Harness, marked_processes
from tests.systems import disks, postgres


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of this folder."""
    told = "both_databases(thorough=False): runs on sqlite and on PostgreSQL, there perhaps only with -m thorough"
    config.addinivalue_line("markers", told)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test its databases; pytest keeps the tests of one database together."""
    if "airflow" in metafunc.fixturenames:
        both = metafunc.definition.get_closest_marker("both_databases")
        marks = [pytest.mark.thorough] if both and both.kwargs.get("thorough") else []
        databases = ["sqlite", pytest.param("postgresql", marks=marks)] if both else ["sqlite"]
        metafunc.parametrize("airflow", databases, indirect=True, scope="session")


@pytest.fixture(scope="session")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A healthy Airflow."""
    template = request.config.cache.mkdir("airflow-template")
    if request.param == "sqlite":
        yield from _booted(Harness(tmp_path_factory.mktemp("airflow"), template=template))
    elif reason := postgres.available():
        pytest.skip(reason)
    else:
        with postgres.PostgresServer() as server:
            yield from _booted(Harness(tmp_path_factory.mktemp("airflow"), server.url(), template))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 90 MB."""
    with disks.mounted(tmp_path / "disk", megabytes=90) as folder:
        try:
            yield folder
        finally:  # what a failed test has left there
            for process, _ in marked_processes(folder):
                process.kill()


def _booted(harness: Harness) -> Iterator[Harness]:
    try:
        harness.boot()
        yield harness
    finally:
        harness.shut_down()
