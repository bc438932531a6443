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
# Their systems are started once, for all of their tests, which wait most of the time.
BIG_SYSTEMS = tuple(f"tests/{folder}/" for folder in ("airflow", "browser", "kubernetes", "systems"))
NICE = 10
PREPARED = frozenset(filter(None, os.environ.get("AIRFLOW_FT_PREPARED", "").split(",")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests come last: the event loop of Playwright's sync API counts as running in this thread until it is
    closed, and no test beside it could call ``asyncio.run``."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two groups run side by side (``pytest -n 2 --dist loadscope``): the tests of big systems, and all others."""
    from xdist.scheduler import LoadScopeScheduling

    class TwoGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "big systems" if nodeid.startswith(BIG_SYSTEMS) else "others"

    return TwoGroups(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the others take what the big systems leave: these have heartbeats to keep."""
    beside = "PYTEST_XDIST_WORKER" in os.environ and not item.nodeid.startswith(BIG_SYSTEMS)
    if beside and os.nice(0) == 0:
        os.nice(NICE)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    """Turn the skip of a prepared system's test into a failure."""
    outcome = yield
    report = outcome.get_result()
    needed = SYSTEMS & {marker.name for marker in item.iter_markers()}
    if needed and needed <= PREPARED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{', '.join(sorted(needed))} was prepared, and yet this test skipped: {report.longrepr}"
