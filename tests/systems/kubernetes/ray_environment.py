"""A virtual environment with Ray for the pods of RayJobs: ``python -m tests.systems.kubernetes.ray_environment``.

Made with the host's ``/usr/bin/python3``, which is the images' too, and mounted into the pods at the path it has here.
Kept beside the built programs, outside the checkout: a third of a gigabyte that only the tests of RayJobs need.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.systems.kubernetes import programs
from tests.systems.kubernetes.images import HOST_PYTHON

RAY = "2.60.0"
FINISHED = ".finished"


def folder() -> Path:
    """Where it is, or will be."""
    return programs.cache() / f"ray-{RAY}"


def built() -> bool:
    """Whether it is there, and whole."""
    return (folder() / FINISHED).exists()


def build() -> None:
    """Make it, if it isn't there. Needs a package index; two minutes."""
    if built():
        return
    shutil.rmtree(folder(), ignore_errors=True)
    # At once where it stays: its programs name their interpreter by its path.
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", HOST_PYTHON, str(folder())], check=True)
    python = str(folder() / "bin" / "python")
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"ray[default]=={RAY}"], check=True)
    (folder() / FINISHED).touch()


if __name__ == "__main__":
    build()
