"""``python -m tests.systems.kubernetes.command build|run``: the tests' Kubernetes for people.

``build`` makes the programs and nothing else. ``run`` starts a cluster, says how to reach it, and ends it with Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import time

from tests.systems.kubernetes import programs
from tests.systems.kubernetes.cluster import OwnCluster, unavailable


def main(arguments: list[str]) -> int:
    """Do what is asked. Returns the exit status."""
    if arguments not in (["build"], ["run"]):
        print(__doc__)
        return 2
    if reason := unavailable():
        print(f"No Kubernetes here: {reason}")
        return 1
    if arguments == ["build"]:
        programs.build()
        print(f"[kubernetes] everything is built: {programs.cache()}")
        return 0
    return run()


def run() -> int:
    """Run a cluster until somebody says that it is enough."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        with OwnCluster() as cluster:
            print(f"[kubernetes] ready after {time.monotonic() - began:.0f} s. In another terminal:\n")
            print(f"  export KUBECONFIG={cluster.kubeconfig}")
            print(f"  export PATH={programs.folder(programs.PARTS[0]) / 'bin'}:$PATH")
            print("  kubectl get nodes\n\nCtrl-C ends it and everything in it.", flush=True)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        print("\n[kubernetes] ended")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
