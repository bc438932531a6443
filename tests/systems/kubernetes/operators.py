"""The real controllers of PyTorchJob, JobSet, TrainJob, RayJob and MPIJob, with their webhooks.

They run as processes of this machine, with the administrator's kubeconfig: their own permissions are not tested. Their
webhooks are registered by URL, with one certificate for all.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from demo.ports import free_ports
from tests.systems.kubernetes import programs
from tests.systems.kubernetes.certificates import Authority
from tests.systems.kubernetes.control_plane import ControlPlane
from tests.systems.kubernetes.daemons import Daemons
from tests.systems.kubernetes.images import PYTHON_IMAGE
from tests.systems.kubernetes.nodes import connect, entering

# In the order of their start: trainer makes JobSets. KubeRay is started by who asks for it (``add("kuberay")``): its
# definitions are as large as all others together, and they cost the API server seconds.
OPERATORS = ("jobset", "training-operator", "trainer", "mpi-operator")
ON_DEMAND = ("kuberay",)
# training-operator waits for its certificate in this folder, a constant in its source.
TRAINING_OPERATOR_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
# One kind of training-operator's: MPIJob is the newer mpi-operator's, the others are none of ours.
PYTORCH_ONLY = "--enable-scheme=pytorchjob"
NOT_OURS = re.compile(r"crd-kubeflow\.org_(tf|xgboost|paddle|jax)jobs\.yaml")
KubeCtl = Callable[..., str]
NETWORK = "operators"  # of those that listen on a fixed port


class Operators:
    """Installs their definitions, starts and stops them."""

    def __init__(self, folder: Path, daemons: Daemons, control_plane: ControlPlane, kubectl: KubeCtl) -> None:
        self.folder = folder / "operators"
        self.daemons, self._control_plane, self._kubectl = daemons, control_plane, kubectl
        names = (*OPERATORS, *ON_DEMAND)
        ports = free_ports(2 * len(names))
        self._health, self._webhooks = (dict(zip(names, ports[part::2], strict=True)) for part in (0, 1))

    def install(self) -> None:
        """Definitions, certificates, webhooks, and what each expects to find."""
        self._make_certificates()
        self._define(*OPERATORS)
        for name in OPERATORS:
            webhooks = [path for path in programs.manifests(name) if path.name == "webhook.yaml"]
            if webhooks:
                self._register(name, webhooks[0])
        for namespace in ("kubeflow", "mpi-operator"):
            self._kubectl("create", "namespace", namespace)
        files = [f"--from-file={self.folder / name}" for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")]
        secret = ("secret", "generic", "training-operator-webhook-cert")
        self._kubectl("-n", "kubeflow", "create", *secret, *files)

    def add(self, name: str) -> None:
        """Install and start one that isn't there by default."""
        self._define(name)
        self.start(name)

    def _define(self, *names: str) -> None:
        paths = [path for name in names for path in programs.manifests(name)]
        wanted = [path for path in paths if path.name.startswith("crd-") and not NOT_OURS.match(path.name)]
        arguments = [part for path in wanted for part in ("-f", str(path))]
        self._kubectl("apply", "--server-side", "--force-conflicts", *arguments)

    def start(self, *names: str) -> None:
        """Start them (default: all) and wait until they are ready."""
        for name in names or OPERATORS:
            self._start(name)
        for name in names or OPERATORS:
            self.daemons.wait(name, lambda name=name: self._is_ready(name), "its readiness")  # type: ignore[misc]

    def stop(self, *names: str) -> None:
        """Stop them."""
        for name in names or OPERATORS:
            self.daemons.stop(name)

    def _start(self, name: str) -> None:
        health = f"127.0.0.1:{self._health[name]}"
        if name in ("jobset", "trainer"):
            settings = self.folder / f"{name}.json"
            settings.write_text(json.dumps(self._settings(name, health)))
            program = "jobset" if name == "jobset" else "trainer-controller-manager"
            more = ["--metrics-bind-address=0"] if name == "jobset" else []
            self._run(name, program, f"--config={settings}", *more)
        elif name == "training-operator":
            webhook = f"--webhook-server-port={self._webhooks[name]}"
            image = f"--pytorch-init-container-image={PYTHON_IMAGE}"
            probe = ("--metrics-bind-address=0", f"--health-probe-bind-address={health}")
            self._run(name, "training-operator.v1", *probe, webhook, image, PYTORCH_ONLY)
        elif name == "kuberay":
            # Through the API server's proxy: a process of the host can't resolve the cluster's names.
            flags = ("--metrics-addr=0", "--enable-leader-election=false", "--use-kubernetes-proxy")
            self._run(name, "ray-operator", f"--health-probe-bind-address={health}", *flags)
        else:
            self._start_mpi_operator(name)

    def _start_mpi_operator(self, name: str) -> None:
        """It listens on port 8080, a constant in its source: so in a network of its own."""
        addresses = self._control_plane.addresses
        if not Path("/run/netns", addresses.namespace(NETWORK)).exists():
            connect(addresses, NETWORK, addresses.operators)
        access = f"--kubeConfig={self._control_plane.keys / 'operators.kubeconfig'}"
        program = [programs.program("mpi-operator"), access, "--lock-namespace=mpi-operator"]
        self.daemons.start(name, *entering(addresses, NETWORK), *program)

    def _settings(self, name: str, health: str) -> dict[str, Any]:
        certificates = "internalCertManagement" if name == "jobset" else "certManagement"
        group = "jobset.x-k8s.io" if name == "jobset" else "trainer.kubeflow.org"
        return {
            "apiVersion": f"config.{group}/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": health},
            "metrics": {"bindAddress": "0"},
            "webhook": {"port": self._webhooks[name], "host": "127.0.0.1"},
            "leaderElection": {"leaderElect": False},
            certificates: {"enable": False},
        }

    def _run(self, name: str, program: str, *arguments: str) -> None:
        environment = {"KUBECONFIG": str(self._control_plane.kubeconfig), "TMPDIR": str(self.folder / "tmp")}
        self.daemons.start(name, programs.program(program), *arguments, env=environment)

    def _is_ready(self, name: str) -> bool:
        if name == "mpi-operator":  # it has no health port that would say so
            return "Started workers" in self.daemons.log(name).read_text(errors="replace")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health[name]}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _make_certificates(self) -> None:
        # This very name and organisation, else training-operator's rotator makes a certificate of its own.
        names = ("training-operator-ca", "training-operator")
        authority = Authority(self.folder, *names, alternative=["training-operator-ca"])
        services = ("training-operator.kubeflow.svc", "webhook-service.system.svc")
        authority.sign("tls", "airflow-ft-webhooks", alternative=["127.0.0.1", "localhost", *services])
        for folder in (self.folder / "tmp" / "k8s-webhook-server" / "serving-certs", TRAINING_OPERATOR_CERTIFICATES):
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("tls.crt", "tls.key", "ca.crt"):
                shutil.copy(self.folder / name, folder)

    def _register(self, name: str, manifest: Path) -> None:
        """Apply an operator's webhooks: a URL instead of a service, our certificate, a name that is its own."""
        listed = self._kubectl("create", "--dry-run=client", "-o", "json", "-f", str(manifest))
        trusted = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        registered = list(_documents(listed))
        for document in registered:
            # training-operator's rotator looks its own one up by this name.
            own = "validator.training-operator.kubeflow.org"
            document["metadata"]["name"] = (
                own if name == "training-operator" else f"{name}-{document['metadata']['name']}"
            )
            for webhook in document["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                url = f"https://127.0.0.1:{self._webhooks[name]}{path}"
                webhook["clientConfig"] = {"url": url, "caBundle": trusted}
                if any("pods" in rule["resources"] for rule in webhook["rules"]):
                    # As installed upstream (a patch of its kustomization): else every pod needs jobset to be up.
                    key = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
                    webhook["objectSelector"] = {"matchExpressions": [key]}
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": registered})
        self._kubectl("apply", "-f", "-", given=content)


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The objects in kubectl's output: one after the other, or in lists."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        yield from document["items"] if document.get("kind") == "List" else [document]
        text = text[end:].strip()
