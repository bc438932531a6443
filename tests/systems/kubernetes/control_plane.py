"""The control plane: etcd, API server, controller manager, scheduler and DNS, as processes of this machine."""

from __future__ import annotations

import signal
import ssl
import urllib.request
from pathlib import Path

from demo.ports import free_ports
from tests.systems.kubernetes import programs
from tests.systems.kubernetes.addresses import Addresses
from tests.systems.kubernetes.certificates import Authority, Users, service_account_keys
from tests.systems.kubernetes.daemons import Daemons

# Kubernetes' defaults are 50 s until a silent node is NotReady and 300 s until its pods are evicted: tests can't wait.
NODE_GRACE_SECONDS = 12
EVICTION_SECONDS = 5
API_NAMES = ("127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
DNS_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: airflow-ft-dns}
rules:
- {apiGroups: [""], resources: [namespaces, services, pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: airflow-ft-dns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: airflow-ft-dns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:dns"}]
"""


class ControlPlane:
    """Starts, stops and restarts its parts."""

    def __init__(self, folder: Path, addresses: Addresses, daemons: Daemons) -> None:
        self.folder, self.addresses, self.daemons = folder, addresses, daemons
        self.keys = folder / "keys"
        self.kubeconfig = folder / "kubeconfig"
        self.port, self._etcd, self._peer, self._dns_ready = free_ports(4)

    @property
    def server(self) -> str:
        """The API server as seen from this machine."""
        return f"https://127.0.0.1:{self.port}"

    def prepare(self, nodes: list[str]) -> None:
        """Make the keys, and a user for each component and node."""
        authority = Authority(self.keys, "airflow-ft-kubernetes")
        dns_name = "kubernetes.default.svc.cluster.local"
        reached = (*API_NAMES, dns_name, self.addresses.host, self.addresses.api_service)
        authority.sign("apiserver", "kube-apiserver", alternative=reached)
        authority.sign("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        service_account_keys(self.keys)
        users = Users(self.keys / "tokens.csv", authority)
        users.add("admin", "system:masters", self.server, self.kubeconfig)
        for name, user in (
            ("controllers", "system:kube-controller-manager"),
            ("scheduler", "system:kube-scheduler"),
            ("dns", "system:dns"),
        ):
            users.add(user, "", self.server, self.keys / f"{name}.kubeconfig")
        from_nodes = f"https://{self.addresses.host}:{self.port}"
        users.add("operators", "system:masters", from_nodes, self.keys / "operators.kubeconfig")
        for node in nodes:
            users.add(f"system:node:{node}", "system:nodes", from_nodes, self.keys / f"kubelet-{node}.kubeconfig")
            users.add("system:kube-proxy", "", from_nodes, self.keys / f"proxy-{node}.kubeconfig")

    def start(self) -> None:
        """Start what does not run, and wait until the API server answers."""
        self._start_etcd()
        self.start_api_server()
        self.start_controllers()
        self.start_scheduler()

    def start_dns(self) -> None:
        """Answer names of services and pods on the bridge."""
        corefile = self.folder / "Corefile"
        corefile.write_text(
            f"cluster.local:53 {{\n  bind {self.addresses.host}\n  errors\n  ready 127.0.0.1:{self._dns_ready}\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {self.keys}/dns.kubeconfig\n    ttl 2\n  }}\n}}\n"
        )
        self.daemons.start("dns", programs.program("coredns"), "-conf", str(corefile))

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._peer))
        self.daemons.start(
            "etcd",
            programs.program("etcd"),
            f"--data-dir={self.folder}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def start_api_server(self) -> None:
        """Start it and wait until it is ready."""
        keys = self.keys
        self.daemons.start(
            "api-server",
            programs.program("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=0.0.0.0",
            f"--advertise-address={self.addresses.host}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={keys}/apiserver.crt",
            f"--tls-private-key-file={keys}/apiserver.key",
            f"--service-cluster-ip-range={self.addresses.services}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys}/sa.pub",
            f"--service-account-signing-key-file={keys}/sa.key",
            f"--token-auth-file={keys}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={keys}/ca.crt",
            f"--kubelet-client-certificate={keys}/kubelet-client.crt",
            f"--kubelet-client-key={keys}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            f"--default-not-ready-toleration-seconds={EVICTION_SECONDS}",
            f"--default-unreachable-toleration-seconds={EVICTION_SECONDS}",
        )
        self.daemons.wait("api-server", self.is_ready, "/readyz")

    def stop_api_server(self) -> None:
        """Kill it, as a lost machine would: open watches end without a word."""
        self.daemons.stop("api-server", signal.SIGKILL)

    def is_ready(self) -> bool:
        """Whether the API server says that it is."""
        try:
            with urllib.request.urlopen(f"{self.server}/readyz", timeout=2, context=_trusting(self.keys)) as answer:
                return bool(answer.status == 200)
        except OSError:  # urllib's errors are OSErrors
            return False

    def start_controllers(self) -> None:
        """Start the controller manager."""
        keys = self.keys
        self.daemons.start(
            "controllers",
            programs.program("kube-controller-manager"),
            f"--kubeconfig={keys}/controllers.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_ports(1)[0]}",
            f"--cert-dir={self.folder}/controllers",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={keys}/sa.key",
            f"--root-ca-file={keys}/ca.crt",
            f"--cluster-signing-cert-file={keys}/ca.crt",
            f"--cluster-signing-key-file={keys}/ca.key",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={self.addresses.pods}",
            "--kube-api-qps=500",  # the default makes the first service account wait for 5 s
            "--kube-api-burst=1000",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        )

    def start_scheduler(self) -> None:
        """Start the scheduler."""
        self.daemons.start(
            "scheduler",
            programs.program("kube-scheduler"),
            f"--kubeconfig={self.keys}/scheduler.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_ports(1)[0]}",
            f"--cert-dir={self.folder}/scheduler",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        )


def _trusting(keys: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(keys / "ca.crt"))
