"""How the training command is started: its environment, its clean signals, its fork and exec.

Used by the supervisor for every generation, and for the plain start when the agent itself fails. Fork and exec are done
by hand, because `subprocess` and a supervisor that reaps everything steal each other's exit codes. The command inherits
stdout and stderr as they are: a pipe of ours in between would kill the training when the agent dies (measured).
"""

from __future__ import annotations

import errno
import os
import pkgutil
import resource
import signal
from typing import Iterable, NoReturn

# Python ignores these two, and exec would hand that on: a training that writes into a closed pipe must die of it.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def environment(directory: str, attempt: str, generation: int, site: str | None) -> dict[str, str]:
    """The command's environment: ours, and what makes a generation a rendezvous of its own.

    A user's own PET_* (torchrun's options as variables) and PYTHONFAULTHANDLER win.
    """
    env = dict(os.environ)
    env.setdefault("PYTHONFAULTHANDLER", "1")
    env.setdefault("PET_RDZV_ID", "%s-g%d" % (attempt, generation))
    env.setdefault("PET_MAX_RESTARTS", "0")
    env["FT_AGENT_DIR"] = directory
    env["FT_GENERATION"] = str(generation)
    env["FT_STACKS"] = os.path.join(directory, "stacks")
    if site:
        env["PYTHONPATH"] = os.pathsep.join([site] + [path for path in [env.get("PYTHONPATH")] if path])
    return env


def install_site(directory: str) -> str | None:
    """Lay out the folder that PYTHONPATH gets: our sitecustomize.py and nothing else, or it would shadow user modules.

    None if it can't be: then stacks are taken by py-spy or not at all. A colon in the path can't be told to Python.
    """
    site = os.path.join(directory, "site")
    if os.pathsep in site:
        return None
    try:
        text = pkgutil.get_data(__package__, "sitecustomize/sitecustomize.py")
        os.makedirs(site, mode=0o700, exist_ok=True)
        temporary = os.path.join(directory, ".sitecustomize.%d" % os.getpid())
        with open(temporary, "wb") as file:
            file.write(text or b"")
        os.replace(temporary, os.path.join(site, "sitecustomize.py"))
    except OSError:
        return None
    return site


def spawn(command: list[str], env: dict[str, str]) -> int:
    """Start the command in a process group of its own; returns its pid. 127 or 126 is its code if it can't start."""
    pid = os.fork()  # the agent has one thread: this is safe
    if pid:
        return pid
    # Whatever happens in the child, it must never come back into the supervisor's code.
    try:
        os.setpgid(0, 0)
        _no_core_file()
        become(command, env)
    finally:
        os._exit(126)


def become(command: list[str], env: dict[str, str]) -> NoReturn:
    """Turn this very process into the command, with clean signals."""
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    try:
        os.execvpe(command[0], command, env)
    except (OSError, ValueError) as error:
        missing = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR)
        os.write(2, ("ft-agent: can't start %r: %s\n" % (command[0], error)).encode("utf-8", "backslashreplace"))
        os._exit(127 if missing else 126)


def clear_stack_files(directory: str) -> None:
    """Make the folder for stack dumps and empty it: pids are used again, an old dump must not pass for a new one."""
    folder = os.path.join(directory, "stacks")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _unlink_all(os.path.join(folder, name) for name in os.listdir(folder))
    except OSError:
        return


def _unlink_all(paths: Iterable[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            continue


def _no_core_file() -> None:
    """`ulimit -c 0`: the core of one rank can fill a node's disk."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (OSError, ValueError):
        return
