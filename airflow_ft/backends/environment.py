"""The environment variables that a user may give to a training command, the same on every backend.

A name that is no identifier could end up as code where a backend writes a script; a reserved one would break what the
backend, the agent or torchrun say to the command. Both are errors before anything is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RESERVED = re.compile(r"FT_.*|SLURM_.*|PET_RDZV_ID", re.ASCII)


def name_problems(names: Iterable[str]) -> list[str]:
    """Say what is wrong with each name; empty if nothing is."""
    problems = []
    for name in names:
        if not _NAME.fullmatch(name):
            problems.append(
                f"env: the name {name!r:.80} is not allowed. Letters, digits and underscores are, not beginning with a "
                "digit. Rename it."
            )
        elif _RESERVED.fullmatch(name):
            problems.append(
                f"env: the name {name!r:.80} is not allowed. FT_*, SLURM_* and PET_RDZV_ID are set for the command. "
                "Leave it out."
            )
    return problems
