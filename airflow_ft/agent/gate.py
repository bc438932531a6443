"""The gate: the preflight that the supervisor runs before the first start of the command.

A child process of its own with a time limit, whose lines go into the job's log. Whether training may start:

==========================  =========================================================================
the preflight says ok       yes
an item failed              no: exit code ``EXIT_FAILED``, nothing is held; ``preflight.json`` says why
it broke, or took too long  as ``on_error`` says: ``train`` or ``fail``
TERM meanwhile              no
==========================  =========================================================================

Only before generation 0 of a fresh folder: a restart in place comes back to nodes that have trained already.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from . import state
from .preflight_result import EXIT_FAILED as EXIT_FAILED
from .preflight_result import FAILED

POLL_SECONDS = 0.05
# Beyond its own limit, for Python's start on a busy node.
MARGIN_SECONDS = 5.0
DEFAULT_SECONDS = 30.0
ITEMS_BYTES = 3000  # of the 4,096 that the kubelet keeps of a termination message
_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def check(directory: str, config_text: str | None, generation: int) -> str:
    """Run the preflight if one is wanted; returns what was odd. Raises ``RefusedError`` if nothing may start."""
    if not config_text or generation > 0:
        return ""
    config = _config(config_text)
    if config is None:
        return "its configuration is no JSON object: %.200s" % config_text
    code = _limited(_command(directory, config_text), float(config.get("seconds", DEFAULT_SECONDS)) + MARGIN_SECONDS)
    if code == 0:
        return ""
    if code == EXIT_FAILED:
        raise state.RefusedError(EXIT_FAILED, "the preflight failed; nothing was started")
    why = "no answer in time" if code is None else "it ended with code %d" % code
    if config.get("on_error", "train") == "fail":
        raise state.RefusedError(EXIT_FAILED, "the preflight broke (%s); nothing was started" % why)
    return why


def failed_items(directory: str) -> list[Any]:
    """The failed items of the preflight that was just run, as many as fit into a container's last words."""
    try:
        with open(os.path.join(directory, "preflight.json")) as file:
            items = [item for item in json.load(file)["items"] if item[1] == FAILED]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    while items and len(json.dumps(items)) > ITEMS_BYTES:
        items.pop()
    return items


def _config(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _command(directory: str, config_text: str) -> list[str]:
    """The same agent, but with the site's packages: that is where pynvml and torch are."""
    program = os.path.abspath(sys.argv[0])
    start = [program] if program.endswith(".pyz") else ["-m", str(__package__)]
    return [sys.executable, *start, "preflight", "--dir", directory, "--config", config_text]


def _limited(command: list[str], seconds: float) -> int | None:
    """The command's exit code; None if it had to be killed for time."""
    pid = os.fork()
    if pid == 0:
        # Whatever happens in the child, it must never come back into the supervisor's code.
        try:
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.execvp(command[0], command)
        finally:
            os._exit(126)
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        stopped = bool(_STOP & signal.sigpending())
        if stopped or time.monotonic() > end:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)
            if stopped:
                raise state.RefusedError(state.EXIT_CANCELLED, "stopped during the preflight; nothing was started")
            return None
        time.sleep(POLL_SECONDS)
