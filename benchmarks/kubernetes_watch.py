"""What it costs to watch 200 jobs on Kubernetes from one triggerer, beside KubernetesPodOperator's deferrable mode.

    python -m benchmarks.kubernetes_watch [--jobs 200] [--seconds 60] [--paper] [--json FILE]

A real control plane (etcd to scheduler, ``tests/systems/kubernetes``); the pods are held by nodes that are only said to
be there (``fake_nodes``), because 200 containers would take this machine. ``--paper``: an API server in memory instead
(``paper_cluster``), for machines that can't host a control plane; what the watchers ask and use is measured alike. One
after the other, each in a process of its own with one event loop, as a triggerer has:

- *airflow_ft*: 200 Jobs of one pod, and for each the coroutine that our trigger runs: state, progress from the
  followed log (a step every 5 s), hang detection.
- *operator*: 200 pods, and for each a ``KubernetesPodTrigger`` with its defaults: it polls the pod every 2 s and reads
  no log before the end.

Requests are counted by a proxy before the API server, through which both go; streams count when they are opened.
Processor time and memory are the process's own. Then all pods end, some a second, and each side writes when it knew.
Agents are not in it (nothing is executed on such nodes): a healthy one costs a call every five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil

from tests.systems.kubernetes.api_proxy import ApiProxy
from tests.systems.kubernetes.cluster import OwnCluster, unavailable
from tests.systems.kubernetes.fake_nodes import PODS, FakeNodes
from tests.systems.kubernetes.paper_cluster import PaperCluster

OURS, THEIRS = "airflow_ft", "operator"
NAMESPACE = "watched"
SETTLE_SECONDS = 15.0  # start-up is over
PAUSE_SECONDS = 0.05  # between the ends of two pods
LIMIT_SECONDS = 300.0
IMAGE = "registry.local/train:1"


@dataclass
class Cost:
    """What one side took."""

    system: str
    jobs: int
    requests_per_job_minute: float
    cpu_ms_per_job_minute: float
    memory_mb: float
    delay_p50_seconds: float
    delay_p95_seconds: float


def main() -> None:
    """Measure both, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long both are watched while all runs")
    parser.add_argument("--paper", action="store_true", help="an API server in memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=[OURS, THEIRS], help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        asyncio.run((_ours if args.side == OURS else _theirs)(args.kubeconfig, args.jobs))
        return
    if (reason := unavailable()) and not args.paper:
        raise SystemExit(f"No Kubernetes here: {reason} Or --paper.")
    costs = [measured(side, args.jobs, args.seconds, args.paper) for side in (OURS, THEIRS)]
    _report(costs, args.json)


# --- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where both are measured: its pods, and the requests that were sent to it."""

    kubeconfig: Path
    pods: FakeNodes | PaperCluster
    counter: ApiProxy | PaperCluster


@contextmanager
def real(jobs: int, folder: Path) -> Iterator[Place]:
    """A control plane of our own."""
    with OwnCluster(nodes=(), operators=False) as cluster, ApiProxy(cluster.kubeconfig) as proxy:
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.wait(lambda: cluster.get("serviceaccount", "default", "-n", NAMESPACE), "a service account")
        with FakeNodes(cluster, NAMESPACE, jobs // PODS + 1).up() as nodes:
            yield Place(proxy.write_kubeconfig(folder / "kubeconfig"), nodes, proxy)


@contextmanager
def paper(folder: Path) -> Iterator[Place]:
    """An API server in memory."""
    with PaperCluster().up() as cluster:
        yield Place(cluster.write_kubeconfig(folder / "kubeconfig"), cluster, cluster)


def measured(side: str, jobs: int, seconds: float, on_paper: bool) -> Cost:
    """Measure one side, in a place of its own."""
    with tempfile.TemporaryDirectory(prefix="ft-watch-") as name:
        folder = Path(name)
        with paper(folder) if on_paper else real(jobs, folder) as place:
            with watcher(side, place.kubeconfig, jobs, folder) as (process, told):
                _until(lambda: len(place.pods.running) == jobs and told() == "watching", f"{jobs} pods run")
                time.sleep(SETTLE_SECONDS)
                before, requests, began = process.cpu_times(), place.counter.requests.total(), time.monotonic()
                time.sleep(seconds)
                after, minutes = process.cpu_times(), (time.monotonic() - began) / 60.0
                asked = place.counter.requests.total() - requests
                memory = process.memory_info().rss / 2**20
                for pod in list(place.pods.running):
                    place.pods.finish(pod)
                    time.sleep(PAUSE_SECONDS)
                _until(lambda: told() == "over", "every end is known")
            delays = _delays(folder / "events.jsonl", place.pods.ended_at)
    cpu = after.user + after.system - before.user - before.system
    quantiles = statistics.quantiles(delays, n=20)
    return Cost(
        system=side,
        jobs=jobs,
        requests_per_job_minute=asked / jobs / minutes,
        cpu_ms_per_job_minute=1000.0 * cpu / jobs / minutes,
        memory_mb=memory,
        delay_p50_seconds=statistics.median(delays),
        delay_p95_seconds=quantiles[18],
    )


@contextmanager
def watcher(side: str, kubeconfig: Path, jobs: int, folder: Path) -> Iterator[tuple[psutil.Process, Callable[[], str]]]:
    """The process that watches. Its last word can be asked for."""
    log = folder / "log"
    words = [sys.executable, "-m", "benchmarks.kubernetes_watch", f"--side={side}", f"--jobs={jobs}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words, f"--kubeconfig={kubeconfig}"], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )

    def told() -> str:
        if process.poll() not in (None, 0):
            raise SystemExit(log.read_text()[-4000:])
        path = folder / "word"
        return path.read_text() if path.exists() else ""

    try:
        yield psutil.Process(process.pid), told
    finally:
        process.kill()
        process.wait()


def _until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LIMIT_SECONDS:.0f} s: {what}")
        time.sleep(0.2)


def _delays(events: Path, ended_at: dict[str, float]) -> list[float]:
    """From each pod's end to the moment when its watcher knew."""
    known = [json.loads(line) for line in events.read_text().splitlines()]
    # A Job's pod is called after its Job, with five letters more.
    ends = ended_at | {pod.rpartition("-")[0]: at for pod, at in ended_at.items()}
    return [event["at"] - ends[event["name"]] for event in known]


def _report(costs: list[Cost], target: Path | None) -> None:
    ours, theirs = costs
    names = ("requests_per_job_minute", "cpu_ms_per_job_minute", "memory_mb", "delay_p50_seconds", "delay_p95_seconds")
    print(f"{ours.jobs} jobs, watched by one process\n{'':28}{OURS:>12}{THEIRS:>12}{'ratio':>9}")
    ratios = {}
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        ratios[name] = mine / other if other else float("inf")
        print(f"{name:28}{mine:12.3f}{other:12.3f}{ratios[name]:9.3f}")
    if target is not None:
        target.write_text(json.dumps({"costs": [asdict(cost) for cost in costs], "ratios": ratios}, indent=1))


# --- the two sides, each in a process of its own ---------------------------------------------------------------------


class Book:
    """What a side tells: its last word, and a line for each end that it knows."""

    def __init__(self, kubeconfig: Path) -> None:
        self._folder = kubeconfig.parent
        self._events = (self._folder / "events.jsonl").open("a")

    def word(self, text: str) -> None:
        """Say how far it is."""
        path = self._folder / "word"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def end(self, name: str) -> None:
        """An end is known, now."""
        self._events.write(json.dumps({"name": name, "at": time.time()}) + "\n")
        self._events.flush()


async def _ours(kubeconfig: Path, jobs: int) -> None:
    from airflow_ft.attempts.ports import TryInfo, WatchOrder
    from airflow_ft.attempts.watch import prepared_watch
    from airflow_ft.backends import connections, registry
    from airflow_ft.backends.base import Submission
    from airflow_ft.backends.connections import ConnectionValues
    from airflow_ft.backends.kubernetes.job import KubernetesJob
    from airflow_ft.core.policy import FaultTolerancePolicy
    from airflow_ft.core.policy_record import write_policy
    from benchmarks.recovery import PlainDesk

    async def resolve(conn_id: str) -> ConnectionValues:
        return ConnectionValues(conn_id, extra={"kube_config_path": str(kubeconfig)})

    connections.use(resolve)
    backend, book = registry.create_backend("kubernetes"), Book(kubeconfig)
    pod = {"spec": {"containers": [{"name": "main", "image": IMAGE, "command": ["python", "train.py"]}]}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": pod}}
    job = KubernetesJob(manifest=manifest, conn_id="watched", namespace=NAMESPACE, agent=False)
    policy = write_policy(FaultTolerancePolicy.full())

    async def one(number: int) -> None:
        name = f"job-{number}"
        ref = await backend.submit(job, Submission(name=name, chain_id=f"chain-{number}", attempt=0))
        made.append(name)
        info = TryInfo(dag_id="d", run_id="r", task_id=name, try_number=1, max_tries=1, ti_id=name)
        order = WatchOrder(info=info, ref=ref, policy=policy)
        await prepared_watch(order, PlainDesk()).watch()  # type: ignore[arg-type]
        book.end(name)

    made: list[str] = []
    watches = [asyncio.create_task(one(number)) for number in range(jobs)]
    while len(made) < jobs:
        await asyncio.sleep(0.2)
    book.word("watching")
    await asyncio.gather(*watches)
    book.word("over")
    await asyncio.sleep(LIMIT_SECONDS)  # until it is ended: its processor time is read from outside


async def _theirs(kubeconfig: Path, jobs: int) -> None:
    from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
    from kubernetes_asyncio import client, config

    book = Book(kubeconfig)
    await config.load_kube_config(config_file=str(kubeconfig))
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "base", "image": IMAGE, "command": ["python", "train.py"]}],
    }
    async with client.ApiClient() as api:
        core = client.CoreV1Api(api)
        for number in range(jobs):
            body = {"metadata": {"name": f"pod-{number}"}, "spec": spec}
            await core.create_namespaced_pod(NAMESPACE, body)

    async def one(number: int) -> None:
        name = f"pod-{number}"
        trigger = KubernetesPodTrigger(
            pod_name=name,
            pod_namespace=NAMESPACE,
            trigger_start_time=datetime.now(timezone.utc),
            base_container_name="base",
            config_dict=json.loads(kubeconfig.read_text()),
            connection_extras={},
        )
        async for _ in trigger.run():
            book.end(name)

    book.word("watching")
    await asyncio.gather(*(one(number) for number in range(jobs)))
    book.word("over")
    await asyncio.sleep(LIMIT_SECONDS)


if __name__ == "__main__":
    main()
