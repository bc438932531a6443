"""The arguments of ``bisect`` and ``preflight``, for the parser of ``airflow-ft`` and for Airflow's own.

Imported at every start of Airflow's command line, so it imports nothing.
"""

from __future__ import annotations

from typing import Any

Argument = tuple[tuple[str, ...], dict[str, Any]]

WHERE: tuple[Argument, ...] = (
    (("--backend",), {"default": "local", "help": "where the nodes are (default: %(default)s)"}),
    (("--root",), {"metavar": "DIR", "help": "the local backend's folder"}),
    (("--pool",), {"default": "default", "help": "the pool (default: %(default)s)"}),
    (
        ("--pool-nodes",),
        {"type": int, "metavar": "N", "help": "how many nodes the pool has"},
    ),
    (("--nodes",), {"metavar": "NAMES", "help": "n1,n2,…; default: those that are free"}),
)
JSON: Argument = (("--json",), {"action": "store_true", "help": "print JSON; progress goes to stderr"})
SKIP: Argument = (("--skip",), {"action": "append", "default": [], "metavar": "ITEM", "help": "leave an item out"})
BISECT: tuple[Argument, ...] = (
    *WHERE,
    (("--seconds",), {"type": float, "metavar": "S", "help": "the time budget for all tests (default: 900)"}),
    (("--test-seconds",), {"type": float, "metavar": "S", "help": "how long one test may take (default: 120)"}),
    (("--max-tests",), {"type": int, "metavar": "N", "help": "the most tests; default: as many as it takes"}),
    (("--group-min",), {"type": int, "metavar": "N", "help": "the fewest nodes of a test (default: 2)"}),
    (("--detection-probability",), {"type": float, "metavar": "P", "help": "how often the fault shows, if known"}),
    (("--workdir",), {"metavar": "DIR", "help": "where the reproducer runs"}),
    SKIP,
    JSON,
    (
        ("reproducer",),
        {"nargs": "*", "metavar": "COMMAND", "help": "after --: what is run; code 0 is a pass. Default: the preflight"},
    ),
)
PREFLIGHT: tuple[Argument, ...] = (
    *((flags, {**options, "default": None} if flags == ("--backend",) else options) for flags, options in WHERE),
    (("--set",), {"choices": ("quick", "standard", "deep"), "default": "standard", "help": "default: %(default)s"}),
    SKIP,
    (("--need",), {"action": "append", "default": [], "metavar": "ITEM=N", "help": "another threshold for an item"}),
    (("--host",), {"action": "append", "default": [], "metavar": "NAME", "help": "a name that has to resolve"}),
    (("--checkpoints",), {"metavar": "DIR", "help": "the folder of checkpoints"}),
    (("--seconds",), {"type": float, "metavar": "S", "help": "the time limit for all of it (default: 30; deep: 120)"}),
    JSON,
)
