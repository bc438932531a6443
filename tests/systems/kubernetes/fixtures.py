"""The session's Kubernetes, and a namespace for each test. Imported by ``tests/conftest.py``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.systems.kubernetes import programs
from tests.systems.kubernetes.cluster import Cluster, GivenCluster, OwnCluster, given_context, unavailable


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Cluster]:
    """A real Kubernetes: the given one, else our own."""
    if reason := unavailable():
        pytest.skip(f"no Kubernetes: {reason}")
    if given_context():
        yield GivenCluster()
        return
    if not programs.built():  # no test may take a quarter of an hour because it happens to be the first one
        pytest.skip(f"no Kubernetes: nothing is built yet in {programs.cache()}; `make kubernetes` builds it")
    with OwnCluster() as cluster:
        yield cluster


@pytest.fixture
def namespace(kubernetes: Cluster) -> Iterator[str]:
    """An empty namespace; everything in it goes with the test, and what the test broke is mended."""
    name = f"ft-{secrets.token_hex(4)}"
    kubernetes.kubectl("create", "namespace", name)
    yield name
    kubernetes.mend()
    kubernetes.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def own_nodes(kubernetes: Cluster) -> OwnCluster:
    """The session's cluster, if its machines may be switched off."""
    if not isinstance(kubernetes, OwnCluster):
        pytest.skip("this is done to nodes of our own only")
    return kubernetes
