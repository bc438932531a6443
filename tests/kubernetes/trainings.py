"""What the tests train on Kubernetes: one small program, in a manifest of each kind as a user would write it.

The program's first argument says what happens to it. What it does depends on nothing but its rank and on which
generation of the agent's command it is, so a story reads the same for every kind.
"""

from __future__ import annotations

from typing import Any

from tests.systems.kubernetes.images import PYTHON_IMAGE

PROGRAM = r"""
import os, signal, sys, time
mode = sys.argv[1]
names = ("JOB_COMPLETION_INDEX", "RANK", "PET_NODE_RANK")
rank = int(next((os.environ[name] for name in names if os.environ.get(name, "").isdigit()), "0"))
first_time = os.environ.get("FT_GENERATION", "0") == "0"
first_attempt = os.environ.get("FT_ATTEMPT", "0") == "0"

def steps(count=3, pause=0.1):
    for step in range(1, count + 1):
        print(f"step {step}/{count} loss {1 / step:.4f} rank {rank}", flush=True)
        time.sleep(pause)

def stuck_here():
    time.sleep(10000)

def endless():
    steps(100000, 0.2)

steps()
if mode == "ok":
    sys.exit(0)
last_words = {
    "crash": "RuntimeError: the test wants it",
    "crash-once": "RuntimeError: the test wants it" if first_time else None,
    "link-once": "NET/IB : Got completion from peer 10.0.0.11<47534> with error 5" if first_time else None,
    "names-once": "socket.gaierror: [Errno -3] Temporary failure in name resolution" if first_attempt else None,
}
if last_words.get(mode):
    if rank == 0:
        print(last_words[mode], file=sys.stderr, flush=True)
        sys.exit(3)
    endless()
if mode in last_words or (mode == "hang-once" and not first_time):
    sys.exit(0)
if mode == "hang-once":
    stuck_here()
if mode == "out-of-memory" and rank == 0:
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 20)))
if mode == "until-told":
    while not os.path.exists("/tmp/told"):
        time.sleep(0.1)
    sys.exit(0)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
endless()
"""
KINDS = ("Job", "PyTorchJob", "JobSet", "TrainJob", "MPIJob")
ONE_POD_TRAINS = frozenset({"MPIJob"})  # its launcher; the workers only serve it
RUNTIME = "airflow-ft-test"


# The ranks of one attempt on different nodes, as on a cluster where each takes a whole one.
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"airflow-ft/role": "training"}},
    "matchLabelKeys": ["airflow-ft/chain", "airflow-ft/attempt"],
}


def command(mode: str) -> list[str]:
    """The training command."""
    return ["python3", "-c", PROGRAM, mode]


def manifest(kind: str, mode: str, nodes: int = 2, **pod: Any) -> dict[str, Any]:
    """A job of this kind on so many nodes. ``pod`` are fields of the container: image, resources."""
    memory = {"resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "128Mi"}}}
    container = {"name": "main", "image": PYTHON_IMAGE, "command": command(mode), **memory, **pod}
    return _MAKERS[kind](container, nodes)


def runtime() -> dict[str, Any]:
    """The TrainingRuntime that the TrainJobs here refer to: an administrator's part of it."""
    node = {"name": "node", "image": PYTHON_IMAGE}
    pod = _pod(node, restartPolicy="Never", topologySpreadConstraints=[SPREAD])
    job = {"backoffLimit": 0, "template": pod}
    ancestor = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": RUNTIME, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {
                "spec": {"replicatedJobs": [{"name": "node", "template": {"metadata": ancestor, "spec": job}}]}
            },
        },
    }


def _pod(container: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"terminationGracePeriodSeconds": 3, "containers": [container], **more}}


def _job_spec(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    template = _pod(container, restartPolicy="Never", topologySpreadConstraints=[SPREAD])
    return {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "template": template}


def _job(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": _job_spec(container, nodes)}


def _pytorchjob(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    container = {**container, "name": "pytorch"}
    template = _pod(container, topologySpreadConstraints=[SPREAD])
    replicas = {"Master": {"replicas": 1, "template": template}}
    if nodes > 1:
        replicas["Worker"] = {"replicas": nodes - 1, "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {},
        "spec": {"runPolicy": {"backoffLimit": 3}, "pytorchReplicaSpecs": replicas},
    }


def _jobset(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    workers = {"name": "w", "replicas": 1, "template": {"spec": _job_spec(container, nodes)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {},
        "spec": {"failurePolicy": {"maxRestarts": 2}, "replicatedJobs": [workers]},
    }


def _trainjob(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    resources = {"resourcesPerNode": container["resources"]}
    trainer = {"numNodes": nodes, "image": container["image"], "command": container["command"], **resources}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {},
        "spec": {"runtimeRef": {"name": RUNTIME, "kind": "TrainingRuntime"}, "trainer": trainer},
    }


def _mpijob(container: dict[str, Any], nodes: int) -> dict[str, Any]:
    worker = {"name": "worker", "image": PYTHON_IMAGE, "command": ["sleep", "infinity"]}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {},
        "spec": {
            "slotsPerWorker": 1,
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": _pod(container)},
                "Worker": {"replicas": nodes - 1, "template": _pod(worker)},
            },
        },
    }


_MAKERS = {"Job": _job, "PyTorchJob": _pytorchjob, "JobSet": _jobset, "TrainJob": _trainjob, "MPIJob": _mpijob}
