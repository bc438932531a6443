"""Real nodes: containerd, kubelet and kube-proxy in network, process, mount and host name spaces of their own.

A node can lose its power (``kill``: everything in it is dead at once, and the API server is told nothing), come back
(``start``), have its cable pulled out (``cut``: its pods run on) and put back (``mend``).
"""

from __future__ import annotations

import json
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.systems.kubernetes import programs
from tests.systems.kubernetes.addresses import NODES, Addresses
from tests.systems.kubernetes.daemons import Daemons, command
from tests.systems.kubernetes.images import PAUSE_IMAGE

CGROUPS = Path("/sys/fs/cgroup")
PLUGINS = "/usr/lib/cni"
LOGS = ("containerd.log", "images.log", "proxy.log", "kubelet.log")
INIT = Path(__file__).with_name("node_init.sh")
CONTAINERD = """version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
"""


class Node:
    """One node. ``index`` counts from 1."""

    def __init__(self, name: str, index: int, folder: Path, addresses: Addresses, daemons: Daemons, keys: Path) -> None:
        self.name, self.index, self.folder = name, index, folder / name
        self.addresses, self.daemons, self.keys = addresses, daemons, keys

    @property
    def address(self) -> str:
        """Its address on the bridge."""
        return self.addresses.node(self.index)

    def start(self, images: Path) -> None:
        """Switch it on. Returns at once; the API server tells when it is Ready."""
        self._connect()
        self._write_settings()
        for hierarchy in cgroup_hierarchies():
            (hierarchy / self.addresses.cgroup(self.name)).mkdir(exist_ok=True)
        for limit in ("cpuset.cpus", "cpuset.mems"):  # an empty cpuset takes no process
            with suppress(FileNotFoundError):
                value = (CGROUPS / "cpuset" / limit).read_text()
                (CGROUPS / "cpuset" / self.addresses.cgroup(self.name) / limit).write_text(value)
        enter = entering(self.addresses, self.name)
        isolate = ["unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]
        programs_folder = str(Path(programs.program("kubelet")).parent)
        init = [
            "bash",
            str(INIT),
            str(self.folder),
            programs_folder,
            str(self.keys),
            self.name,
            self.address,
            str(images),
        ]
        self.daemons.start(self.name, *enter, *isolate, *init)

    def kill(self) -> None:
        """Cut its power."""
        self.daemons.stop(self.name, signal.SIGKILL)

    def cut(self) -> None:
        """Pull the network cable out."""
        command("ip", "link", "set", self.addresses.cable(self.name), "down")

    def mend(self) -> None:
        """Put the cable back."""
        command("ip", "link", "set", self.addresses.cable(self.name), "up")

    def remove(self) -> None:
        """Forget the node and everything in it."""
        self.kill()
        disconnect(self.addresses, self.name)
        remove_cgroups(self.addresses.cgroup(self.name))
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """The ends of its logs, for a failed start."""
        paths = [self.folder / name for name in LOGS]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in paths if path.exists())

    def _connect(self) -> None:
        if Path("/run/netns", self.addresses.namespace(self.name)).exists():
            return
        connect(self.addresses, self.name, self.address)
        command("ip", "route", "replace", self.addresses.pods_of(self.index), "via", self.address)
        for other in range(1, NODES + 1):
            if other != self.index:
                route = (self.addresses.pods_of(other), "via", self.addresses.node(other))
                command("ip", "-n", self.addresses.namespace(self.name), "route", "replace", *route)

    def _write_settings(self) -> None:
        for name in ("cni", "kubelet", "containerd/root", "podlogs", "containerlogs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        settings = CONTAINERD.format(folder=self.folder, pause=PAUSE_IMAGE, plugins=PLUGINS)
        (self.folder / "containerd.toml").write_text(settings)
        (self.folder / "resolv.conf").write_text(f"nameserver {self.addresses.host}\n")
        for path, content in (
            ("cni/10-airflow-ft.conflist", self._network()),
            ("kubelet.json", self._kubelet()),
            ("proxy.json", self._proxy()),
        ):
            (self.folder / path).write_text(json.dumps(content, indent=1))

    def _network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.folder / "addresses"),
            "ranges": [[{"subnet": self.addresses.pods_of(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "airflow-ft", "plugins": [bridge, ports]}

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,  # the kubelet refuses cgroup v1 by default since 1.35
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.addresses.cgroup(self.name)}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd/c.sock",
            "podLogsDir": str(self.folder / "podlogs"),
            "resolvConf": str(self.folder / "resolv.conf"),
            "clusterDNS": [self.addresses.host],
            "clusterDomain": "cluster.local",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.keys / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "10s",
            # The images can't be pulled again: never collect them.
            "imageGCHighThresholdPercent": 100,
            "imageMaximumGCAge": "0s",
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "maxPods": 110,
            "oomScoreAdj": 0,
            "serializeImagePulls": False,
        }

    def _proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": self.addresses.pods,
            "hostnameOverride": self.name,
            "bindAddress": self.address,
            "oomScoreAdj": 0,
            "clientConnection": {"kubeconfig": str(self.keys / f"proxy-{self.name}.kubeconfig")},
            "conntrack": {"maxPerCore": 0, "min": 0},
        }


def make_bridge(addresses: Addresses) -> None:
    """The switch that the nodes are plugged into. What an earlier cluster of this number left is removed first."""
    remove_bridge(addresses)
    command("ip", "link", "add", addresses.bridge, "type", "bridge")
    command("ip", "addr", "add", f"{addresses.host}/24", "dev", addresses.bridge)
    command("ip", "link", "set", addresses.bridge, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def connect(addresses: Addresses, name: str, address: str) -> None:
    """Make a network namespace, and plug it into the bridge."""
    namespace, cable = addresses.namespace(name), addresses.cable(name)
    command("ip", "netns", "add", namespace)
    command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    command("ip", "link", "set", cable, "master", addresses.bridge, "up")
    inside = ("ip", "-n", namespace)
    command(*inside, "link", "set", "lo", "up")
    command(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
    command(*inside, "link", "set", "eth0", "up")
    command(*inside, "route", "add", "default", "via", addresses.host)


def entering(addresses: Addresses, name: str) -> list[str]:
    """The beginning of a command that runs in such a namespace. ``ip netns exec`` would hide /sys/fs/cgroup."""
    return ["nsenter", f"--net=/run/netns/{addresses.namespace(name)}"]


def remove_bridge(addresses: Addresses) -> None:
    """Remove it, and every node's network of this cluster."""
    with suppress(FileNotFoundError):
        for path in Path("/run/netns").iterdir():
            if path.name.startswith(addresses.namespace("")):
                disconnect(addresses, path.name.removeprefix(addresses.namespace("")))
    command("ip", "link", "del", addresses.bridge, check=False)
    for hierarchy in cgroup_hierarchies():
        for path in hierarchy.glob(f"{addresses.cgroup('')}*"):
            remove_cgroups(path.name)


def disconnect(addresses: Addresses, node: str) -> None:
    """Remove a node's network."""
    command("ip", "netns", "del", addresses.namespace(node), check=False)
    command("ip", "link", "del", addresses.cable(node), check=False)


def cgroup_hierarchies() -> list[Path]:
    """Every mounted hierarchy of cgroup v1 (``systemd``'s included), and the unified one beside them."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] == "cgroup" and fields[1].startswith(str(CGROUPS))]


def remove_cgroups(name: str) -> None:
    """Remove a cgroup and all below it; one that still holds a dying process stays, empty enough for the next."""
    for hierarchy in [*cgroup_hierarchies(), CGROUPS / "unified"]:
        for path in sorted((hierarchy / name).rglob("*"), reverse=True):
            if path.is_dir():
                with suppress(OSError):
                    path.rmdir()
        with suppress(OSError):
            (hierarchy / name).rmdir()
