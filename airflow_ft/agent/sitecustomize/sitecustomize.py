"""Registers a stack dump on a real-time signal in every Python process of the training, then runs the sitecustomize
that this one shadows. The agent copies it alone into a folder that PYTHONPATH begins with; nothing else may lie there.

It runs in the user's interpreter, of whatever version, before the user's code: it must cost nothing, print nothing and
never fail. Each process (forked workers too) dumps into a file of its own, ``$FT_STACKS/<pid>.txt``. Its descriptor is
moved above 900, away from programs that count on low numbers, and closed on exec.
"""

import sys


def _register() -> None:
    import faulthandler
    import fcntl
    import os
    import signal

    folder = os.environ.get("FT_STACKS")
    if not folder:
        return
    fd = os.open("%s/%d.txt" % (folder, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 900)
        os.close(fd)
        fd = high
    except (OSError, AttributeError):  # few descriptors allowed, or Python before 3.8
        pass
    number = int(os.environ.get("FT_SIGNAL") or signal.SIGRTMAX - 5)
    faulthandler.register(number, file=fd, all_threads=True, chain=False)


def _quietly_register() -> None:
    try:
        _register()
    except Exception:  # the user's training must start, whatever is odd here
        pass


def _run_shadowed() -> None:
    """The sitecustomize that Python would have run without us, under its own name."""
    import importlib.machinery
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_quietly_register()
try:
    import os as _os

    _os.register_at_fork(after_in_child=_quietly_register)
except AttributeError:  # Python before 3.7
    pass
_run_shadowed()
