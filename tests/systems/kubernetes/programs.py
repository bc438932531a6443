"""Kubernetes and the operators, built from their published Go modules, once for each state of the sources.

Nothing can be downloaded as a program where only package registries can be reached, and nothing needs to: the modules
in ``modules/`` name exact versions, their ``go.sum`` holds the hashes, and ``go build`` makes static programs of them.
The result is kept outside the checkout, in a folder named by a digest of everything it was made from, so that it is
shared by checkouts and never stale. A build that was interrupted leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
KUBERNETES = "v1.37.2"
_VERSION = "k8s.io/component-base/version"
# No debug information: a fifth of the compile time.
GO_FLAGS = "-trimpath -buildvcs=false -gcflags=all=-dwarf=false"
LINKED = ("etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")


@dataclass(frozen=True)
class Part:
    """One Go module of ours: what it builds, and which files of which modules are needed beside the programs."""

    module: str
    packages: tuple[str, ...]
    linker: str = ""
    # (module path, file or pattern below it, name in manifests/); {} in the name is the file's own name
    manifests: tuple[tuple[str, str, str], ...] = ()
    links: tuple[str, ...] = ()

    def digest(self) -> str:
        """A fingerprint of everything that the result depends on, Go's version apart."""
        sources = hashlib.sha256(repr((self, GO_FLAGS)).encode())
        for path in sorted((MODULES / self.module).rglob("*")):
            if path.is_file():
                sources.update(path.relative_to(MODULES).as_posix().encode() + b"\0" + path.read_bytes())
        return sources.hexdigest()[:16]


PARTS = (
    Part(
        "kube",
        (".", "./coredns"),
        f"-X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=37"
        f" -X {_VERSION}.gitTreeState=clean -X {_VERSION}.buildDate=2026-01-01T00:00:00Z",
        links=LINKED,
    ),
    # Two modules, because these three don't compile with the controller-runtime (0.23) that the others need.
    Part(
        "operators_old",
        ("tool",),
        manifests=(
            ("sigs.k8s.io/jobset", "config/components/crd/bases/*.yaml", "jobset/crd-{}"),
            ("sigs.k8s.io/jobset", "config/components/webhook/manifests.yaml", "jobset/webhook.yaml"),
            (
                "github.com/kubeflow/training-operator",
                "manifests/base/crds/kubeflow.org_[ptxj]*.yaml",  # all but mpijobs: that CRD is the mpi-operator's
                "training-operator/crd-{}",
            ),
            (
                "github.com/kubeflow/training-operator",
                "manifests/base/webhook/manifests.yaml",
                "training-operator/webhook.yaml",
            ),
            ("github.com/ray-project/kuberay/ray-operator", "config/crd/bases/*.yaml", "kuberay/crd-{}"),
        ),
    ),
    Part(
        "operators_new",
        ("tool",),
        manifests=(
            ("github.com/kubeflow/trainer/v2", "manifests/base/crds/trainer.kubeflow.org_*.yaml", "trainer/crd-{}"),
            ("github.com/kubeflow/trainer/v2", "manifests/base/webhook/manifests.yaml", "trainer/webhook.yaml"),
            ("github.com/kubeflow/mpi-operator", "manifests/base/kubeflow.org_mpijobs.yaml", "mpi-operator/crd-{}"),
        ),
    ),
)


def cache() -> Path:
    """Where built things are kept: ``AIRFLOW_FT_CACHE``, else the user's cache folder."""
    given = os.environ.get("AIRFLOW_FT_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow_ft"
    return base.expanduser().absolute() / "kubernetes"


def folder(part: Part) -> Path:
    """Where the result of a part is, or will be."""
    return cache() / f"{part.module}-{part.digest()}"


def built() -> bool:
    """Whether nothing has to be built."""
    return all((folder(part) / "bin").is_dir() for part in PARTS)


def program(name: str) -> str:
    """The path of a built program."""
    for part in PARTS:
        path = folder(part) / "bin" / name
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"{name} is in none of the parts in {cache()}")


def manifests(operator: str) -> list[Path]:
    """The files that an operator brings along: ``crd-*.yaml`` and, where it has one, ``webhook.yaml``."""
    return sorted(path for part in PARTS for path in (folder(part) / "manifests" / operator).glob("*.yaml"))


def build() -> None:
    """Build what is missing. Needs Go and the network; about a quarter of an hour of two cores from nothing."""
    cache().mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        with _locked(part):
            if not folder(part).is_dir():
                _build(part)


@contextmanager
def _locked(part: Part) -> Iterator[None]:
    """One build of a part at a time, also between processes: the second one finds it done."""
    with (cache() / f".{part.module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(part: Part) -> None:
    began = time.monotonic()
    print(f"[kubernetes] building {part.module} …", flush=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{part.module}-", dir=cache()))
    try:
        source = unfinished / "source"
        shutil.copytree(MODULES / part.module, source)
        (unfinished / "bin").mkdir()
        _go(source, "build", "-ldflags", f"-s -w {part.linker}", "-o", f"{unfinished / 'bin'}/", *part.packages)
        for name in part.links:
            (unfinished / "bin" / name).symlink_to(part.module)
        for module, pattern, name in part.manifests:
            _copy_manifests(
                Path(_go(source, "list", "-m", "-f", "{{.Dir}}", module).strip()), pattern, unfinished, name
            )
        shutil.rmtree(source)
        unfinished.rename(folder(part))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"[kubernetes] built {part.module} in {time.monotonic() - began:.0f} s: {folder(part)}", flush=True)


def _copy_manifests(module: Path, pattern: str, target: Path, name: str) -> None:
    found = sorted(module.glob(pattern))
    if not found:
        raise RuntimeError(f"{module} has no {pattern}")
    for path in found:
        copy = target / "manifests" / name.format(path.name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())  # the module cache is read-only, the copy isn't


def _go(source: Path, *arguments: str) -> str:
    """Run ``go``; what it says goes to the terminal."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": GO_FLAGS, "GOWORK": "off"}
    done = subprocess.run(
        ["go", *arguments], cwd=source, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"go {arguments[0]} failed with {done.returncode} in {source.name}; see above")
    return done.stdout


if __name__ == "__main__":  # before there is a virtual environment: this module needs the standard library alone
    build()
