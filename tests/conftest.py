"""What holds for every test: a suite that was prepared is never skipped.

``.ci/run`` installs the real systems and names them in ``AIRFLOW_FT_PREPARED`` (markers, comma-separated). A test that
needs no other systems than these, and yet skips, then fails: otherwise a system that quietly doesn't start would look
like success.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.systems.kubernetes.fixtures import kubernetes, namespace, own_nodes  # noqa: F401 (fixtures for all folders)

SYSTEMS = frozenset({"airflow", "browser", "kubernetes", "postgres", "ray", "slurm", "torch"})
BIG_SYSTEMS = SYSTEMS - {"torch"}  # each is started once, for all of its tests
PREPARED = frozenset(filter(None, os.environ.get("AIRFLOW_FT_PREPARED", "").split(",")))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist asks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two groups run side by side (``pytest -n 2 --dist loadgroup``): the tests of big systems, and all others.

    Browser tests come last in theirs: the event loop of Playwright's sync API counts as running in this thread until it
    is closed, and no test beside it could call ``asyncio.run``.
    """
    for item in items:
        big = any(item.get_closest_marker(system) for system in BIG_SYSTEMS)
        item.add_marker(pytest.mark.xdist_group("big systems" if big else "others"))
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    """Turn the skip of a prepared system's test into a failure."""
    outcome = yield
    report = outcome.get_result()
    needed = SYSTEMS & {marker.name for marker in item.iter_markers()}
    if needed and needed <= PREPARED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{', '.join(sorted(needed))} was prepared, and yet this test skipped: {report.longrepr}"
