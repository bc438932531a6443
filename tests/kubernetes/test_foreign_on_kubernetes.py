"""Jobs that somebody has made with kubectl, of every kind: seen by the labels of their operators, and left alone."""

from __future__ import annotations

import asyncio
import json

import pytest

from airflow_ft.backends.base import JobState, Submission
from airflow_ft.backends.foreign.backend import ForeignBackend
from airflow_ft.backends.foreign.job import ForeignJob
from airflow_ft.backends.kubernetes import restarts
from airflow_ft.backends.kubernetes.kinds import kind_of
from airflow_ft.core.chain import JobRef
from airflow_ft.core.decisions import Action
from tests.kubernetes.lab import CONNECTION, Lab
from tests.kubernetes.trainings import KINDS, manifest

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]


def apply(lab: Lab, kind: str, name: str, mode: str) -> None:
    """Make a job as a person does, one whose operator doesn't restart it for minutes."""
    job = manifest(kind, mode)
    job["metadata"]["name"] = name
    known = kind_of(job)
    assert known is not None
    restarts.set_to_never(job, restarts.found(known, job))
    lab.cluster.kubectl("-n", lab.namespace, "apply", "-f", "-", given=json.dumps(job))


async def found(lab: Lab, kind: str, name: str, **more: bool) -> JobRef:
    job = ForeignJob(kind=kind, name=name, namespace=lab.namespace, conn_id=CONNECTION, **more)  # type: ignore[call-arg]
    submission = Submission(name=f"{lab.chain}-{name}-a0", chain_id=f"{lab.chain}-{name}", attempt=0)
    return await ForeignBackend().submit(job, submission)


@pytest.mark.row("S4")
@pytest.mark.story("SUB-04")
def test_a_job_of_every_kind_is_watched_to_its_end_and_left_alone(lab: Lab) -> None:
    """All at once: steps are read, its crash is judged, and what a job of ours would have got is told."""

    async def story(it: Lab) -> None:
        it.backend = ForeignBackend()
        for kind in KINDS:
            await it.aside(apply, it, kind, f"crash-{kind.lower()}", "crash")
        refs = [await found(it, kind, f"crash-{kind.lower()}") for kind in KINDS]
        conclusions = await asyncio.gather(*(it.watch(ref) for ref in refs))
        for kind, conclusion in zip(KINDS, conclusions, strict=True):
            decision = conclusion.incidents[-1].decision
            assert decision.action is Action.FAIL, kind
            assert "which is not ours" in decision.reason or decision.shadow is None, (kind, decision.reason)
            assert conclusion.progress is not None and conclusion.progress.step, kind
            assert conclusion.debts == (), kind
        left = it.kubectl("get", "pods", "-o", "name")
        assert all(f"crash-{kind.lower()}" in left for kind in KINDS), left

    lab.play(story)


@pytest.mark.row("S4")
def test_a_job_that_was_taken_over_is_stopped_with_its_pods(lab: Lab) -> None:
    async def story(it: Lab) -> None:
        it.backend = ForeignBackend()
        await it.aside(apply, it, "PyTorchJob", "endless", "endless")
        ref = await found(it, "PyTorchJob", "endless", own=True)
        await it.until(ref, JobState.RUNNING)
        await it.backend.cancel(ref, 1.0)
        assert it.kubectl("get", "pods,pytorchjobs", "-o", "name").strip() == ""

    lab.play(story)
