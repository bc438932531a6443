"""What another Python environment has installed, asked of its own interpreter."""

from __future__ import annotations

import functools
import subprocess

_QUESTION = """
import importlib.metadata, sys
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    pass
"""


@functools.cache
def distribution_version(python: str, name: str) -> str | None:
    """The installed version of a distribution; None if it isn't installed there."""
    command = [python, "-c", _QUESTION, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/")
    return done.stdout.strip() or None
