"""What users' manifests have in them: other containers, long names, huge environments, other clusters."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from airflow_ft.backends import connections
from airflow_ft.backends.base import JobState, Order, SubmissionRefusedError
from airflow_ft.backends.connections import ConnectionValues
from airflow_ft.backends.kubernetes.logs import KEPT_LINES
from airflow_ft.core.chain import End
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.diagnosis.gather import gather
from tests.kubernetes.lab import Lab
from tests.kubernetes.trainings import manifest
from tests.systems.kubernetes.images import PYTHON_IMAGE

pytestmark = [pytest.mark.kubernetes, pytest.mark.row("S4")]
PYTHON = ["python3", "-c"]
BIG = {f"BIG_{number}": f"{number}-Größe-大-🚀-" * 2_000 for number in range(6)}
PLAIN = {"PLAIN": "ключ=значение\n'\"$(HOME) `id`", **BIG}
TELL = "import hashlib, json, os; given = {name: os.environ[name] for name in json.loads('%s')}; print('told', " + (
    "hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest(), flush=True)"
)


def with_others(mode: str, nodes: int = 2, *, init: list[str] | None = None) -> dict[str, Any]:
    """Pods that train beside a proxy that never ends, after an init container; the proxy is written first."""
    made = manifest("Job", mode, nodes)
    pod = made["spec"]["template"]["spec"]
    proxy = {"name": "proxy", "image": PYTHON_IMAGE, "command": ["sleep", "infinity"]}
    shipper = {**proxy, "name": "shipper", "restartPolicy": "Always"}
    data = {"name": "data", "image": PYTHON_IMAGE, "command": init or ["true"]}
    pod["containers"] = [proxy, *pod["containers"]]
    pod["initContainers"] = [shipper, data]
    return made


@pytest.mark.story("WAT-13")
def test_the_training_container_decides_whatever_runs_beside_it(lab: Lab) -> None:
    """One that ended well is over, and one that failed is held, beside proxies that never end; all of it is removed."""

    async def story(lab: Lab) -> None:
        async def well(lab: Lab) -> None:
            ref = await lab.submit("Job", "ok", options={"manifest": with_others("ok"), "container": "main"})
            seen = await lab.until(ref, JobState.ENDED)
            assert (seen.code, seen.cancelled) == (0, False)
            running = [pod["status"]["phase"] for pod in lab.pods()]
            assert running == ["Running", "Running"], "the proxies run on"
            await lab.backend.cancel(ref, 1.0)
            assert lab.pods() == []

        async def badly(lab: Lab) -> None:
            ref = await lab.submit("Job", "crash", options={"manifest": with_others("crash", 1), "container": "main"})
            await lab.until(ref, JobState.HELD)
            assert await lab.backend.release(ref, Order(generation=1, digest="d1")) == []
            assert (await lab.until(ref, JobState.ENDED)).code == 3

        await asyncio.gather(well(lab.of("well")), badly(lab.of("badly")))

    lab.play(story)


def test_an_init_container_that_fails_is_named_and_training_is_not_blamed(lab: Lab) -> None:
    """Its last words are in the evidence, under its own name."""

    async def story(lab: Lab) -> None:
        fetch = [*PYTHON, "import sys; print('no such bucket: gs://data'); sys.exit(7)"]
        given = with_others("ok", init=fetch)
        ref = await lab.submit("Job", "ok", options={"manifest": given, "container": "main"})
        seen = await lab.until(ref, JobState.ENDED, JobState.GONE)
        assert seen.code is None, "no training ended with a code: none began"
        gathered = await gather(lab.backend, ref)
        told = {log.source: log.data.decode() for log in gathered.logs}
        assert any(source.endswith("/data") and "no such bucket" in text for source, text in told.items()), told
        assert any("Container data" in text and "Exit Code: 7" in text for text in told.values()), told

    lab.play(story)


@pytest.mark.story("CLS-03")
def test_a_helper_that_the_kernel_kills_does_not_make_a_success_a_failure(lab: Lab) -> None:
    """A data loader over the memory limit, and a training that ends with 0 all the same: its own code counts."""

    async def story(lab: Lab) -> None:
        loader = "kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))"
        train = (
            "import subprocess, sys\n"
            f"killed = subprocess.run([sys.executable, '-c', {loader!r}]).returncode\n"
            "print('the loader ended with', killed, flush=True)\n"
            "sys.exit(0 if killed == -9 else 4)\n"
        )
        ref = await lab.submit("Job", "ok", options={"manifest": manifest("Job", "ok", 1, command=[*PYTHON, train])})
        concluded = await lab.watch(ref)
        assert (concluded.outcome.end, concluded.incidents) == (End.SUCCEEDED, ())
        assert "the loader ended with -9" in await lab.output(ref)

    lab.play(story)


@pytest.mark.story("RST-10")
def test_a_platform_that_restarts_is_left_alone_and_its_restarts_are_seen(lab: Lab) -> None:
    """``platform_restarts`` with ``OnFailure``: the kubelet's restart is no end, and both lives' logs are kept."""

    async def story(lab: Lab) -> None:
        once = ["sh", "-c", "test -e /was/here && exec sleep 1; touch /was/here; echo first life; exit 3"]
        given = manifest("Job", "ok", 1, command=once, volumeMounts=[{"name": "was", "mountPath": "/was"}])
        pod = given["spec"]["template"]["spec"]
        pod |= {"restartPolicy": "OnFailure", "volumes": [{"name": "was", "emptyDir": {}}]}
        options = {"manifest": given, "platform_restarts": True, "agent": False}
        ref = await lab.submit("Job", "ok", options=options)
        seen = await lab.until(ref, JobState.ENDED)
        assert seen.code == 0
        (pod,) = lab.pods()
        assert [one["restartCount"] for one in pod["status"]["containerStatuses"]] == [1]
        tails = {tail.source: tail.data.decode() for tail in await lab.backend.log_tails(ref, 10_000)}
        assert any(source.endswith("/previous") and "first life" in text for source, text in tails.items()), tails

    lab.play(story)


def test_names_and_environments_at_their_limits(lab: Lab) -> None:
    """A namespace of 63 characters, a job's name of 58; a quarter of a megabyte in every language, byte by byte."""
    far = f"{lab.namespace}-{'x' * 62}"[:63]
    lab.cluster.kubectl("create", "namespace", far)
    told = hashlib.sha256(json.dumps(PLAIN, sort_keys=True).encode()).hexdigest()
    assert sum(len(value.encode()) for value in PLAIN.values()) > 256_000

    async def story(lab: Lab) -> None:
        command = [*PYTHON, TELL % json.dumps(sorted(PLAIN))]
        # "$(HOME)" is Kubernetes' own syntax: doubled, it is text.
        env = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in PLAIN.items()]
        lab.namespace, name = far, f"{lab.chain}-{'y' * 58}"[:58]

        async def one(kind: str, name: str, chain: str) -> None:
            job = lab.job(kind, "ok", 1, command=command, env=env)
            ref = await lab.backend.submit(job, lab.submission(name=name, chain_id=chain))
            assert (await lab.until(ref, JobState.ENDED)).code == 0
            assert f"told {told}" in await lab.output(ref)

        await asyncio.gather(one("Job", name, f"{lab.chain}-{'z' * 63}"[:63].rstrip("-")), one("PyTorchJob", "p", "p"))
        with pytest.raises(SubmissionRefusedError, match="has 59 characters"):
            await lab.backend.submit(lab.job("Job", "ok"), lab.submission(name=f"{name}y"))

    try:
        lab.play(story)
    finally:
        lab.cluster.kubectl("delete", "namespace", far, "--wait=false")


def test_two_clusters_and_namespaces_in_one_event_loop_are_kept_apart(lab: Lab) -> None:
    """The same chain and name in both: each connection sees its own, and a cancel ends only its own."""
    second = f"{lab.namespace}-b"
    lab.cluster.kubectl("create", "namespace", second)

    async def resolve(conn_id: str) -> ConnectionValues:
        extra = {"kube_config_path": str(lab.kubeconfig), "cluster_context": lab.cluster.context}
        return ConnectionValues(conn_id, extra={**extra, "namespace": {"east": lab.namespace, "west": second}[conn_id]})

    async def story(lab: Lab) -> None:
        connections.use(resolve)
        options = [{"conn_id": conn_id, "namespace": None} for conn_id in ("east", "west")]
        jobs = [lab.job("Job", "until-told", options=one) for one in options]
        east, west = await asyncio.gather(*(lab.backend.submit(job, lab.submission()) for job in jobs))
        assert east.name == west.name
        assert east.uid != west.uid
        for ref in (east, west):
            await lab.until(ref, JobState.RUNNING)
            assert len((await lab.backend.observe(ref)).nodes) == 2
        await lab.backend.cancel(east, 1.0)
        assert lab.pods() == []
        assert (await lab.backend.observe(west)).state is JobState.RUNNING
        there = lab.of("there")
        there.namespace, there.chain = second, lab.chain
        there.tell()
        assert (await lab.until(west, JobState.ENDED)).code == 0

    try:
        lab.play(story)
    finally:
        lab.cluster.kubectl("delete", "namespace", second, "--wait=false")


@pytest.mark.story("EXC-01")
def test_exclusions_that_leave_too_few_nodes_are_softened_one_by_one(lab: Lab) -> None:
    """Two ranks on nodes of their own, all nodes but one excluded: it waits, one exclusion is softened, it runs."""

    async def story(lab: Lab) -> None:
        pool = (await lab.backend.pool(lab.job("Job", "ok"))).nodes
        excluded = pool[1:]
        ref = await lab.submit("Job", "ok", excluded_nodes=excluded)
        policy = FaultTolerancePolicy.full(exclusion={"unschedulable_seconds": 2.0})
        concluded = await lab.watch(ref, policy, excluded)
        (incident,) = concluded.incidents
        assert incident.decision.soft_nodes == (excluded[0],)
        assert lab.pods(0) == []
        after = {"excluded_nodes": incident.decision.excluded_nodes, "soft_nodes": incident.decision.soft_nodes}
        second = await lab.submit("Job", "ok", 1, **after)
        assert (await lab.until(second, JobState.ENDED)).code == 0

    lab.play(story)


@pytest.mark.story("UIO-05")
def test_of_pods_that_the_platform_deletes_the_last_lines_of_every_rank_are_kept(lab: Lab) -> None:
    """No agent holds them: the Job controller deletes the innocent pod, and its log, right after the other failed."""

    async def story(lab: Lab) -> None:
        talk = (
            "import os, sys, time\nrank = os.environ['JOB_COMPLETION_INDEX']\n"
            f"for n in range({KEPT_LINES + 300}): print(f'line {{n}} of {{rank}}', flush=True)\n"
            "while not os.path.exists('/tmp/told'): time.sleep(0.1)\n"
            "sys.exit(3) if rank == '0' else time.sleep(600)\n"
        )
        given = manifest("Job", "ok", command=[*PYTHON, talk])
        ref = await lab.submit("Job", "ok", options={"manifest": given, "agent": False})
        await lab.until(ref, JobState.RUNNING)
        read: dict[str, bytes] = {}
        cursors: dict[str, int] = {}

        async def all_read() -> bool:
            nonlocal cursors
            chunks, cursors = await lab.backend.read_logs(ref, cursors, 1_000_000)
            for chunk in chunks:
                read[chunk.source] = read.get(chunk.source, b"") + chunk.data
            await lab.backend.observe(ref)
            return sum(f"line {KEPT_LINES + 299} of".encode() in text for text in read.values()) == 2

        await lab.eventually(all_read, "both ranks' lines are read")
        lab.tell()

        async def deleted() -> bool:
            await lab.backend.observe(ref)
            return len(lab.pods()) == 1

        await lab.eventually(deleted, "the Job controller has deleted the other pod")
        gathered = await gather(lab.backend, ref)
        for rank in ("0", "1"):
            kept = [log for log in gathered.logs if f"line {KEPT_LINES + 299} of {rank}".encode() in log.data]
            assert kept, f"rank {rank} of {[log.source for log in gathered.logs]}"
            assert kept[0].data.count(b"line ") >= KEPT_LINES

    lab.play(story)
