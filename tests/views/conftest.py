"""A site with some chains, for the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attempts.fake_cluster import Run
from tests.views.api_site import Manager, Reader, Site
from tests.views.chains import BUG, ECC, NO_DNS, Tables, ended


@pytest.fixture(scope="module")
def records() -> dict[str, dict[str, str]]:
    """Some chains, as their tries have stored them."""
    return {
        "recovered": ended([Run(last=30, code=1, words=ECC)], [Run(first=31, last=60)]).values,
        "stopped": ended([Run(code=1, words=BUG)]).values,
        "dns": ended([Run(last=9, code=1, words=NO_DNS)], [Run(first=10)]).values,
    }


@pytest.fixture
def site(records: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """DAG A with three chains, B with two; the user reads and edits A alone."""
    from airflow.api_fastapi.core_api import security
    from airflow.models.dag import DagModel
    from starlette.testclient import TestClient

    from airflow_ft.plugins import api, api_nodes
    from airflow_ft.plugins.web import build_app

    tables = Tables()
    tables.put(records["recovered"], "a")
    tables.put(records["stopped"], "a", "run2", state="failed")
    tables.put(records["dns"], "a", "run3", map_index=4)
    tables.put(records["recovered"], "b", "secret-run")
    tables.put(records["stopped"], "b", "run", state="failed")
    manager = Manager()
    for module in (security, api, api_nodes):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_team_name", classmethod(lambda cls, dag_id, **more: None))
    app = build_app()
    made = Site(TestClient(app), tables, app, Reader(frozenset("a"), frozenset("a")))
    app.dependency_overrides[api.session] = lambda: tables.session
    app.dependency_overrides[security.get_user] = lambda: made.user
    yield made
    tables.session.close()
