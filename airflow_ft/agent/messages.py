r"""The agent's own lines on stderr: ``\nft-agent <nonce> {json}\n``.

Fed by the supervisor, read by the backend's log reader, which finds ``ft-agent`` anywhere in a line. The training's
output never passes through us, so our lines must fit between its lines:

- each line is one ``write`` of at most 4,000 bytes (PIPE_BUF is 4,096: a pipe never tears it) and begins with a
  newline, because the command may have left half a line or a progress bar;
- a stalled reader must stall our line, never the supervision: we write through a non-blocking description of our own
  (O_NONBLOCK on fd 2 itself would be shared with the training and break it) and keep what doesn't fit for later.

What fd 2 is decides how: a pipe or a terminal is opened anew through /proc; a regular file never blocks, and is written
through fd 2 itself, so that the offset which the training shares moves too (with an offset of its own, the training
would overwrite our lines); a socket takes MSG_DONTWAIT; anything else is polled before each write.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
from collections import deque
from typing import Any, Callable

MAX_LINE_BYTES = 4000
# Lines kept for a stalled reader. An attempt says some ten lines a generation; beyond that the oldest are worth least.
MAX_QUEUED = 500


class Messages:
    """Says lines, or keeps them until they can be said."""

    def __init__(self, nonce: str, fd: int = 2) -> None:
        self._nonce = nonce
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._write = _writer(fd)

    def say(self, event: str, **fields: Any) -> None:
        """Queue one line and write what can be written now."""
        self._queue.append(line(self._nonce, dict(fields, event=event)))
        self.flush()

    def flush(self) -> bool:
        """Write what can be written without waiting; True if nothing is left."""
        while self._queue:
            try:
                written = self._write(self._queue[0])
            except OSError:
                return False
            if written < len(self._queue[0]):
                self._queue[0] = self._queue[0][written:]
                return False
            self._queue.popleft()
        return True


def line(nonce: str, fields: dict[str, Any]) -> bytes:
    """One whole line; long strings are cut until it fits, so that it stays valid JSON."""
    limit = MAX_LINE_BYTES
    while True:
        text = json.dumps(_cut(fields, limit), separators=(",", ":"), default=str)
        result = ("\nft-agent %s %s\n" % (nonce[:64], text)).encode("ascii", "backslashreplace")
        if len(result) <= MAX_LINE_BYTES:
            return result
        if limit < 16:
            fields = {"event": fields.get("event"), "generation": fields.get("generation"), "truncated": True}
        limit //= 2


def _cut(value: Any, limit: int) -> Any:
    """The value with strings and lists no longer than `limit`; containers that can't be cut become their text."""
    if isinstance(value, str):
        return value if len(value) <= limit else value[:limit] + "…"
    if isinstance(value, (list, tuple)):
        return [_cut(item, limit) for item in value[:limit]]
    if isinstance(value, dict):
        return {str(key)[:limit]: _cut(item, limit) for key, item in list(value.items())[:limit]}
    return value


def _writer(fd: int) -> Callable[[bytes], int]:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # started without a stderr: there is nobody to tell
        return len
    if stat.S_ISREG(mode):
        return lambda data: os.write(fd, data)
    if stat.S_ISSOCK(mode):
        channel = socket.socket(fileno=os.dup(fd))
        return lambda data: channel.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        own = os.open("/proc/self/fd/%d" % fd, flags)
    except OSError:  # no /proc, or a terminal of another user
        return lambda data: _write_if_ready(fd, data)
    return lambda data: os.write(own, data)


def _write_if_ready(fd: int, data: bytes) -> int:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not any(events & select.POLLOUT for _, events in poll.poll(0)):
        return 0
    return os.write(fd, data)
