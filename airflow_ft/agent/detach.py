"""`run --detach`: the agent as a daemon that keeps nothing of its caller.

Used by the local backend, whose caller is an Airflow worker or triggerer: fd 0 there is the supervisor's socket, and a
child that keeps it open froze the whole triggerer. So the agent gets a session of its own, /dev/null as input, a file
as output, default signals, and no other descriptor. The caller waits on a pipe until the agent holds its lock, and
learns in words why not otherwise.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from contextlib import suppress

# The agent needs well under a second; a machine that swaps needs longer, and the answer decides whether a job exists.
ANSWER_SECONDS = 60.0
_RESET = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Caller:
    """Whom to tell, once, how the start went. Without a pipe (not detached) nobody is told."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    @property
    def waits(self) -> bool:
        """Whether a caller still waits for the answer: until then nothing may have been started."""
        return self._fd is not None

    def tell(self, code: int, why: str = "") -> None:
        """Answer the caller, who exits with this code."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.write(fd, ("%d %s" % (code, why)).encode("utf-8", "backslashreplace")[:4000])
            os.close(fd)
        except OSError:  # the caller is gone; the agent isn't
            return


def detach(output: str) -> Caller:
    """Continue as a daemon. The calling process never returns from here: it exits with the daemon's answer."""
    reader, writer = (_above_two(fd) for fd in os.pipe())
    middle = os.fork()
    if middle:
        os.close(writer)
        with suppress(ChildProcessError):  # we were started to ignore SIGCHLD
            os.waitpid(middle, 0)
        os._exit(_await_answer(reader))
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    caller = Caller(writer)
    # Nothing of the command runs yet: an error here is the caller's to know.
    try:
        _redirect(output)
    except OSError as error:
        caller.tell(1, "output: %s can't be written: %s" % (output, error))
        os._exit(1)
    _close_all_but(writer)
    for number in _RESET:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    return caller


def _redirect(output: str) -> None:
    os.makedirs(os.path.dirname(output), mode=0o700, exist_ok=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
        os.set_inheritable(target, True)  # dup2 of a descriptor to itself leaves it to be closed on exec


def _above_two(fd: int) -> int:
    """A caller without stdin, stdout or stderr gives us their numbers, which `_redirect` needs."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _close_all_but(kept: int) -> None:
    """Close everything above 2 except one descriptor."""
    try:
        names = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        names = list(range(3, 65536))
    for fd in names:
        if fd > 2 and fd != kept:
            try:
                os.close(fd)
            except OSError:
                continue


def _await_answer(reader: int) -> int:
    answer, end = b"", time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < end:
        if select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(reader, 4096)
            if not part:
                break
            answer += part
    code, _, why = answer.decode("utf-8", "replace").partition(" ")
    if not code:
        code, why = "1", "the agent didn't say within %d s that it started" % ANSWER_SECONDS
    if why:
        os.write(2, ("ft-agent: %s\n" % why).encode("utf-8", "backslashreplace"))
    return int(code)
