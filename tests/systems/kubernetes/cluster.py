"""A real Kubernetes on this machine, for tests and for people: control plane, nodes with pretended GPUs, operators.

Built from Go modules (``programs``), run as root without Docker or systemd: every node is a containerd and a kubelet in
namespaces of their own, so that it can lose its power or its network. ``AIRFLOW_FT_TEST_CONTEXT`` names a context of
``KUBECONFIG`` instead: then that cluster is used, and what only our own nodes can do is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.systems.kubernetes import images, programs
from tests.systems.kubernetes.addresses import claim
from tests.systems.kubernetes.certificates import CONTEXT
from tests.systems.kubernetes.control_plane import DNS_ROLE, ControlPlane
from tests.systems.kubernetes.daemons import Daemons
from tests.systems.kubernetes.nodes import PLUGINS, Node, cgroup_hierarchies, make_bridge, remove_bridge
from tests.systems.kubernetes.operators import Operators

CONTEXT_VARIABLE = "AIRFLOW_FT_TEST_CONTEXT"
DEFAULT_NODES = ("n1", "n2", "n3")
GPUS = 8
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
}
OTHERWISE = f"Or use a cluster that you have: KUBECONFIG=… {CONTEXT_VARIABLE}=its-context."


def given_context() -> str | None:
    """The context of the cluster that should be used instead of our own."""
    return os.environ.get(CONTEXT_VARIABLE) or None


def unavailable() -> str | None:
    """Why there can't be a Kubernetes here, and how to get one; ``None`` if there can."""
    if given_context():
        return None if shutil.which("kubectl") or programs.built() else "kubectl is not in PATH"
    if os.geteuid() != 0:
        return f"a Kubernetes of our own needs root (namespaces, networks). {OTHERWISE}"
    missing = sorted({package for name, package in PACKAGES.items() if shutil.which(name) is None})
    if missing:
        return f"apt-get install --no-install-recommends {' '.join(missing)}. {OTHERWISE}"
    if programs_missing := images.missing():
        return f"not on this machine: {', '.join(programs_missing)}. {OTHERWISE}"
    if not cgroup_hierarchies():
        return f"our own nodes were only ever run with cgroup v1. {OTHERWISE}"
    if not programs.built() and shutil.which("go") is None:
        return f"nothing is built yet in {programs.cache()}, and Go (1.26 or newer) is not in PATH. {OTHERWISE}"
    return None


class Cluster:
    """What a test needs of any cluster: who it is, and a second pair of eyes."""

    nodes: dict[str, Node]
    kubeconfig: Path
    context: str

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """Run kubectl; its output. ``given`` is its input. Raises ``RuntimeError`` with what it said."""
        program = shutil.which("kubectl") if self.is_given else programs.program("kubectl")
        words = [program or programs.program("kubectl"), f"--kubeconfig={self.kubeconfig}", f"--context={self.context}"]
        done = subprocess.run([*words, *arguments], input=given or "", capture_output=True, text=True)
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Objects as kubectl sees them; ``None`` if there is none."""
        text = self.kubectl("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text.strip() else None

    def mend(self) -> None:
        """Bring back whatever a test has broken; nothing here that a test may break."""

    @property
    def is_given(self) -> bool:
        """Whether it is somebody's, and none of its machines may be switched off."""
        return not self.nodes


class GivenCluster(Cluster):
    """A cluster that the environment names."""

    def __init__(self) -> None:
        self.nodes = {}
        self.context = given_context() or ""
        first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        self.kubeconfig = Path(first or Path.home() / ".kube" / "config")


class OwnCluster(Cluster):
    """A cluster on this machine, from ``start`` to ``stop``; a context manager.

    :param nodes: names of its nodes.
    :param operators: whether the controllers of the training kinds run in it.
    """

    context = CONTEXT

    def __init__(self, nodes: Sequence[str] = DEFAULT_NODES, operators: bool = True) -> None:
        if reason := unavailable():
            raise RuntimeError(reason)
        self.addresses, self._claim = claim()
        # Sockets are in here: their paths may have 107 bytes only.
        self.folder = Path(tempfile.mkdtemp(prefix="ft-kube-"))
        self.daemons = Daemons(self._subfolder("logs"))
        self.control_plane = ControlPlane(self.folder, self.addresses, self.daemons)
        self.kubeconfig = self.control_plane.kubeconfig
        made = (self.folder, self.addresses, self.daemons, self.control_plane.keys)
        self.nodes = {name: Node(name, index, *made) for index, name in enumerate(nodes, 1)}
        self.operators = Operators(self.folder, self.daemons, self.control_plane, self.kubectl) if operators else None
        self._broken = False

    def __enter__(self) -> OwnCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Build what is missing, start everything, and wait until pods could run."""
        programs.build()
        images.write(self.folder / "images.tar")
        make_bridge(self.addresses)
        self.control_plane.prepare(list(self.nodes))
        self.control_plane.start()
        self.kubectl("apply", "-f", "-", given=DNS_ROLE)
        self.control_plane.start_dns()
        for node in self.nodes.values():
            self.start_node(node.name, wait=False)
        if self.operators:
            self.operators.install()
            self.operators.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.wait_ready, self.nodes))
        self.wait(lambda: self.get("serviceaccount", "default", "-n", "default"), "the default service account")

    def stop(self) -> None:
        """End and forget everything."""
        for node in self.nodes.values():
            node.remove()
        for name in reversed(self.daemons.names()):
            self.daemons.stop(name, signal.SIGKILL)  # nothing is worth an orderly end
        remove_bridge(self.addresses)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._claim)

    def start_node(self, name: str, wait: bool = True) -> None:
        """Switch a node on, for the first time or again."""
        self.nodes[name].start(self.folder / "images.tar")
        if wait:
            self.wait_ready(name)

    def kill_node(self, name: str) -> None:
        """Cut a node's power: everything in it is dead at once."""
        self._broken = True
        self.nodes[name].kill()

    def cut_node(self, name: str) -> None:
        """Pull a node's network cable out: its pods run on."""
        self._broken = True
        self.nodes[name].cut()

    def mend_node(self, name: str) -> None:
        """Put the cable back."""
        self.nodes[name].mend()
        self.wait_ready(name)

    def drain_node(self, name: str) -> None:
        """Cordon a node and evict its pods, as administrators do."""
        self._broken = True
        flags = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        self.kubectl("drain", name, *flags)

    def stop_operator(self, name: str) -> None:
        """Stop a controller."""
        assert self.operators
        self._broken = True
        self.operators.stop(name)

    def wait_ready(self, name: str, seconds: float = 60.0) -> None:
        """Wait until a node is Ready and has its pretended GPUs."""

        def ready() -> bool:
            node = self.get("node", name)
            conditions = node["status"].get("conditions", ()) if node else ()
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        self.wait(ready, f"node {name} to be Ready", seconds, lambda: self.nodes[name].log())
        gpus = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
        self.kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps(gpus))

    def restart_api_server(self, away_seconds: float = 0.0) -> None:
        """Kill the API server and start it again. Controllers that end without it are started again too."""
        self._broken = True
        self.control_plane.stop_api_server()
        time.sleep(away_seconds)
        self.control_plane.start_api_server()
        self._start_daemons()

    def mend(self) -> None:
        """Bring back whatever a test has broken and not mended: nodes, cables, daemons, cordons."""
        if not self._broken:
            return
        self._start_daemons()
        for node in self.nodes.values():
            node.mend()
            if not self.daemons.is_running(node.name):
                self.start_node(node.name, wait=False)
        for name in self.nodes:
            self.wait_ready(name)
            self.kubectl("uncordon", name)
        self._broken = False

    def _start_daemons(self) -> None:
        self.control_plane.start()
        self.control_plane.start_dns()
        if self.operators:
            self.operators.start()

    @staticmethod
    def wait(
        ready: Callable[[], Any], what: str, seconds: float = 60.0, explain: Callable[[], str] = lambda: ""
    ) -> Any:
        """The first true value. Raises ``RuntimeError``."""
        deadline = time.monotonic() + seconds
        while not (found := ready()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {seconds:.0f} s for {what}\n{explain()}")
            time.sleep(0.2)
        return found

    def _subfolder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(parents=True)
        return path


__all__ = ["Cluster", "GivenCluster", "OwnCluster", "given_context", "unavailable"]
