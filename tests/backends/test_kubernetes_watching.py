"""What is kept of the objects that are watched."""

from __future__ import annotations

import json

from airflow_ft.backends.kubernetes.pods import read_pod
from airflow_ft.backends.kubernetes.watching import APPLIED, slim


def test_what_nobody_reads_is_not_kept_and_what_a_pod_says_stays() -> None:
    """A quarter of a megabyte of environment, in each of hundreds of pods."""
    big = [{"name": f"B{number}", "value": "ü" * 30_000} for number in range(4)]
    containers = [{"name": name, "image": "i", "env": big} for name in ("proxy", "main")]
    pod = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "annotations": {APPLIED: "x" * 100_000, "airflow-ft/container": "main"},
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"nodeName": "n1", "containers": containers, "initContainers": [{"name": "data", "env": big}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
    }
    before = read_pod(json.loads(json.dumps(pod)))
    kept = slim(pod)
    assert len(json.dumps(kept)) < 1_000
    assert read_pod(kept) == before
    assert (before.container, before.containers, before.running) == ("main", ("proxy", "main"), True)
