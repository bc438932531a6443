"""Make the virtual environment: everything that the demo, the tests and the benchmarks need, from the lock file.

Runs with nothing but the standard library of Python 3.10 or newer. ``uv`` does the work: it downloads in parallel,
shows the size of every large download while it runs, and takes what it has cached. ``python demo/install.py FOLDER``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# Measured on an empty cache, Linux x86-64: PyTorch brings CUDA's libraries along, wanted or not.
SIZES = "3.2 GB to download if nothing is cached, 5.7 GB on disk"
PYTHONS = ((3, 10), (3, 13))


def main() -> int:
    """Make or mend the environment. Returns the exit status."""
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        given = ".".join(map(str, sys.version_info[:3]))
        print(
            f"python: {given} is not supported. Airflow needs 3.10 to 3.13; say which with `make … PYTHON=python3.11`."
        )
        return 1
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".venv").absolute()
    began = time.monotonic()
    python = folder / "bin" / "python"
    step(1, "virtual environment", folder.name)
    if not python.exists():
        run(sys.executable, "-m", "venv", str(folder))
    step(2, "uv", "the installer, 20 MB")
    uv = locked("uv")
    run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"uv=={uv}")
    step(3, "Airflow, PyTorch and the tools", SIZES)
    uv_pip = [str(folder / "bin" / "uv"), "pip", "install", "--python", str(python)]
    run(*uv_pip, "--require-hashes", "-r", str(LOCK))
    step(4, "airflow_ft itself", "editable")
    run(*uv_pip, "--quiet", "--no-deps", "--editable", str(ROOT))
    print(f"[install] done in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def locked(name: str) -> str:
    """Return the version of a package in the lock file."""
    found = re.search(rf"^{re.escape(name)}==([^\s;\\]+)", LOCK.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{LOCK.name}: {name} is missing. Run `make lock`.")
    return found[1]


def step(number: int, what: str, size: str) -> None:
    """Say which step begins."""
    print(f"[install] {number}/4 {what} ({size})", flush=True)


def run(*command: str) -> None:
    """Run one command; its own progress bars go to the terminal."""
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"[install] failed with status {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
