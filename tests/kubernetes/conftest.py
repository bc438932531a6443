"""A namespace and a backend for each story."""

from __future__ import annotations

import json

import pytest

from tests.kubernetes.lab import Lab
from tests.kubernetes.trainings import KINDS, runtime
from tests.systems.kubernetes.cluster import Cluster


@pytest.fixture
def lab(kubernetes: Cluster, namespace: str) -> Lab:
    """Everything that a story needs."""
    kubernetes.kubectl("-n", namespace, "apply", "-f", "-", given=json.dumps(runtime()))
    return Lab(kubernetes, namespace)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, kubernetes: Cluster) -> str:
    """Each kind of training job, with its real controller."""
    return str(request.param)
