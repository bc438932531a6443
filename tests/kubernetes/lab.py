"""What the stories on Kubernetes have in hand: a backend, a namespace, and kubectl as a second pair of eyes."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from airflow_ft.attempts.ports import Conclusion, TryInfo, WatchOrder
from airflow_ft.attempts.watch import prepared_watch
from airflow_ft.backends import connections, registry
from airflow_ft.backends.base import Backend, JobState, Observation, Submission
from airflow_ft.backends.connections import ConnectionValues
from airflow_ft.backends.kubernetes.job import KubernetesJob
from airflow_ft.core.chain import JobRef
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.policy_record import write_policy
from benchmarks.recovery import PlainDesk
from tests.backends import conformance
from tests.kubernetes.trainings import manifest
from tests.systems.kubernetes.cluster import Cluster

T = TypeVar("T")
CONNECTION = "test_cluster"
DEADLINE = 60.0  # for what takes 5 s on a quiet machine


class Lab:
    """One namespace of a real cluster, and the backend under test."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.kubeconfig = cluster.kubeconfig
        self.chain = f"{namespace}-chain"
        connections.use(self._resolve)
        self.backend: Backend = registry.create_backend("kubernetes")

    async def _resolve(self, conn_id: str) -> ConnectionValues:
        extra = {"kube_config_path": str(self.kubeconfig), "cluster_context": self.cluster.context}
        return ConnectionValues(conn_id, extra=extra)

    def of(self, name: str) -> Lab:
        """The same, for a chain of its own."""
        other = copy.copy(self)
        other.chain = f"{self.namespace}-{name.lower()}"
        return other

    def play(self, story: Callable[[Lab], Awaitable[None]]) -> None:
        """Run a story in an event loop of its own."""

        async def with_end() -> None:
            try:
                await story(self)
            finally:
                await self.backend.close()  # type: ignore[attr-defined]

        asyncio.run(with_end())

    # ---- jobs ----

    def job(self, kind: str, mode: str, nodes: int = 2, *, options: dict[str, Any] | None = None, **pod: Any) -> Any:
        """A job of the tests' program."""
        given = {"manifest": manifest(kind, mode, nodes, **pod), "conn_id": CONNECTION, "namespace": self.namespace}
        return KubernetesJob(**{**given, **(options or {})})

    def submission(self, attempt: int = 0, **fields: Any) -> Submission:
        """An attempt of the test's chain."""
        given = {"name": f"{self.chain}-a{attempt}", "chain_id": self.chain, "attempt": attempt}
        return Submission(**{**given, "hold": 60.0, "grace": 3.0, **fields})

    async def submit(self, kind: str, mode: str, attempt: int = 0, *, nodes: int = 2, **fields: Any) -> JobRef:
        """Submit the tests' program."""
        pod = fields.pop("pod", {})
        job = self.job(kind, mode, nodes, options=fields.pop("options", None), **pod)
        return await self.backend.submit(job, self.submission(attempt, **fields))

    async def until(self, ref: JobRef, *states: JobState, deadline: float = DEADLINE) -> Observation:
        """Observe until the job is in one of the states."""

        async def look() -> Observation | None:
            seen = await self.backend.observe(ref)
            return seen if seen.state in states else None

        return await self.eventually(look, f"{ref.name} is {[state.value for state in states]}", deadline)

    async def until_seen(
        self, ref: JobRef, holds: Callable[[Observation], bool], what: str, deadline: float = DEADLINE
    ) -> Observation:
        """Observe until something holds."""

        async def look() -> Observation | None:
            seen = await self.backend.observe(ref)
            return seen if holds(seen) else None

        return await self.eventually(look, what, deadline)

    async def output(self, ref: JobRef) -> str:
        """Everything that its pods printed."""
        tails = await self.backend.log_tails(ref, 1_000_000)
        return "\n".join(tail.data.decode("utf-8", "replace") for tail in tails)

    async def watch(
        self, ref: JobRef, policy: FaultTolerancePolicy | None = None, excluded_nodes: Sequence[str] = ()
    ) -> Conclusion:
        """Watch an attempt as Airflow's trigger does, to its end or to a decision."""
        info = TryInfo(dag_id="d", run_id="r", task_id="t", try_number=1, max_tries=1, ti_id="x")
        written = write_policy(policy or FaultTolerancePolicy.full())
        order = WatchOrder(info=info, ref=ref, policy=written, nodes_needed=2, excluded_nodes=tuple(excluded_nodes))
        return await prepared_watch(order, PlainDesk()).watch()  # type: ignore[arg-type]

    async def eventually(self, look: Callable[[], Awaitable[T | None]], what: str, deadline: float = DEADLINE) -> T:
        """The first true value. Fails after the deadline, with all that kubectl sees."""
        try:
            return await conformance.eventually(look, what, deadline, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.explain()}") from None

    # ---- with other eyes than the backend's ----

    def pods(self, attempt: int | None = None) -> list[dict[str, Any]]:
        """The pods of the chain, or of one attempt."""
        selector = f"airflow-ft/chain={self.chain}"
        if attempt is not None:
            selector += f",airflow-ft/attempt={attempt}"
        found = self.cluster.get("pods", "-n", self.namespace, "-l", selector)
        return list(found["items"]) if found else []

    def training_pods(self, attempt: int | None = None) -> list[dict[str, Any]]:
        """Those that train."""
        return [pod for pod in self.pods(attempt) if pod["metadata"]["labels"].get("airflow-ft/role") == "training"]

    def uids(self) -> set[str]:
        """The identities of all pods of the chain."""
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def tell(self, attempt: int = 0) -> None:
        """Let trainings of the mode ``until-told`` end."""
        for pod in self.training_pods(attempt):
            container = pod["metadata"]["annotations"]["airflow-ft/container"]
            self.kubectl("exec", pod["metadata"]["name"], "-c", container, "--", "touch", "/tmp/told")

    def processes(self, attempt: int = 0) -> list[int]:
        """The agents of an attempt that are alive on any node of this machine, whatever the API server knows."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if f"--attempt={self.chain}-a{attempt}" in (process.info["cmdline"] or ()):
                found.append(process.pid)
        return found

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check)

    async def aside(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do something that blocks, and let the backend go on meanwhile."""
        return await asyncio.to_thread(function, *arguments)

    def explain(self) -> str:
        """What kubectl sees, for a failed story."""
        words = ("get", "all,events", "-o", "wide", "--sort-by=.metadata.creationTimestamp")
        return self.kubectl(*words, check=False)[-6000:]


def hosts(path: Path) -> dict[str, Any]:
    """A volume and its mount that show a folder of the host to a pod, at the same path."""
    name = "host-" + re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")
    return {"volume": {"name": name, "hostPath": {"path": str(path)}}, "mount": {"name": name, "mountPath": str(path)}}
