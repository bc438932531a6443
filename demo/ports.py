"""Free TCP ports on this machine, for servers that are started and killed again and again."""

from __future__ import annotations

import random
import socket

# Below Linux's range for outgoing connections (32768 and up): there, a port whose server was just killed may be taken
# by any client before the server comes back.
FIRST, LAST = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Find so many different ports that nobody listens on."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.randint(FIRST, LAST)))
                held.append(candidate)
            except OSError:
                candidate.close()
        return [int(holder.getsockname()[1]) for holder in held]
    finally:
        for holder in held:
            holder.close()
